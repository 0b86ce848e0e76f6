"""The steps of one replica on their way to the table: packed rows, and stretches of quiet steps.

In a stretch every step decodes the same sequences. It is kept as its first row and the few values
that differ from step to step; all stretches are spelled out together, by numpy, when a chunk leaves.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from kvsim.tables import STEPS

_COLUMN = {column.name: index for index, column in enumerate(STEPS)}
_STEP, _START, _DURATION = _COLUMN["step"], _COLUMN["start_ns"], _COLUMN["duration_ns"]
_SEQS, _CONTEXT = _COLUMN["decode_seqs"], _COLUMN["decode_kv_tokens"]
_HELD, _TO_COME, _INSIDE = (_COLUMN[f"kv_{name}_tokens"] for name in ("held", "to_come", "inside"))
_REUSABLE, _FREE = _COLUMN["kv_reusable_tokens"], _COLUMN["kv_free_tokens"]
_SHARED = _COLUMN["shared_kv_tokens"]

Rows = NDArray[np.int64]


@dataclass(slots=True)
class Varying:
    """What differs from step to step of a stretch, a value for each step.

    Attributes:
        durations_ns: Of the steps.
        taken_tokens: Slots owned by sequences.
        inside_tokens: Those of them that no token will ever fill.
        reusable_tokens: Free slots that hold a prefix.
        given_back_tokens: Slots shared or released, that are not held by the sequences themselves.
        shared_tokens: The shared ones of them.
    """

    durations_ns: Sequence[int]
    taken_tokens: Sequence[int]
    inside_tokens: Sequence[int]
    reusable_tokens: Sequence[int]
    given_back_tokens: Sequence[int]
    shared_tokens: Sequence[int]


class StepRows:
    """Collects the steps of a replica in order."""

    __slots__ = ("_durations", "_given_back", "_inside", "_kept", "_reusable", "_rows", "_shared",
                 "_taken", "append", "pack")  # fmt: skip

    def __init__(self) -> None:
        # In front of a row: the steps of its stretch, 0 for a row alone; what each of them adds
        # to the slots held.
        self.pack = Struct(f"={len(STEPS) + 2}q").pack
        self._rows: list[bytes] = []
        self.append = self._rows.append
        self._durations, self._taken, self._inside = array("q"), array("q"), array("q")
        self._reusable, self._given_back, self._shared = array("q"), array("q"), array("q")
        self._kept: Rows = np.zeros((0, len(STEPS)), dtype=np.int64)

    def add_stretch(self, first_row: bytes, varying: Varying) -> None:
        """Take a stretch: the packed row of its first step, and what differs.

        There kv_held_tokens includes what was given back, kv_free_tokens all slots that aren't
        lost; the other columns that vary are 0.
        """
        self.append(first_row)
        self._durations.extend(varying.durations_ns)
        self._taken.extend(varying.taken_tokens)
        self._inside.extend(varying.inside_tokens)
        self._reusable.extend(varying.reusable_tokens)
        self._given_back.extend(varying.given_back_tokens)
        self._shared.extend(varying.shared_tokens)

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
        durations, taken, inside = map(_emptied, (self._durations, self._taken, self._inside))
        reusable, given_back, shared = map(
            _emptied, (self._reusable, self._given_back, self._shared)
        )
        elapsed = np.cumsum(durations) - durations
        first = np.flatnonzero(place == 0)
        elapsed -= np.repeat(elapsed[first], np.diff(first, append=len(rows)))
        rows[:, _STEP] += place
        rows[:, _START] += elapsed
        rows[:, _DURATION] = durations
        rows[:, _CONTEXT] += rows[:, _SEQS] * place
        rows[:, _HELD] += held_each * place - given_back
        rows[:, _INSIDE] = inside
        rows[:, _TO_COME] = taken - rows[:, _HELD] - inside
        rows[:, _REUSABLE] = reusable
        rows[:, _FREE] -= taken + reusable
        rows[:, _SHARED] = shared
        return rows


def _emptied(values: "array[int]") -> Rows:
    """Return the values, and forget them."""
    rows = np.array(values, dtype=np.int64)
    del values[:]
    return rows
