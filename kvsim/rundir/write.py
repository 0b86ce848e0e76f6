"""To make a run: tables, manifest and summary in a folder, complete or not there at all."""

import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import kvsim
from kvsim.engine.recorder import Sink
from kvsim.errors import InputError, Problem
from kvsim.metrics.catalog import METRICS
from kvsim.metrics.summary import Summary, summarize, with_replications
from kvsim.rundir.read import (
    ADVISED,
    ALSO,
    ALWAYS,
    FORMAT,
    MANIFEST,
    REPLICATIONS,
    SUMMARY,
    Run,
    open_run,
    stored_tables,
)
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.schema import BASE
from kvsim.scenario.variant import ResolvedVariant, scenario_hash
from kvsim.simulate import Simulated, run_context, simulate
from kvsim.table_files import Facts, TableWriter, write_facts, write_figures
from kvsim.tables import ADVICE, Column, tables_of
from kvsim.workload.parameters import file_digests
from kvsim.workload.replay import as_sent
from kvsim.workload.requests import RequestTable

# What decides the bytes of the results beside the scenario.
_PINNED = ("numpy", "pyarrow", "simpy", "plotly")

Progress = Callable[[str, int, int], None]  # variant, simulated ns, requests that have left
Further = Mapping[str, Sequence[Summary]]  # of all replications but the first, by variant


@dataclass(frozen=True, slots=True)
class Ran:
    """A run on disk, and what its simulation leaves beside that.

    Attributes:
        run: What is on disk.
        variants: As resolved, the base first.
        requests: What all variants faced.
        simulated: Totals by variant.
    """

    run: Run
    variants: Mapping[str, ResolvedVariant]
    requests: RequestTable
    simulated: Mapping[str, Simulated]


def run_into(
    folder: Path,
    file: ScenarioFile,
    variants: Mapping[str, ResolvedVariant],
    requests: RequestTable,
    progress: Progress | None = None,
    further: Callable[[], Further] = dict,
    command: str = "",
) -> Ran:
    """Simulate all variants; write tables, manifest and summary into an existing folder.

    Args:
        folder: Where the files go.
        file: The scenario as written.
        variants: As resolved, the base first.
        requests: What they face in the first replication, whose tables are written.
        progress: Is told how far that has come.
        further: Simulates the other replications, if there are any; see `kvsim.study.replications`.
        command: What reproduces the run.

    Raises:
        InputError: An engine can't go on with these requests; located in the scenario file.
        OSError: The disk refuses.
    """
    simulated = write_tables(folder, variants, requests, progress, file.located)
    tables = stored_tables(folder, list(variants), requests.class_names)
    first = {
        name: summarize(
            tables[name]["requests"],
            tables[name]["steps"],
            tables[name]["events"],
            run_context(variant, requests, simulated[name]),
        )
        for name, variant in variants.items()
    }
    more = further()
    replicated = {name: [summary, *more.get(name, ())] for name, summary in first.items()}
    summaries = with_replications(replicated)
    _write_replications(folder / REPLICATIONS, replicated)
    about = manifest(file, variants, requests)
    about["notes"] = {
        name: _notes(file, variant, requests, summaries[name]) for name, variant in variants.items()
    }
    _write_json(folder / MANIFEST, about | {"command": command})
    _write_json(folder / SUMMARY, summaries)
    return Ran(open_run(folder), variants, requests, simulated)


def with_memory_map(ran: Ran, folder: Path) -> Run:
    """Write the tables of the memory map, which the report shows, to where the run is by now.

    Raises:
        OSError: The disk refuses.
    """
    from kvsim.memory_map import write_memory_map  # not every run is drawn

    write_memory_map(folder, ran.variants, ran.requests, ran.run.tables, ran.simulated)
    return open_run(folder)


def with_advised(ran: Ran, rows: Sequence[Facts]) -> Ran:
    """Write what `kvsim.studies.advice` found beside a run, and return the run with it.

    Raises:
        OSError: The disk refuses.
    """
    write_facts(ran.run.folder / ADVISED, ADVICE, rows)
    return replace(ran, run=open_run(ran.run.folder))


def _notes(
    file: ScenarioFile, variant: ResolvedVariant, requests: RequestTable, summary: Summary
) -> list[str]:
    """Return what a reader of a variant's results must know, in sentences."""
    notes = [*variant.notes, *requests.notes]
    if (asked := file.base.replications) != summary["replications"]:
        alike = f"The {asked:,} replications are all alike, and tell no more than one: nothing here"
        notes.append(f"{alike} is drawn by chance.")
    return notes


def write_tables(
    folder: Path,
    variants: Mapping[str, ResolvedVariant],
    requests: RequestTable,
    progress: Progress | None = None,
    located: Callable[[Problem, str], Problem] = lambda problem, _: problem,
) -> dict[str, Simulated]:
    """Simulate all variants; their rows go to the three tables in an existing folder.

    Raises:
        InputError: An engine can't go on with these requests; each problem is `located` in the
            file, given the name of its variant.
        OSError: The disk refuses.
    """
    with ExitStack() as open_files:
        writers: dict[str, TableWriter] = {}
        for table, columns in tables_of(requests.class_names).items():
            writers[table] = TableWriter(folder / f"{table}.parquet", columns)
            open_files.callback(writers[table].close)

        def sink_of(variant: str) -> Sink:
            return lambda table, rows: writers[table].write(variant, rows)

        simulated = {}
        for name, variant in variants.items():
            told = (lambda now, left, name=name: progress(name, now, left)) if progress else None
            try:
                simulated[name] = simulate(variant, requests, sink_of(name), told)
            except InputError as error:
                raise InputError(*(located(each, name) for each in error.problems)) from error
    return simulated


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield a folder that becomes `target` if all goes well, and vanishes otherwise.

    An older run in its place is replaced; it stays if anything goes wrong.

    Raises:
        InputError: There is something at `target` that is not a run of kvsim.
        OSError: The disk refuses.
    """
    if target.exists() and (obstacle := _obstacle(target)):
        raise InputError(f"{target}: is there already, and {obstacle}; choose another --out")
    try:
        place = target.resolve()
    except RuntimeError as error:
        raise InputError(f"{target}: its symbolic links go round in a circle") from error
    place.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        folder = working / "new"
        folder.mkdir()
        yield folder
        _move(folder, place, aside=working / "old")
    finally:
        shutil.rmtree(working, ignore_errors=True)


def manifest(
    file: ScenarioFile, variants: Mapping[str, ResolvedVariant], requests: RequestTable
) -> dict[str, Any]:
    """Return what reproduces the run; nothing in it depends on when or where it ran."""
    values = {name: variant.as_dict() for name, variant in variants.items()}
    files = file_digests(file.base.workload)
    return {
        "format": FORMAT,
        "scenario": file.base.name,
        "question": file.question,
        "scenario_sha256": scenario_hash(values, files),
        "seed": file.base.seed,
        "replications": file.base.replications,
        "requests": len(requests),
        "requests_sha256": requests.digest(),
        "horizon_ns": requests.horizon_ns,
        "versions": {
            "kvsim": kvsim.__version__,
            "python": platform.python_version(),
            **{package: version(package) for package in _PINNED},
        },
        "files": files,
        "class_names": list(requests.class_names),
        "variants": values,
        "memory_bytes": {name: variant.memory.split_bytes() for name, variant in variants.items()},
        "step_basis": {
            name: [list(line) for line in variant.cost.basis] for name, variant in variants.items()
        },
    }


def sent_in(ran: Ran) -> RequestTable:
    """Return the requests as they reached the base variant's servers, for a trace of the run."""
    rows = ran.run.tables[BASE]["requests"]
    retried = np.array(ran.simulated[BASE].totals.retried_rows, dtype=np.int64)
    return as_sent(ran.requests, rows["request"], rows["arrival_ns"], retried)


def _obstacle(target: Path) -> str:
    """Say why what is there can't be replaced; nothing for an empty folder, or a run alone."""
    if not target.is_dir():
        return "is no folder"
    names = {path.name for path in target.iterdir()}
    if names and not names >= ALWAYS:
        return "is no run of kvsim"
    others = sorted(names - ALWAYS - ALSO)
    return f"holds {others[0]!r} beside a run of kvsim" if others else ""


def _move(folder: Path, place: Path, aside: Path) -> None:
    """Rename a folder to where an older one may stand, which is put aside, and back on failure."""
    try:
        if place.exists():
            place.rename(aside)
        folder.rename(place)
    except BaseException:
        if aside.exists() and not place.exists():
            aside.rename(place)
        raise


def _write_replications(path: Path, replicated: Mapping[str, Sequence[Summary]]) -> None:
    """Write the figures of each replication of each variant, one a row."""
    places = [(name, number) for name, those in replicated.items() for number in range(len(those))]
    rows = [replicated[name][number]["figures"] for name, number in places]
    columns = [Column(name, metric.unit, metric.description) for name, metric in METRICS.items()]
    write_figures(path, places, columns, rows)


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
