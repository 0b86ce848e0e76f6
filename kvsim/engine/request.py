"""The life of one request inside the engine, and the part of it that policies may see."""

from typing import Protocol


class RequestView(Protocol):
    """What a policy may know of a request. The true length of its answer is not part of it."""

    @property
    def number(self) -> int:
        """Number in order of arrival, from 0."""
        ...

    @property
    def arrival_ns(self) -> int:
        """Arrival at the server."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Prompt length."""
        ...

    @property
    def max_tokens(self) -> int:
        """Longest answer allowed: the client's limit, or what the context length leaves."""
        ...

    @property
    def generated_tokens(self) -> int:
        """Tokens generated so far."""
        ...


class Request:
    """A request as the engine keeps it: token counts, and when things happened (ns, -1: not yet).

    While it decodes, its counters stand still: before step k it has computed `k + offset`
    tokens, so that a step need not touch each sequence. `computed_tokens` and
    `generated_tokens` are brought up to date when it starts or stops decoding.
    """

    __slots__ = (
        "admitted_ns",
        "arrival_ns",
        "chunk_tokens",
        "computed_tokens",
        "decoding",
        "finish_step",
        "first_token_ns",
        "generated_tokens",
        "group",
        "inside_tokens",
        "known_tokens",
        "last_token_ns",
        "max_tokens",
        "number",
        "offset",
        "preemptions",
        "prompt_tokens",
        "rank",
        "recomputed_tokens",
    )

    def __init__(
        self, number: int, group: int, arrival_ns: int, prompt_tokens: int, max_tokens: int
    ) -> None:
        self.number = number
        self.group = group
        self.arrival_ns = arrival_ns
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.generated_tokens = 0
        self.known_tokens = prompt_tokens  # to be computed before the next token can be sampled
        self.computed_tokens = 0
        self.chunk_tokens = 0  # share of the step being scheduled, while it prefills
        self.decoding = False
        self.offset = 0
        self.finish_step = -1
        self.rank = -1  # order of admission; -1 while it waits
        self.inside_tokens = 0  # slots it owns that no token will ever fill
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.admitted_ns = -1
        self.first_token_ns = -1
        self.last_token_ns = -1

    def start_decoding(self, step: int) -> None:
        """Begin to decode in `step`, with all known tokens computed and one more just sampled."""
        self.decoding = True
        self.chunk_tokens = 0
        self.offset = self.known_tokens - step

    def stop_decoding(self, step: int) -> None:
        """Bring the counters up to date as they are before `step` is computed."""
        self.decoding = False
        self.computed_tokens = step + self.offset
        self.generated_tokens = self.computed_tokens - self.prompt_tokens + 1
        self.known_tokens = self.computed_tokens + 1
