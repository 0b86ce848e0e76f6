"""The steps of one replica on their way to the table: packed rows, and stretches of quiet steps.

In a stretch every step decodes the same sequences. It is kept as its first row and the few values
that differ from step to step; all stretches are spelled out together, by numpy, when a chunk leaves.
"""

from array import array
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from kvsim.tables import STEPS

_COLUMN = {column.name: index for index, column in enumerate(STEPS)}
_STEP, _START, _DURATION = _COLUMN["step"], _COLUMN["start_ns"], _COLUMN["duration_ns"]
_SEQS, _CONTEXT = _COLUMN["decode_seqs"], _COLUMN["decode_kv_tokens"]
_HELD, _TO_COME, _INSIDE = (_COLUMN[f"kv_{name}_tokens"] for name in ("held", "to_come", "inside"))
_FREE = _COLUMN["kv_free_tokens"]

Rows = NDArray[np.int64]


class StepRows:
    """Collects the steps of a replica in order."""

    __slots__ = ("_durations_ns", "_inside", "_kept", "_rows", "_taken", "append", "pack")

    def __init__(self) -> None:
        # In front of a row: the steps of its stretch, 0 for a row alone; what each of them adds
        # to the slots held.
        self.pack = Struct(f"={len(STEPS) + 2}q").pack
        self._rows: list[bytes] = []
        self.append = self._rows.append
        self._durations_ns, self._taken, self._inside = array("q"), array("q"), array("q")
        self._kept: Rows = np.zeros((0, len(STEPS)), dtype=np.int64)

    def add_stretch(
        self,
        first_row: bytes,
        durations_ns: list[int],
        taken_tokens: list[int],
        inside_tokens: list[int],
    ) -> None:
        """Take a stretch: the packed row of its first step, and what differs from step to step.

        Args:
            first_row: In it kv_free_tokens has the taken slots as well; the other columns that
                vary are 0.
            durations_ns: Of the steps.
            taken_tokens: Slots that are owned after each.
            inside_tokens: Those of them that no token will ever fill.
        """
        self.append(first_row)
        self._durations_ns.extend(durations_ns)
        self._taken.extend(taken_tokens)
        self._inside.extend(inside_tokens)

    def take(self, before_ns: int | None) -> Rows:
        """Return the rows of steps that start before an instant, or all; others stay."""
        rows = np.concatenate([self._kept, self._spelled_out()])
        end = len(rows) if before_ns is None else int(np.searchsorted(rows[:, _START], before_ns))
        self._kept = rows[end:].copy()
        return rows[:end]

    def _spelled_out(self) -> Rows:
        packed = np.frombuffer(b"".join(self._rows), dtype=np.int64).reshape(-1, len(STEPS) + 2)
        self._rows.clear()
        steps, held_each = packed[:, 0], packed[:, 1]
        counts = np.maximum(steps, 1)
        rows = np.repeat(packed[:, 2:], counts, axis=0)
        stretched = np.repeat(steps > 0, counts)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows[stretched] = self._varied(
            rows[stretched], place[stretched], np.repeat(held_each, counts)[stretched]
        )
        return rows

    def _varied(self, rows: Rows, place: Rows, held_each: Rows) -> Rows:
        """Fill in what varies; `place` counts the steps of each stretch from 0."""
        each = (self._durations_ns, self._taken, self._inside)
        durations, taken, inside = map(_emptied, each)
        elapsed = np.cumsum(durations) - durations
        first = np.flatnonzero(place == 0)
        elapsed -= np.repeat(elapsed[first], np.diff(first, append=len(rows)))
        rows[:, _STEP] += place
        rows[:, _START] += elapsed
        rows[:, _DURATION] = durations
        rows[:, _CONTEXT] += rows[:, _SEQS] * place
        rows[:, _HELD] += held_each * place
        rows[:, _INSIDE] = inside
        rows[:, _TO_COME] = taken - rows[:, _HELD] - inside
        rows[:, _FREE] -= taken
        return rows


def _emptied(values: "array[int]") -> Rows:
    """Return the values, and forget them."""
    rows = np.array(values, dtype=np.int64)
    del values[:]
    return rows
