"""Which part of a run is exported, and how large the file may become."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.report.series import extent_ns
from kvsim.rundir.read import Run
from kvsim.units import NS_PER_S, format_duration, seconds_to_ns

MB = 10**6

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """A span of simulated time, its end excluded."""

    from_ns: int = 0
    to_ns: int = 2**63 - 1

    def holds(self, times_ns: Ints) -> NDArray[np.bool_]:
        """Tell which instants lie in the span."""
        return (times_ns >= self.from_ns) & (times_ns < self.to_ns)

    def meets(self, starts_ns: Ints, ends_ns: Ints) -> NDArray[np.bool_]:
        """Tell which intervals have an instant in the span, if they start in it or before."""
        return (starts_ns < self.to_ns) & ((ends_ns > self.from_ns) | self.holds(starts_ns))


def chosen_variants(run: Run, names: Sequence[str]) -> list[str]:
    """Return the variants that were asked for in the order of the run; all if none were.

    Raises:
        InputError: The run has no such variant.
    """
    known = list(run.summaries)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(
            *(
                Problem(f"has no variant {name!r}{did_you_mean(name, known)}", str(run.folder))
                for name in unknown
            )
        )
    return [name for name in known if name in names] if names else known


def engines_of(run: Run, variant: str) -> int:
    """Return how many engines a variant has: one for each data-parallel rank of each replica."""
    values: Mapping[str, Any] = run.manifest["variants"][variant]
    return int(values["replicas"]) * int(values["engine"]["data_parallel_size"])


def cut_ns(run: Run, variant: str) -> int | None:
    """Return when a run was cut off; None if it drained."""
    end_s = run.manifest["variants"][variant]["max_simulated_s"]
    return None if end_s is None else seconds_to_ns(end_s)


def end_ns(run: Run, variant: str) -> int:
    """Return when a run ended: its cut, or its last step or finish, whichever is later."""
    cut = cut_ns(run, variant)
    if cut is not None:
        return cut
    tables = run.tables[variant]
    return max(extent_ns(tables["steps"])[1], int(tables["requests"]["finish_ns"].max(initial=0)))


def refuse_large(path: str, size_bytes: int, most_bytes: int, remedy: str) -> None:
    """Refuse to write a file that hardly any tool would open.

    Raises:
        InputError: It would be larger than allowed.
    """
    if size_bytes > most_bytes:
        raise InputError(
            Problem(
                f"would become about {size_bytes / MB:,.0f} MB, more than {most_bytes / MB:g} "
                f"MB: {remedy}",
                path,
            )
        )


def in_words(ns: int) -> str:
    """Show a length of simulated time."""
    return format_duration(ns / NS_PER_S)
