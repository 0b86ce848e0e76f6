"""The steps of one replica on their way to the table: packed rows, and stretches of quiet steps.

In a stretch every step decodes the same sequences. It is kept as its first row and what differs
from step to step; all stretches are spelled out together, by numpy, when a chunk leaves.
"""

from itertools import chain
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from kvsim.tables import STEPS

_COLUMN = {column.name: index for index, column in enumerate(STEPS)}
_STEP, _START, _DURATION = _COLUMN["step"], _COLUMN["start_ns"], _COLUMN["duration_ns"]
_SEQS, _CONTEXT = _COLUMN["decode_seqs"], _COLUMN["decode_kv_tokens"]
_HELD, _TO_COME, _INSIDE = (_COLUMN[f"kv_{name}_tokens"] for name in ("held", "to_come", "inside"))
_FREE = _COLUMN["kv_free_tokens"]
LEAD = 3

Rows = NDArray[np.int64]


class StepRows:
    """Collects the steps of a replica in order."""

    __slots__ = ("_durations_ns", "_growths", "_kept", "_rows", "append", "pack")

    def __init__(self) -> None:
        # In front of a row: the steps of its stretch, 0 for a row alone; what each of them adds
        # to the slots held; the slots that a sequence takes at a time.
        self.pack = Struct(f"={LEAD + len(STEPS)}q").pack
        self._rows: list[bytes] = []
        self.append = self._rows.append
        self._durations_ns: list[list[int]] = []
        self._growths: list[list[int]] = []
        self._kept: Rows = np.zeros((0, len(STEPS)), dtype=np.int64)

    def add_stretch(self, first_row: bytes, durations_ns: list[int], growth: list[int]) -> None:
        """Take a stretch: the packed row of its first step, and what differs from step to step.

        Args:
            first_row: In it are the slots that are taken (in place of those to come) and that
                aren't lost (in place of the free ones) before this step; the duration is missing.
            durations_ns: Of the steps.
            growth: How many sequences take slots in the first step, the second, ...; after as
                many it begins again.
        """
        self.append(first_row)
        self._durations_ns.append(durations_ns)
        self._growths.append(growth)

    def take(self, before_ns: int | None) -> Rows:
        """Return the rows of steps that start before an instant, or all; others stay."""
        rows = np.concatenate([self._kept, self._spelled_out()])
        end = len(rows) if before_ns is None else int(np.searchsorted(rows[:, _START], before_ns))
        self._kept = rows[end:].copy()
        return rows[:end]

    def _spelled_out(self) -> Rows:
        packed = np.frombuffer(b"".join(self._rows), dtype=np.int64).reshape(-1, LEAD + len(STEPS))
        self._rows.clear()
        counts = np.maximum(packed[:, 0], 1)
        rows = np.repeat(packed[:, LEAD:], counts, axis=0)
        stretched = packed[:, 0] > 0
        if stretched.any():
            self._fill_in(rows, np.repeat(stretched, counts), packed[stretched, :LEAD])
        return rows

    def _fill_in(self, rows: Rows, stretched: NDArray[np.bool_], leads: Rows) -> None:
        """Fill in what varies in the rows of stretches."""
        where = np.flatnonzero(stretched)
        counts, held_each, taken_each = leads.T
        ends = np.cumsum(counts)
        place = np.arange(len(where)) - np.repeat(ends - counts, counts)
        durations_ns = np.fromiter(chain.from_iterable(self._durations_ns), np.int64, len(where))
        elapsed_ns = np.cumsum(durations_ns) - durations_ns
        elapsed_ns -= np.repeat(elapsed_ns[ends - counts], counts)
        held = np.repeat(held_each, counts) * place
        taken = self._grown(place, counts) * np.repeat(taken_each, counts)
        self._durations_ns.clear()
        self._growths.clear()
        rows[where, _STEP] += place
        rows[where, _START] += elapsed_ns
        rows[where, _DURATION] = durations_ns
        rows[where, _CONTEXT] += rows[where, _SEQS] * place
        taken += rows[where, _TO_COME]
        rows[where, _FREE] -= taken
        rows[where, _HELD] += held
        rows[where, _TO_COME] = taken - rows[where, _HELD] - rows[where, _INSIDE]

    def _grown(self, place: Rows, counts: Rows) -> Rows:
        """Return how often sequences took slots in each stretch up to and in a step."""
        most = max(map(len, self._growths))
        lengths = np.array([len(growth) for growth in self._growths])
        growths = np.zeros((len(counts), most), dtype=np.int64)
        growths[np.arange(most) < lengths[:, None]] = list(chain.from_iterable(self._growths))
        sums = np.cumsum(growths, axis=1)
        stretch, period = np.repeat(np.arange(len(counts)), counts), np.repeat(lengths, counts)
        rounds, last = np.divmod(place, period)
        grown: Rows = sums[stretch, last] + rounds * sums[stretch, -1]
        return grown
