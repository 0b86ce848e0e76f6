"""A point: one variant of a scenario with some values changed, drawn once; run in memory."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kvsim
from kvsim.errors import InputError
from kvsim.metrics import RunContext
from kvsim.metrics.summary import Summary, summarize
from kvsim.scenario.change import changed
from kvsim.scenario.files import file_digests_of, files_of
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all
from kvsim.scenario.schema import BASE
from kvsim.scenario.variant import ResolvedVariant
from kvsim.simulate import run_context, simulate
from kvsim.tables import TABLES, Columns
from kvsim.workload.requests import RequestTable


@dataclass(frozen=True, slots=True)
class Point:
    """What is simulated once.

    Attributes:
        changes: Dotted path of a value → the value here, as in `kvsim.scenario.change`.
        variant: Variant of the file that is changed.
        replication: Number of the repetition. Points that differ in nothing else are independent
            draws; points of one replication face the same draws (common random numbers).
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    variant: str = BASE
    replication: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """A point before it is run: every mistake in it is told by now."""

    variant: ResolvedVariant
    requests: RequestTable
    replication: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A point after it was run; `tables` has those that were kept."""

    variant: ResolvedVariant
    requests: RequestTable
    tables: Mapping[str, Columns]
    context: RunContext

    def summary(self) -> Summary:
        """Return the figures, as in the summary of a run; needs all tables."""
        requests, steps, events = (self.tables[name] for name in ("requests", "steps", "events"))
        return summarize(requests, steps, events, self.context)


def point_key(file: ScenarioFile, point: Point) -> str:
    """Return a SHA-256 of all that decides a point's results: values, files, version, replication.

    Neither a default that is written out nor the scenario's name changes it. Figures of the
    catalogs of models and GPUs belong to kvsim's version.

    Raises:
        InputError: The changes can't be made, or a file can't be read.
    """
    scenario = changed(file, point.changes, point.variant).base
    values = {
        "scenario": scenario.model_dump(mode="json", exclude={"name", "variants", "replications"}),
        "files": file_digests_of(scenario, file.base_dir),
        "replication": point.replication,
        "kvsim": kvsim.__version__,
    }
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def files_of_point(file: ScenarioFile, point: Point) -> set[Path]:
    """Return the files that a point reads, beside the scenario's own; at least those.

    A point that can't be made reads none.
    """
    if not any(_may_name_a_file(value) for value in point.changes.values()):
        variants = [file.variants[point.variant]] if point.variant in file.variants else []
    else:
        try:
            variants = [changed(file, point.changes, point.variant).base]
        except InputError:
            variants = []
    return {path for one in variants for path in files_of(one, file.base_dir).values()}


def _may_name_a_file(value: Any) -> bool:
    return isinstance(value, str | dict | list)


def make_ready(file: ScenarioFile, point: Point) -> Ready:
    """Resolve a point and draw its requests.

    Raises:
        InputError: The changes can't be made, or such a server would not start.
    """
    alone = changed(file, point.changes, point.variant)
    variants = resolve_all(alone)
    return Ready(
        variants[BASE], draw_requests(alone, variants, point.replication), point.replication
    )


def run_ready(ready: Ready, keep: Sequence[str] = tuple(TABLES)) -> Finished:
    """Simulate a point, and keep some of its tables in memory.

    Raises:
        InputError: The engine can't go on with these requests.
        BrokenLawError: kvsim contradicts itself.
    """
    kept = KeptTables(keep)
    simulated = simulate(ready.variant, ready.requests, kept, replication=ready.replication)
    context = run_context(ready.variant, ready.requests, simulated)
    tables = {table: kept.columns(table) for table in keep}
    return Finished(ready.variant, ready.requests, tables, context)


def run_point(file: ScenarioFile, point: Point) -> Finished:
    """Resolve, draw and simulate a point; all its tables are kept in memory.

    Raises:
        InputError: The point can't be simulated.
    """
    return run_ready(make_ready(file, point))


class KeptTables:
    """Takes rows as they come, and keeps those of some tables."""

    def __init__(self, tables: Sequence[str]) -> None:
        self._chunks: dict[str, list[NDArray[np.int64]]] = {table: [] for table in tables}

    def __call__(self, table: str, rows: NDArray[np.int64]) -> None:
        """Take rows of a table; see `kvsim.engine.recorder.Sink`."""
        if table in self._chunks:
            self._chunks[table].append(rows.copy())

    def columns(self, table: str) -> Columns:
        """Return a table by its columns."""
        chunks, columns = self._chunks[table], TABLES[table]
        rows = np.concatenate(chunks) if chunks else np.empty((0, len(columns)), np.int64)
        return {column.name: rows[:, place] for place, column in enumerate(columns)}
