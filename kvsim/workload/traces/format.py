"""What a format of request logs says of itself: its name, how to know it, what columns mean."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from kvsim.policy import Parameters
from kvsim.workload.limits import Printable
from kvsim.workload.traces.trace import Trace

TimeUnit = Literal["s", "ms", "us", "ns", "timestamp"]


class Columns(Parameters):
    """Which columns of a CSV, JSONL or Parquet file hold what."""

    arrival: Printable | None = None
    """When a request was sent; null: the file has no times, and serves for lengths only."""
    prompt_tokens: Printable
    """Prompt lengths."""
    output_tokens: Printable
    """Answer lengths."""
    session: Printable | None = None
    """What requests of one conversation have in common; empty where a request has none."""


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file, enough to recognize its format.

    Attributes:
        kind: How the file is written: lines of JSON (`jsonl`) or one JSON document (`json`).
        names: Columns of the header or schema, or the keys of the first lines' objects.
        first: The first value of each key of a JSONL file that isn't null.
        later: Keys that the first line lacks, and in which line each appears.
        text: The first characters, empty for Parquet.
    """

    kind: Literal["csv", "jsonl", "json", "parquet"]
    names: tuple[str, ...] = ()
    first: Mapping[str, Any] = field(default_factory=dict)
    later: Mapping[str, int] = field(default_factory=dict)
    text: str = ""

    def __str__(self) -> str:
        if self.kind == "parquet":
            return f"it is Parquet with the columns {', '.join(self.names)}"
        line = self.text.split("\n", 1)[0]
        return f"its first line is {line[:120]!r}" if line.strip() else "its first line is empty"


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read, and how strictly.

    Attributes:
        path: The file.
        head: Its beginning.
        columns: Names given by the user, or None.
        time_unit: Unit of the arrivals given by the user, or None.
        skip_bad_rows: So many rows that can't be used are left out.
        where: Only rows whose column has, as text, one of these values.
        times: Whether arrival times are wanted; without, all are 0.
    """

    path: Path
    head: Head
    columns: Columns | None = None
    time_unit: TimeUnit | None = None
    skip_bad_rows: int = 0
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    times: bool = True


class Format(Protocol):
    """A way in which request logs are published; each file of this package has one, `FORMAT`."""

    name: str
    shape: str  # what such a file looks like, for messages

    def recognizes(self, head: Head) -> bool:
        """Return whether a file that begins so is in this format."""
        ...

    def read(self, reading: Reading) -> Trace:
        """Read a file; `InputError` with the place of every bad row (the first twenty)."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """What the rows of a log hold.

    Attributes:
        columns: Which columns hold what.
        time_unit: Unit of the arrivals; None: seconds, or timestamps where a date is written.
        example: A good row, for messages.
        zero_output_fails: A request without answer has failed: it is left out and counted.
        blocks: Column with the hashes of the prompt's blocks, or None.
        block_tokens: Tokens of each of these blocks.
        rows: Turns a JSON document into columns, lists of equal length, or says in a ValueError why
            it can't; None: the file is a table.
    """

    columns: Columns
    time_unit: TimeUnit | None = None
    example: str = ""
    zero_output_fails: bool = False
    blocks: str | None = None
    block_tokens: int = 0
    rows: Callable[[Any], dict[str, list[Any]]] | None = None
