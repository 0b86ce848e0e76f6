"""Further replications of a run: simulated in memory by a crew, of which the figures are kept."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.metrics.summary import Summary
from kvsim.scenario.load import ScenarioFile
from kvsim.study.point import Point, run_point
from kvsim.study.tasks import Crew, Failure, Tell, Work, run_tasks


def further_replications(
    file: ScenarioFile,
    variants: Sequence[str],
    replications: int,
    crew: Crew,
    changes: Mapping[str, Any] | None = None,
    tell: Tell | None = None,
) -> dict[str, list[Summary]]:
    """Simulate all replications but the first, which a run leaves on the disk.

    Args:
        file: The scenario file.
        variants: Which of its variants.
        replications: How many there are, the first included.
        crew: Who does the work; the result does not depend on it.
        changes: Values that differ from the file, as of `Point`.
        tell: Told how many simulations are done, of how many.

    Returns:
        By variant, the summaries of replications 1, 2, ...

    Raises:
        InputError: A replication can't be simulated; says which.
        BrokenLawError: kvsim failed.
    """
    points = {
        (name, number): Point(changes or {}, name, number)
        for number in range(1, replications)
        for name in variants
    }
    found: dict[tuple[str, int], Summary] = {}
    for key, outcome in run_tasks(crew, Work(_summary_of, file), points.items()):
        if isinstance(outcome, Failure):
            raise outcome.error(f"replication {key[1]} of variant {key[0]}")
        found[key] = outcome
        if tell:
            tell(len(found), len(points))
    return {name: [found[name, number] for number in range(1, replications)] for name in variants}


def _summary_of(file: ScenarioFile, point: Point) -> Summary:
    return run_point(file, point).summary()
