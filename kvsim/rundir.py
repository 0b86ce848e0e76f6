"""A run's directory: tables, manifest, summary, report; complete, or not there at all."""

import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kvsim
from kvsim.cost import StepShape
from kvsim.engine.recorder import Sink
from kvsim.errors import InputError
from kvsim.metrics import RunContext, StepCosts
from kvsim.metrics.summary import Summary, summarize
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.variant import ResolvedVariant, scenario_hash
from kvsim.simulate import Simulated, simulate
from kvsim.tables import TABLES, Columns, TableWriter, read_table
from kvsim.units import seconds_to_ns
from kvsim.workload.requests import RequestTable

MANIFEST = "manifest.json"
SUMMARY = "summary.json"
REPORT = "report.html"
# What decides the bytes of the results beside the scenario.
_PINNED = ("numpy", "pyarrow", "simpy", "plotly")

Progress = Callable[[str, int, int], None]  # variant, simulated ns, requests that have left


@dataclass(frozen=True, slots=True)
class Run:
    """A run whose tables are on disk.

    Attributes:
        file: The scenario as written.
        variants: As resolved, the base first.
        requests: What all of them faced.
        tables: Columns by table, by variant.
        summaries: Figures by variant.
        simulated: Totals and cost by variant.
    """

    file: ScenarioFile
    variants: Mapping[str, ResolvedVariant]
    requests: RequestTable
    tables: Mapping[str, Mapping[str, Columns]]
    summaries: Mapping[str, Summary]
    simulated: Mapping[str, Simulated]


def run_into(
    folder: Path,
    file: ScenarioFile,
    variants: Mapping[str, ResolvedVariant],
    requests: RequestTable,
    progress: Progress | None = None,
) -> Run:
    """Simulate all variants; write tables, manifest and summary into an existing folder.

    Raises:
        InputError: A deployment can't be priced.
        OSError: The disk refuses.
    """
    simulated = write_tables(folder, variants, requests, progress)
    tables = {
        name: {
            table: read_table(folder / f"{table}.parquet", columns, name)
            for table, columns in TABLES.items()
        }
        for name in variants
    }
    summaries = {
        name: summarize(
            tables[name]["requests"],
            tables[name]["steps"],
            tables[name]["events"],
            _context(variant, requests, simulated[name], tables[name]["steps"]),
        )
        for name, variant in variants.items()
    }
    _write_json(folder / MANIFEST, manifest(file, variants, requests))
    _write_json(folder / SUMMARY, summaries)
    return Run(file, variants, requests, tables, summaries, simulated)


def write_tables(
    folder: Path,
    variants: Mapping[str, ResolvedVariant],
    requests: RequestTable,
    progress: Progress | None = None,
) -> dict[str, Simulated]:
    """Simulate all variants; their rows go to the three tables in an existing folder.

    Raises:
        InputError: A deployment can't be priced.
        OSError: The disk refuses.
    """
    writers = {
        table: TableWriter(folder / f"{table}.parquet", columns)
        for table, columns in TABLES.items()
    }

    def sink_of(variant: str) -> Sink:
        def sink(table: str, rows: NDArray[np.int64]) -> None:
            writers[table].write(variant, rows)

        return sink

    simulated = {}
    try:
        for name, variant in variants.items():
            told = (lambda now, left, name=name: progress(name, now, left)) if progress else None
            simulated[name] = simulate(variant, requests, sink_of(name), told)
    finally:
        for writer in writers.values():
            writer.close()
    return simulated


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield a folder that becomes `target` if all goes well, and vanishes otherwise.

    An older run in its place is replaced.

    Raises:
        InputError: There is something at `target` that is not a run of kvsim.
        OSError: The disk refuses.
    """
    if target.exists() and not _replaceable(target):
        raise InputError(f"{target}: is there already and is no run of kvsim; choose another --out")
    target.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        folder = working / "new"
        folder.mkdir()
        yield folder
        if target.exists():
            target.rename(working / "old")
        folder.rename(target)
    finally:
        shutil.rmtree(working, ignore_errors=True)


def manifest(
    file: ScenarioFile, variants: Mapping[str, ResolvedVariant], requests: RequestTable
) -> dict[str, Any]:
    """Return what reproduces the run; nothing in it depends on when or where it ran."""
    return {
        "scenario": file.base.name,
        "question": file.question,
        "scenario_sha256": scenario_hash(variants),
        "seed": file.base.seed,
        "requests": len(requests),
        "requests_sha256": requests.digest(),
        "horizon_ns": requests.horizon_ns,
        "versions": {
            "kvsim": kvsim.__version__,
            "python": platform.python_version(),
            **{package: version(package) for package in _PINNED},
        },
        "variants": {name: variant.as_dict() for name, variant in variants.items()},
    }


def step_shape(steps: Columns) -> StepShape:
    """Return what the cost of recorded steps depends on."""
    names = (field for field in StepShape.__dataclass_fields__)
    return StepShape(**{name: steps[name] for name in names})


def _context(
    variant: ResolvedVariant, requests: RequestTable, simulated: Simulated, steps: Columns
) -> RunContext:
    scenario, cost, shape = variant.scenario, simulated.cost, step_shape(steps)
    return RunContext(
        horizon_ns=requests.horizon_ns,
        kv_capacity_tokens=simulated.kv_capacity_tokens,
        kv_bytes_per_token=variant.memory.kv_bytes_per_token,
        max_num_seqs=variant.engine.max_num_seqs,
        replicas=scenario.replicas,
        num_gpus=variant.num_gpus,
        warmup_ns=seconds_to_ns(scenario.warmup_s),
        slo=scenario.slo,
        price_usd_per_gpu_hour=variant.price.usd_per_gpu_hour if variant.price else None,
        step_costs=StepCosts(tuple(cost.parts_ns(shape).items()), *cost.work(shape), *cost.peaks()),
    )


def _replaceable(target: Path) -> bool:
    return target.is_dir() and ((target / MANIFEST).exists() or not any(target.iterdir()))


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
