"""Requests that decode in the same steps, all or none: sums, and who needs a block when."""

from kvsim.engine.request import Request


class Lockstep:
    """Decoding requests by rank; a step in which they decode is a *beat*.

    Between beats nothing changes here, however many other steps there are.
    """

    __slots__ = ("_beat", "_block_size", "_due", "_places", "context_tokens", "requests")

    def __init__(self, block_size: int) -> None:
        """Start with nobody; a request needs a block when it has filled a whole number of them."""
        self.requests: dict[int, Request] = {}
        self.context_tokens = 0  # computed tokens of all of them
        self._block_size = block_size
        self._beat = 0  # the next one
        self._due: list[dict[int, Request]] = [{} for _ in range(block_size)]
        self._places: dict[int, int] = {}  # in `_due`, by rank

    def __len__(self) -> int:
        return len(self.requests)

    def join(self, request: Request, computed_tokens: int) -> None:
        """Let a request take part from the next beat on."""
        rank = request.rank
        self.requests[rank] = request
        self.context_tokens += computed_tokens
        self._places[rank] = place = (self._beat - computed_tokens) % self._block_size
        self._due[place][rank] = request

    def leave(self, request: Request, computed_tokens: int) -> None:
        """Let a request take part no longer."""
        del self.requests[request.rank]
        del self._due[self._places.pop(request.rank)][request.rank]
        self.context_tokens -= computed_tokens

    def due(self, beats: int = 0) -> list[Request]:
        """Return who needs a block in the next beat, or so many later, by rank."""
        due = self._due[(self._beat + beats) % self._block_size]
        return [due[rank] for rank in sorted(due)]

    def due_seqs(self, beats: int) -> int:
        """Return how many need a block so many beats after the next one."""
        return len(self._due[(self._beat + beats) % self._block_size])

    def beat(self, beats: int = 1) -> None:
        """Compute so many tokens for each."""
        self._beat += beats
        self.context_tokens += beats * len(self.requests)
