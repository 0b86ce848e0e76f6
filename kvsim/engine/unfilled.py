"""Slots that requests own and that no token will ever fill, since their answers end before."""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from kvsim.engine.allocators import KVAllocator
from kvsim.engine.request import Request


class UnfilledSlots:
    """Keeps count of them for one replica, which knows the true lengths of answers.

    Where a sequence takes a block at a time, only the last one of its answer matters: a calendar
    says in which step that is taken, so that a step need not ask for each block that it gives.

    Attributes:
        tokens: How many there are.
        due: Heap of the steps in which a request takes the last block of its answer; some of these
            requests may be preempted, or have left.
    """

    __slots__ = (
        "_allocator",
        "_answers_tokens",
        "_block_tokens",
        "_due_requests",
        "_last_steps",
        "_may_surpass",
        "_of",
        "due",
        "has_groups",
        "tokens",
    )

    def __init__(
        self,
        allocator: KVAllocator,
        answers_tokens: Mapping[int, int],
        last_steps: Mapping[int, int],
        may_surpass: bool,
    ) -> None:
        """Count none.

        Args:
            allocator: Whose slots they are.
            answers_tokens: True answer length by request number.
            last_steps: The last step of each decoding request, by its number.
            may_surpass: Whether a request may be computed once more after its end.
        """
        self.tokens = 0
        self.due: list[int] = []
        self._due_requests: dict[int, list[tuple[Request, int]]] = {}  # and their last steps
        self._of: dict[int, int] = {}  # by request number
        self._allocator = allocator
        self._answers_tokens = answers_tokens
        self._last_steps = last_steps
        self._may_surpass = may_surpass
        self._block_tokens = allocator.block_tokens
        several = allocator.slots_per_token > 1
        self.has_groups = several or allocator.growth_tokens != self._block_tokens

    def own(self, request: Request) -> None:
        """Count those of a request anew."""
        tokens = self._allocator.unused_tokens(request.number, self.final_tokens(request))
        if tokens:
            self.tokens += tokens - self._of.get(request.number, 0)
            self._of[request.number] = tokens

    def own_new(self, grown: Sequence[Request], step: int) -> None:
        """Count those of blocks taken in a step, where `own_last` doesn't know of the block."""
        if self.has_groups:
            self.own_grown(grown, step)
        for request in grown:
            if request.kin is not None:  # it may have got a copy of a block that it shared
                self.own(request)

    def own_grown(self, grown: Sequence[Request], step: int) -> None:
        """Count those of blocks taken in a step, in several KV groups."""
        last_filled_step = step + self._block_tokens - 1
        for request in grown:
            if self._last_steps[request.number] < last_filled_step:
                self.own(request)

    def own_last(self, step: int) -> None:
        """Count them where the last block of an answer is taken up to a step."""
        while self.due and self.due[0] <= step:
            for request, last_step in self._due_requests.pop(heappop(self.due)):
                # Else it was preempted, or has left; or it came back and stands here twice.
                ends_then = self._last_steps.get(request.number) == last_step
                if ends_then and request.number not in self._of:
                    tokens = -self.final_tokens(request) % self._block_tokens
                    self.tokens += tokens
                    self._of[request.number] = tokens

    def note_end(self, request: Request, last_step: int, step: int) -> None:
        """Note when a request takes the last block of its answer, if that is after a step.

        Args:
            request: It begins to decode.
            last_step: The step that computes the last token of its answer.
            step: The one that is being scheduled.
        """
        if not self._block_tokens or self.has_groups:
            return
        tokens = self.final_tokens(request) - 1  # computed before the last of its steps
        place = tokens % self._block_tokens
        due_step = last_step + self._surplus_tokens(request) - place
        if due_step > step and place < self._block_tokens - 1:
            if due_step in self._due_requests:
                self._due_requests[due_step].append((request, last_step))
            else:
                self._due_requests[due_step] = [(request, last_step)]
                heappush(self.due, due_step)

    def disown(self, request: Request) -> None:
        """Forget those of a request."""
        self.tokens -= self._of.pop(request.number, 0)

    def final_tokens(self, request: Request) -> int:
        """Return how many of its tokens get slots: the last of the answer never does (R10)."""
        answer_tokens = self._answers_tokens[request.number]
        return request.prompt_tokens + answer_tokens - 1 + self._surplus_tokens(request)

    def _surplus_tokens(self, request: Request) -> int:
        """Return how many tokens are computed beyond the end, which the engine didn't foresee."""
        if not self._may_surpass:
            return 0
        return int(self._answers_tokens[request.number] < request.max_tokens)
