"""Conservation laws, checked at the end of every run, and on every chunk of recorded steps.

They cost a few integer additions a request and vectorised comparisons a chunk. A broken law is a
defect of kvsim, never of the input: it raises `BrokenLawError` and no result is written.
"""

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.request import Request
from kvsim.engine.swap_space import SwapSpace
from kvsim.errors import require
from kvsim.tables import EVENT_KINDS, EVENTS, OUTCOMES, STEPS

_COLUMN = {column.name: index for index, column in enumerate(STEPS)}
_EVENT = [column.name for column in EVENTS].index("event")
_RESUMED = EVENT_KINDS.index("resumed")
_POOL = [_COLUMN[column.name] for column in STEPS if column.name.startswith("kv_")]


class StepLaws:
    """Laws of recorded steps: memory is fully accounted for, and time doesn't run backwards."""

    def __init__(self, capacity_tokens: int, replicas: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._free_at_ns = np.zeros(replicas, dtype=np.int64)
        self._replica_type = np.min_scalar_type(replicas)  # short numbers are sorted in a pass
        self._computed_tokens = 0
        self._decoded_tokens = 0
        self._resumed = 0

    def check(self, rows: NDArray[np.int64]) -> None:
        """Check a chunk of rows of the steps table, shape (steps, columns)."""
        pool = [rows[:, column] for column in _POOL]
        least = min(int(part.min(initial=0)) for part in pool)
        require(least >= 0, "no part of the KV pool is negative")
        require(
            bool((np.sum(pool, axis=0) == self._capacity_tokens).all()),
            "the parts of the KV pool add up to its capacity in every step",
        )
        self._check_time(
            rows[:, _COLUMN["replica"]],
            rows[:, _COLUMN["start_ns"]],
            rows[:, _COLUMN["duration_ns"]],
        )
        decoded = int(rows[:, _COLUMN["decode_seqs"]].sum())
        self._decoded_tokens += decoded
        self._computed_tokens += decoded + int(rows[:, _COLUMN["prefill_tokens"]].sum())

    def _check_time(
        self,
        replica: NDArray[np.int64],
        start_ns: NDArray[np.int64],
        duration_ns: NDArray[np.int64],
    ) -> None:
        """Check that the steps of each replica follow one another, whatever stands between them."""
        require(bool((duration_ns > 0).all()), "a step takes time")
        if bool((np.diff(replica) < 0).any()):
            order = np.argsort(replica.astype(self._replica_type), kind="stable")
            replica, start_ns, duration_ns = replica[order], start_ns[order], duration_ns[order]
        ends_ns = start_ns + duration_ns
        first = np.diff(replica, prepend=-1) != 0
        before_ns = np.roll(ends_ns, 1)
        before_ns[first] = self._free_at_ns[replica[first]]
        require(bool((start_ns >= before_ns).all()), "steps don't overlap")
        last = np.roll(first, -1)
        self._free_at_ns[replica[last]] = ends_ns[last]

    def note_events(self, rows: NDArray[np.int64]) -> None:
        """Count the resumed requests in a chunk of rows of the events table."""
        self._resumed += int((rows[:, _EVENT] == _RESUMED).sum())

    def check_tokens(self, population: "Population") -> None:
        """Check, once all requests have finished, that steps and requests tell the same tokens."""
        require(
            self._computed_tokens == population.computed_tokens,
            "tokens computed in steps = tokens computed for requests",
        )
        # The token after a prompt, computed for the first time or again, comes with its chunk.
        prompts = population.answers + self._resumed
        require(
            self._decoded_tokens
            == population.generated_tokens + population.discarded_tokens - prompts,
            "tokens decoded in steps = tokens generated or discarded, but for those after a prompt",
        )


def check_swap_space(swap_space: SwapSpace | None) -> None:
    """Check, once all requests have left, that nothing of them is left in the host's memory."""
    if swap_space is not None:
        swap_space.check()
        nothing_left = swap_space.free_blocks == swap_space.capacity_blocks
        require(nothing_left, "all CPU blocks come back")


class Population:
    """Requests in the system over time; Little's law holds as an identity of integers."""

    __slots__ = (
        "_area",
        "_now_ns",
        "_sojourns_ns",
        "answers",
        "arrived",
        "computed_tokens",
        "discarded_tokens",
        "generated_tokens",
        "in_system",
        "left",
        "outcomes",
    )

    def __init__(self) -> None:
        self.arrived = 0
        self.left = 0
        self.in_system = 0
        self.outcomes = [0] * len(OUTCOMES)
        self.computed_tokens = 0  # by requests that have left, recomputation included
        self.generated_tokens = 0
        self.discarded_tokens = 0
        self.answers = 0  # begun: a first token was generated
        self._area = 0
        self._now_ns = 0
        self._sojourns_ns = 0

    def arrive(self, now_ns: int) -> None:
        """Count an arrival."""
        self._pass_time(now_ns)
        self.arrived += 1
        self.in_system += 1

    def leave(self, arrival_ns: int, now_ns: int, outcome: int) -> None:
        """Count a request that leaves, whatever its outcome."""
        self._pass_time(now_ns)
        self.left += 1
        self.in_system -= 1
        self.outcomes[outcome] += 1
        self._sojourns_ns += now_ns - arrival_ns

    def note_tokens(self, request: Request) -> None:
        """Count the tokens generated and computed for a request that leaves."""
        generated_tokens = request.generated_tokens
        self.generated_tokens += generated_tokens
        self.discarded_tokens += request.discarded_tokens
        self.answers += generated_tokens > 0
        self.computed_tokens += request.computed_tokens + request.lost_tokens - request.hit_tokens

    def check(self) -> None:
        """Check the laws once all have left."""
        require(self.arrived == self.left == sum(self.outcomes), "every request has one outcome")
        require(self.in_system == 0, "nobody stays behind")
        require(self._area == self._sojourns_ns, "area under the number in system = sojourns")

    def _pass_time(self, now_ns: int) -> None:
        require(now_ns >= self._now_ns, "time doesn't run backwards")
        self._area += self.in_system * (now_ns - self._now_ns)
        self._now_ns = now_ns
