"""Runs a sweep: what its directory doesn't have yet is simulated, and all of it told."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.errors import InputError, Problem
from kvsim.studies.sweep.answer import Answer, answer_of
from kvsim.studies.sweep.load import SweepFile
from kvsim.studies.sweep.outcome import Outcome, simulated
from kvsim.studies.sweep.results import Results, collect
from kvsim.studies.sweep.store import STORE, Store, is_failure, opened
from kvsim.study.point import Point, point_key
from kvsim.study.tasks import Crew, Failure, Tell, Work, run_tasks
from kvsim.workload.files import written_whole

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class SweepResult:
    """A sweep that was run.

    Attributes:
        answer: What each point came to, and what follows from it.
        ran: How many points were simulated now; the results of others were there.
        table_path: The table, as Parquet.
        page_path: The page, as HTML.
    """

    answer: Answer
    ran: int
    table_path: Path
    page_path: Path

    @property
    def results(self) -> Results:
        """What each point came to."""
        return self.answer.results

    @property
    def table(self) -> "pd.DataFrame":
        """One row for each replication of each point: its axes, status, verdict, figures."""
        from kvsim.studies.sweep.table import data_frame

        return data_frame(self.results)


def run_sweep(
    sweep: SweepFile,
    out: Path,
    crew: Crew,
    *,
    retry: bool = False,
    tell: Tell | None = None,
    command: str = "",
) -> SweepResult:
    """Simulate the points whose results `out` doesn't have, then write table and page there.

    Results are kept as they come: a run that is killed loses only the points that were under way.
    A point that fails is recorded, and stops no other.

    Args:
        sweep: From `kvsim.studies.sweep.load.load_sweep`.
        out: Directory; several sweeps may use it, also at once.
        crew: Who simulates, for example `kvsim.study.local.crew_of(jobs)`.
        retry: Whether points that failed before are run again.
        tell: Told how many points are done.
        command: What reproduces the page, as it stands there.

    Raises:
        InputError: A value of an axis is refused, no point is left, or `out` can't be used.
    """
    points = sweep.points()
    name = sweep.sweep.name
    table_path, page_path = out / f"{name}.parquet", out / f"{name}.html"
    _refuse_foreign(table_path, page_path)
    out.mkdir(parents=True, exist_ok=True)
    with opened(out / STORE) as store:
        keys = [_key(sweep, point) for point in points]
        missing = _missing(store, keys, points, retry)
        for done in _carry_out(sweep, crew, store, missing):
            if tell:
                tell(len(points) - len(missing) + done, len(points))
        results = collect(sweep.sweep, points, _all_of(store, keys))
    answer = answer_of(results, sweep.scenario.base.slo)
    _write(answer, sweep.question, table_path, page_path, command)
    return SweepResult(answer, len(missing), table_path, page_path)


def _refuse_foreign(table_path: Path, page_path: Path) -> None:
    """Refuse to write over what is no sweep's, before anything runs."""
    from kvsim.report.shell import is_page
    from kvsim.studies.sweep.table import is_table

    for path, is_mine in ((table_path, is_table), (page_path, is_page)):
        if path.exists() and not (path.is_file() and is_mine(path)):
            what = "is there already, and kvsim did not write it; choose another --out or name"
            raise InputError(Problem(what, str(path)))


def _key(sweep: SweepFile, point: Point) -> str | Failure:
    """Return the key of a point's result, or the failure if its values don't go together."""
    try:
        return point_key(sweep.scenario, point)
    except InputError as error:
        return Failure("refused", str(error))


def _missing(
    store: Store, keys: Sequence[str | Failure], points: Sequence[Point], retry: bool
) -> dict[str, Point]:
    """Return the points to be run, by their keys."""
    statuses = {key: store.status(key) for key in keys if isinstance(key, str)}
    return {
        key: point
        for key, point in zip(keys, points, strict=True)
        if isinstance(key, str) and (statuses[key] is None or (retry and is_failure(statuses[key])))
    }


def _carry_out(
    sweep: SweepFile, crew: Crew, store: Store, missing: dict[str, Point]
) -> Iterator[int]:
    """Simulate points and keep what they come to; yield how many are done."""
    yield 0
    if not missing:  # workers take a second to start
        return
    finished = run_tasks(crew, Work(simulated, sweep.scenario), missing.items())
    for done, (key, result) in enumerate(finished, start=1):
        store.put(key, result)
        yield done


def _all_of(store: Store, keys: Sequence[str | Failure]) -> Iterator[Outcome | Failure]:
    return (key if isinstance(key, Failure) else store.get(key) for key in keys)


def _write(answer: Answer, question: str, table_path: Path, page_path: Path, command: str) -> None:
    from kvsim.studies.sweep.page import build_page
    from kvsim.studies.sweep.table import write_table

    with written_whole(table_path) as working:
        write_table(answer.results, working)
    with written_whole(page_path) as working:
        working.write_text(build_page(answer, question, command), encoding="utf-8")
