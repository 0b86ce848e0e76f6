"""What the report is built from: a run's tables and summaries, and what was put into it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsim.metrics.summary import Summary
from kvsim.tables import Columns


@dataclass(frozen=True, slots=True)
class BasisLine:
    """On what the price of one component of the engine's step rests.

    `basis` is one of `kvsim.cost`'s words: measured, interpolated, extrapolated, physical, given.
    """

    component: str
    basis: str
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One variant of a scenario: its tables, its summary, and what it was resolved to.

    Attributes:
        name: The variant's name; the base is called `base`.
        summary: What `kvsim.metrics.summary.summarize` returns.
        requests: Columns of the requests table, see `kvsim.tables`; likewise `steps`, `events`.
        memory_looks: When the KV cache was looked at and what was seen in sum, if it was; likewise
            `memory_map`, what lay where.
        inputs: Resolved parameters as nested mappings.
        memory_bytes: The memory of one GPU, line by line: words → bytes.
        basis: What the price of each component rests on.
        notes: What the reader must know, for example defaults that differ from vLLM's.
    """

    name: str
    summary: Summary
    requests: Columns
    steps: Columns
    events: Columns
    memory_looks: Columns | None = None
    memory_map: Columns | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    memory_bytes: Mapping[str, float] = field(default_factory=dict)
    basis: Sequence[BasisLine] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ReportInput:
    """A whole run; the same input gives the same page, byte for byte.

    Attributes:
        scenario: Name of the scenario.
        question: What it asks, from its first lines of comment.
        variants: The base first; all faced the same requests.
        warmup_s: Requests that arrive before it don't count in latencies.
        limits: What no simulation models, one sentence each.
        facts: Short facts for the end of the page, for example seed, scenario hash, versions.
        command: What reproduces the run.
        advice: What to change next, see `kvsim.tables.ADVICE`; empty if nobody asked.
    """

    scenario: str
    question: str
    variants: Sequence[Variant]
    warmup_s: float = 0.0
    limits: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    advice: Sequence[Mapping[str, Any]] = ()
