"""`kvsim.run`: simulate a scenario and its variants; the result as tables of pandas."""

import shlex
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.api import html
from kvsim.api.scenarios import AnyScenario, chosen, load, plain
from kvsim.metrics.catalog import METRICS, format_figure, format_range
from kvsim.metrics.classes import all_targets, met_word
from kvsim.metrics.summary import Summary, certainty, compare, estimate
from kvsim.report.figure import Table
from kvsim.rundir.read import REPLICATIONS
from kvsim.rundir.write import Further, Ran, new_directory, run_into, with_memory_map
from kvsim.scenario.load import with_replications
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all
from kvsim.scenario.schema import BASE
from kvsim.study.local import crew_of
from kvsim.study.replications import further_replications
from kvsim.table_files import VARIANT

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[str, int, int], None]  # what is under way, how much of it is done, of how much


def run(
    scenario: AnyScenario,
    *,
    changes: Mapping[str, Any] | None = None,
    variants: Sequence[str] | None = None,
    replications: int | None = None,
    jobs: int | None = 1,
    progress: Progress | None = None,
) -> "RunResult":
    """Simulate a scenario and its variants, as `kvsim run` does.

    Args:
        scenario: What `kvsim.load` takes or returns.
        changes: Dotted path of a value → the value here, in all variants:
            `{"engine.max_num_seqs": 64}`.
        variants: Which variants run beside the base; None: all.
        replications: Independent draws; None: as the scenario says.
        jobs: Processes for further replications; None: one a core. With more than one, a script
            needs `if __name__ == "__main__":`.
        progress: Told what is under way (a variant, or `replications`), how many requests or
            simulations are done, and of how many.

    Raises:
        kvsim.errors.InputError: The scenario can't be simulated.
    """
    original, differs = load(scenario), plain(changes)
    file = with_replications(chosen(original, differs, variants), replications)
    resolved = resolve_all(file)
    requests = draw_requests(file, resolved)

    def tell(variant: str, _: int, left: int) -> None:
        if progress:
            progress(variant, left, len(requests))

    def further() -> Further:
        count = file.base.replications
        done = (lambda k, of: progress("replications", k, of)) if progress else None
        return further_replications(original, list(resolved), count, crew_of(jobs), differs, done)

    repeated = not differs and variants is None and isinstance(scenario, str | PathLike)
    command = _command(scenario, replications) if repeated else ""
    told = tell if progress else None
    folder = Path(tempfile.mkdtemp(prefix="kvsim-"))
    try:
        ran = run_into(folder, file, resolved, requests, told, further, command)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return RunResult(ran)


def _command(scenario: object, replications: int | None) -> str:
    again = [] if replications is None else ["--replications", str(replications)]
    return shlex.join(["kvsim", "run", str(scenario), *again])


class RunResult:
    """A run: its answer, and its tables, which lie in a temporary folder as long as this lives.

    Attributes:
        summary: By variant, what `summary.json` holds; see docs/metrics.md.
    """

    def __init__(self, ran: Ran) -> None:
        self._ran, self._run, self._folder = ran, ran.run, ran.run.folder
        self._cleaner = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    @property
    def summary(self) -> Mapping[str, Summary]:
        """By variant, what `summary.json` holds."""
        return self._run.summaries

    @property
    def verdict(self) -> dict[str, Any]:
        """On the base: `met`, `certain`, `sentence`, `targets`."""
        verdict: dict[str, Any] = self.summary[BASE]["verdict"]
        return verdict

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """One row a request of each variant; columns and units as in docs/results.md."""
        return self._table("requests.parquet")

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """One row an engine iteration of each replica."""
        return self._table("steps.parquet")

    @cached_property
    def events(self) -> "pd.DataFrame":
        """Preemptions, rejections, compactions and others."""
        return self._table("events.parquet")

    @cached_property
    def replications(self) -> "pd.DataFrame":
        """One row a replication of each variant: its figures."""
        return self._table(REPLICATIONS)

    @cached_property
    def figures(self) -> "pd.DataFrame":
        """The figures by metric and variant: value, interval (`low`, `high`), `count`, unit.

        `count` is how many independent observations they rest on. With several replications the
        value is the mean over them.
        """
        import pandas as pd

        rows = {
            (name, variant): _figure(summary, name)
            for name in METRICS
            for variant, summary in self.summary.items()
        }
        index = pd.MultiIndex.from_tuples(rows, names=["metric", VARIANT])
        columns = ["value", "low", "high", "count", "unit"]
        frame = pd.DataFrame(list(rows.values()), index=index, columns=columns)
        return frame.astype(dict.fromkeys(columns[:4], float))

    def save(self, folder: str | PathLike[str], report: bool = True) -> Path:
        """Write the run as `kvsim run` does: the same files, the same bytes.

        Args:
            folder: Where; an older run there is replaced.
            report: Write the HTML report, too.

        Returns:
            The folder.

        Raises:
            kvsim.errors.InputError: There is something else than a run.
        """
        target = Path(folder)
        with new_directory(target) as new:
            shutil.copytree(self._folder, new, dirs_exist_ok=True)
            if report:
                from kvsim.report.run import write_report

                write_report(with_memory_map(self._ran, new))
        return target

    def __repr__(self) -> str:
        return f"<kvsim run of {self._run.scenario}: {self.verdict['sentence']}>"

    def _repr_html_(self) -> str:
        sentence = self.verdict["sentence"]
        return html.page(sentence, certainty(self.summary[BASE]), self._targets(), self._compared())

    def _table(self, name: str) -> "pd.DataFrame":
        import pandas as pd
        from pyarrow import parquet

        path = self._folder / name
        frame = pd.read_parquet(path)
        about = ((field.name, field.metadata or {}) for field in parquet.read_schema(path))
        frame.attrs["units"] = {
            column: meta[b"unit"].decode() for column, meta in about if b"unit" in meta
        }
        return frame

    def _targets(self) -> Table:
        rows = []
        for of_class, target in all_targets(self.summary[BASE]):
            figure = target["figure"]
            rows.append(
                [
                    f"{of_class}: {target['name']}" if of_class else target["name"],
                    format_figure(figure, target["value"]),
                    format_range(figure, target["low"], target["high"]),
                    format_figure(figure, target["bound"]),
                    met_word(target),
                ]
            )
        return Table(["target", "found", "95 % interval", "at most", ""], rows)

    def _compared(self) -> Table:
        rows = [
            [row["label"], *(format_figure(row["name"], row["values"][v]) for v in self.summary)]
            for row in compare(self.summary)
        ]
        return Table(["", *self.summary], rows)


def _figure(summary: Summary, name: str) -> list[Any]:
    interval = summary["uncertainty"].get(name, {})
    bounds = (interval.get(part) for part in ("low", "high", "count"))
    return [estimate(summary, name), *bounds, METRICS[name].unit]
