"""Directories of runs whose tables are made up: what differs between them is known."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from kvsim.metrics import RunContext
from kvsim.metrics.catalog import METRICS
from kvsim.metrics.summary import summarize, with_replications
from kvsim.rng import stream
from kvsim.rundir.read import FORMAT
from kvsim.table_files import TableWriter, write_figures
from kvsim.tables import EVENTS, OUTCOMES, REQUESTS, STEPS, Column, tables_of
from tests.cli.conftest import command_line  # noqa: F401

S = 1_000_000_000
MS = 1_000_000
SLO = {"ttft_p99_s": 2.0}


def requests_table(count=2000, seed=1, group=0.9, **columns):
    """Requests whose latencies resemble those of the requests before them."""
    random = stream(seed, "compare-tests")
    arrival = np.cumsum(random.exponential(0.2 * S, count)).astype(np.int64)
    wait = np.exp(correlated(random, count, group))
    queue = (50 * MS * wait).astype(np.int64)
    output = random.integers(2, 300, count)
    numbers = np.arange(count)
    made = {column.name: np.zeros(count, np.int64) for column in REQUESTS} | {
        "request": numbers,
        "group": numbers,
        "session": numbers,
        "prompt_tokens": random.integers(10, 500, count),
        "max_tokens": output,
        "output_tokens": output,
        "arrival_ns": arrival,
        "queued_ns": arrival,
        "admitted_ns": arrival + queue,
        "first_token_ns": arrival + queue + 30 * MS,
        "finish_ns": arrival + queue + 30 * MS + 20 * MS * (output - 1),
    }
    return made | columns


def correlated(random, count, weight):
    """Return a normal series in which each value hangs on the one before."""
    noise = random.standard_normal(count) * np.sqrt(1 - weight**2)
    series = np.zeros(count)
    series[:1] = random.standard_normal()
    for place in range(1, count):
        series[place] = weight * series[place - 1] + noise[place]
    return series


def later(requests, by_ns):
    """Return the same requests, each served so much later."""
    moved = ("admitted_ns", "first_token_ns", "finish_ns")
    return requests | {name: requests[name] + by_ns for name in moved}


def failed(requests, which, outcome="rejected"):
    """Return the same requests, some of which never got anything."""
    out = {name: column.copy() for name, column in requests.items()}
    out["outcome"][which] = OUTCOMES.index(outcome)
    for name in ("admitted_ns", "first_token_ns"):
        out[name][which] = -1
    out["finish_ns"][which] = out["arrival_ns"][which]
    return out


@dataclass(frozen=True)
class Made:
    """What a run's directory says beside its tables."""

    scenario: str = "chat"
    sha: str = "aa" * 32
    seed: int = 0
    horizon_ns: int = 400 * S
    slo: Mapping | None = None
    price: float | None = 2.0
    class_names: tuple = ()
    warmup_s: float = 0.0
    settings: Mapping | None = None


def write_run(folder, variants, made=Made(), replications=()):
    """Write a run; `replications` are further tables of requests of the base.

    Args:
        folder: Where.
        variants: The table of requests by name of the variant.
        made: All else.
        replications: By variant, the tables of its further replications.
    """
    folder.mkdir(parents=True)
    nothing = {
        name: {column.name: np.zeros(0, np.int64) for column in columns}
        for name, columns in (("steps", STEPS), ("events", EVENTS))
    }
    context = RunContext(
        horizon_ns=made.horizon_ns,
        kv_capacity_tokens=1000,
        kv_bytes_per_token=1.0,
        max_num_seqs=64,
        warmup_ns=round(made.warmup_s * S),
        slo=made.slo,
        class_names=made.class_names,
        price_usd_per_gpu_hour=made.price,
    )

    def summary_of(requests):
        return summarize(requests, nothing["steps"], nothing["events"], context)

    more = dict(replications)
    summaries = {
        name: [summary_of(table) for table in (requests, *more.get(name, ()))]
        for name, requests in variants.items()
    }
    _write_tables(folder, variants, made.class_names)
    _write_replications(folder, summaries)
    (folder / "summary.json").write_text(json.dumps(with_replications(summaries)))
    (folder / "manifest.json").write_text(json.dumps(_manifest(made, variants)))
    return folder


def _write_tables(folder, variants, class_names):
    for table, columns in tables_of(class_names).items():
        writer = TableWriter(folder / f"{table}.parquet", columns)
        for name, requests in variants.items():
            if table == "requests":
                rows = np.stack([requests[column.name] for column in columns], axis=1)
                writer.write(name, np.asfortranarray(rows))
        writer.close()


def _write_replications(folder, summaries):
    places = [(name, number) for name, those in summaries.items() for number in range(len(those))]
    columns = [Column(name, metric.unit, "") for name, metric in METRICS.items()]
    rows = [summaries[name][number]["figures"] for name, number in places]
    write_figures(folder / "replications.parquet", places, columns, rows)


def _manifest(made, variants):
    inputs = {
        "engine": {"max_num_seqs": 64} | dict(made.settings or {}),
        "slo": made.slo,
        "warmup_s": made.warmup_s,
        "notes": ["A note."],
    }
    return {
        "format": FORMAT,
        "scenario": made.scenario,
        "question": "",
        "scenario_sha256": "bb" * 32,
        "seed": made.seed,
        "replications": 1,
        "requests": 1,
        "requests_sha256": made.sha,
        "horizon_ns": made.horizon_ns,
        "versions": {"kvsim": "1"},
        "files": {},
        "class_names": list(made.class_names),
        "variants": {
            name: inputs | {"kv_cache": {"kind": "paged" if name == "base" else name}}
            for name in variants
        },
        "memory_bytes": {name: {} for name in variants},
        "step_basis": {name: [] for name in variants},
        "notes": {name: [] for name in variants},
        "command": "kvsim run s.yaml",
    }


class Bench:
    """Makes runs in a folder, and compares them."""

    S, MS, SLO, Made = S, MS, SLO, Made
    requests_table = staticmethod(requests_table)
    correlated = staticmethod(correlated)
    later = staticmethod(later)
    failed = staticmethod(failed)
    write_run = staticmethod(write_run)
    replace = staticmethod(replace)

    def __init__(self, folder):
        self.folder = folder

    def run(self, name, requests, replications=(), **made):
        """Write a run of one variant; return where it is."""
        further = {"base": replications}
        return str(write_run(self.folder / name, {"base": requests}, Made(**made), further))

    def against(self, *words):
        """Compare the first with each of the others."""
        from kvsim.compare.figures import against
        from kvsim.compare.sides import open_sides

        base, *others = open_sides(words)
        found = [against(base, other) for other in others]
        return found[0] if len(found) == 1 else found


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)
