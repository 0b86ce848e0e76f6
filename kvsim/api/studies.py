"""`kvsim.sweep`, `kvsim.capacity`, `kvsim.plan`: many simulations, and the answer they give."""

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.api import html
from kvsim.api.scenarios import AnyScenario, load, plain
from kvsim.report.figure import Table
from kvsim.scenario.change import changed
from kvsim.scenario.document import document_of
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.schema import BASE
from kvsim.statistics import CONFIDENCE
from kvsim.studies.capacity.answer import CapacityAnswer
from kvsim.studies.capacity.search import Options, find_capacity
from kvsim.studies.plan.answer import as_dict, candidate_table, sentences
from kvsim.studies.plan.candidates import Options as PlanOptions
from kvsim.studies.plan.result import Plan
from kvsim.studies.plan.search import find_plan
from kvsim.studies.sweep.answer import Answer
from kvsim.studies.sweep.load import SweepFile, load_sweep, sweep_of
from kvsim.studies.sweep.run import SweepResult as Swept
from kvsim.studies.sweep.run import run_sweep
from kvsim.studies.sweep.tables import point_rows, shown_first
from kvsim.study.local import crew_of
from kvsim.study.tasks import Tell as Progress

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 20


def sweep(
    sweep: str | PathLike[str] | Mapping[str, Any],
    *,
    scenario: AnyScenario | None = None,
    out: str | PathLike[str] | None = None,
    jobs: int | None = 1,
    retry: bool = False,
    progress: Progress | None = None,
) -> "SweepResult":
    """Simulate all points of a sweep, as `kvsim sweep` does.

    Args:
        sweep: Path of a sweep file, or what such a file holds as a dictionary:
            `{"axes": {"workload.arrivals.rate_per_s": [4, 8, 12]}, "replications": 3}`.
        scenario: What is swept, as of `kvsim.load`; it takes the place of the dictionary's.
        out: Directory for the table, the page and the results of points, which are not run again;
            None: a temporary one, as long as the result lives.
        jobs: Processes; None: one a core. With more than one, a script needs
            `if __name__ == "__main__":`.
        retry: Whether points that failed before are run again.
        progress: Told how many points are done, of how many.

    Raises:
        kvsim.errors.InputError: The sweep can't be run.
    """
    loaded = _loaded(sweep, None if scenario is None else load(scenario))
    folder = Path(tempfile.mkdtemp(prefix="kvsim-")) if out is None else Path(out)
    try:
        found = run_sweep(loaded, folder, crew_of(jobs), retry=retry, tell=progress)
    except BaseException:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return SweepResult(found, folder if out is None else None)


def _loaded(
    sweep: str | PathLike[str] | Mapping[str, Any], scenario: ScenarioFile | None
) -> SweepFile:
    if not isinstance(sweep, Mapping):
        return load_sweep(Path(sweep))
    data = sweep if scenario is None else {**sweep, "scenario": scenario.document.file}
    return sweep_of(document_of(data, "sweep"), "sweep", scenario or Path())


class SweepResult:
    """A sweep that was run: its answer, and a table of all points."""

    def __init__(self, found: Swept, temporary: Path | None = None) -> None:
        self._found = found
        if temporary is not None:
            weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)

    @property
    def answer(self) -> Answer:
        """How many points meet the SLO, which is the cheapest, what lies on the front."""
        return self._found.answer

    @property
    def table(self) -> "pd.DataFrame":
        """One row a replication of each point: its axes, status, verdict and figures."""
        return self._found.table

    @property
    def page_path(self) -> Path:
        """The page, as HTML."""
        return self._found.page_path

    def __repr__(self) -> str:
        return f"<kvsim sweep: {self.answer.sentence}>"

    def _repr_html_(self) -> str:
        header, rows = point_rows(self.answer, shown_first(self.answer)[:_MOST_ROWS])
        return html.page(self.answer.sentence, "", Table(header, rows))


def capacity(
    scenario: AnyScenario,
    *,
    changes: Mapping[str, Any] | None = None,
    variant: str = BASE,
    vary: str | None = None,
    between: tuple[float | None, float | None] = (None, None),
    smallest: bool = False,
    goodput: float | None = None,
    precision: float = 0.05,
    max_replications: int = 64,
    budget_s: float | None = None,
    confidence: float = CONFIDENCE,
    jobs: int | None = 1,
    progress: Progress | None = None,
) -> "CapacityResult":
    """Search the highest load, or another value, that meets the SLO, as `kvsim capacity` does.

    Args:
        scenario: What `kvsim.load` takes or returns.
        changes: Dotted path of a value → the value in all simulations.
        variant: Variant of the scenario.
        vary: Dotted path of what is varied; None: the load.
        between: Values that may be tried, from and to.
        smallest: Search the smallest value that meets the SLO, not the largest.
        goodput: Share of requests that must meet all bounds, instead of the targets that bind
            single requests.
        precision: Width of the interval, as a share of the value, at which the search ends.
        max_replications: Most replications at one value.
        budget_s: Most time that the search may take; None: no limit.
        confidence: Of the interval.
        jobs: Processes, as of `kvsim.sweep`.
        progress: Told how many simulations are done, of so many as are planned so far.

    Raises:
        kvsim.errors.InputError: There is no SLO, or nothing to vary, or it can't be simulated.
    """
    options = Options(
        variant=variant,
        changes=plain(changes),
        vary=vary,
        start=between[0],
        end=between[1],
        smallest=smallest,
        goodput=goodput,
        precision=precision,
        max_replications=max_replications,
        budget_s=budget_s,
        confidence=confidence,
    )
    told = (lambda done, of, _: progress(done, of)) if progress else None
    return CapacityResult(find_capacity(load(scenario), options, crew_of(jobs), told))


class CapacityResult:
    """The answer of a search: `answer.value` with its interval, and every value that was tried."""

    def __init__(self, answer: CapacityAnswer) -> None:
        self.answer = answer

    @property
    def tried(self) -> "pd.DataFrame":
        """One row a value that was tried: what its replications say."""
        return _frame(self.answer.tried)

    @property
    def trials(self) -> "pd.DataFrame":
        """One row a simulation."""
        return _frame(self.answer.trials)

    def __repr__(self) -> str:
        return f"<kvsim capacity: {self.answer.sentence}>"

    def _repr_html_(self) -> str:
        rows = [
            [f"{one.value:.4g}", str(one.replications), one.status] for one in self.answer.tried
        ]
        table = Table([self.answer.path, "replications", ""], rows)
        return html.page(self.answer.sentence, " ".join(self.answer.notes), table)


def _frame(rows: Sequence[Any]) -> "pd.DataFrame":
    import pandas as pd

    return pd.json_normalize([asdict(row) for row in rows], sep=".")


def plan(
    scenario: AnyScenario,
    *,
    changes: Mapping[str, Any] | None = None,
    options: PlanOptions | None = None,
    jobs: int | None = 1,
    progress: Progress | None = None,
) -> "PlanResult":
    """Search the cheapest fleet for the scenario's demand, as `kvsim plan` does.

    Args:
        scenario: What `kvsim.load` takes or returns; its base is planned for.
        changes: Dotted path of a value → the value here.
        options: What may be chosen: `kvsim.PlanOptions(gpus=["h100_sxm"], growth=1.5, spare=1)`.
        jobs: Processes, as of `kvsim.sweep`.
        progress: Told how many candidates are done, of how many.

    Raises:
        kvsim.errors.InputError: There is no SLO, no candidate, or the traffic can't be drawn.
    """
    file = changed(load(scenario), plain(changes))
    found = find_plan(file, options or PlanOptions(), crew_of(jobs), tell=progress)
    return PlanResult(found)


class PlanResult:
    """The cheapest fleet that was found, and the candidates that it was compared with."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def summary(self) -> dict[str, Any]:
        """The plan as plain data, as `kvsim plan --json` prints it."""
        return as_dict(self.plan)

    @property
    def candidates(self) -> "pd.DataFrame":
        """One row a candidate of which fleets were simulated, the cheapest first; as text."""
        import pandas as pd

        table = candidate_table(self.plan)
        return pd.DataFrame(table.rows, columns=list(table.header))

    def __repr__(self) -> str:
        return f"<kvsim plan: {sentences(self.plan)[0]}>"

    def _repr_html_(self) -> str:
        first, *others = sentences(self.plan)
        return html.page(first, " ".join(others), candidate_table(self.plan))
