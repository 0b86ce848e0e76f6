"""The life of one request inside the engine, and the part of it that policies may see."""

from typing import Protocol

from kvsim.engine.content import Content


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
    def session(self) -> int:
        """Number of the conversation that it belongs to."""
        ...

    @property
    def priority(self) -> int:
        """Smaller is more urgent, for a scheduler that asks."""
        ...

    @property
    def known_tokens(self) -> int:
        """Tokens to compute before the next can be sampled: prompt, and answer so far."""
        ...

    def block_keys(self, first: int, end: int, block_size: int) -> list[int]:
        """Return what identifies its full blocks from `first` up to `end`, and all before them."""
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
        "attempt",
        "awaiting",
        "bundle",
        "cached_tokens",
        "chunk_start_tokens",
        "chunk_step",
        "chunk_tokens",
        "computed_tokens",
        "content",
        "decoding",
        "discarded_tokens",
        "first_token_ns",
        "generated_tokens",
        "group",
        "hit_tokens",
        "kin",
        "known_tokens",
        "last_token_ns",
        "lost_tokens",
        "max_tokens",
        "number",
        "offset",
        "parents",
        "preemptions",
        "prefix",
        "prefix_tokens",
        "priority",
        "prompt_tokens",
        "queued_ns",
        "rank",
        "rank_in_flight",
        "recomputed_tokens",
        "replica",
        "samples",
        "session",
        "slotless_tokens",
        "traffic_class",
    )

    def __init__(
        self,
        number: int,
        group: int,
        arrival_ns: int,
        prompt_tokens: int,
        max_tokens: int,
        content: Content | None = None,
        session: int = -1,
        priority: int = 0,
    ) -> None:
        self.number = number
        self.group = group
        self.arrival_ns = arrival_ns
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.session = session
        self.traffic_class = 0
        self.attempt = 0  # of its client, from 0
        self.bundle = -1  # its client's number for what was sent at once
        self.samples = 1  # how many requests were sent at once, of one prompt
        self.kin: list[Request] | None = None  # those of them that are left, if they run as one
        self.parents: bytes | None = None  # of beams: see `kvsim.workload.requests.Beams.of`
        self.prefix = -1  # which system prompt it begins with
        self.prefix_tokens = 0  # length of that; 0: it has none
        self.replica = -1  # where it was sent, or, with a common queue, admitted
        self.priority = priority
        self.content = content  # what its tokens are; None if nobody asks
        self.generated_tokens = 0  # sampled, that of a step in flight included
        self.known_tokens = prompt_tokens  # to be computed before the next token can be sampled
        self.computed_tokens = 0
        self.slotless_tokens = 0  # those of them beyond the longest context (R34)
        self.chunk_tokens = 0  # share of the step being scheduled, while it prefills
        self.chunk_step = -1  # the last step that computed a part of its prompt
        self.chunk_start_tokens = 0  # computed before that part
        self.decoding = False
        self.offset = 0
        self.awaiting = False  # it has stopped decoding, and its newest token is in flight
        self.rank = -1  # order of admission; -1 while it waits
        self.rank_in_flight = -1  # before it was preempted: its place in the step in flight
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.discarded_tokens = 0  # decoded beyond its end, or for nobody
        self.lost_tokens = 0  # computed before preemptions, recomputed or not
        self.hit_tokens = 0  # found in the prefix cache at all its admissions
        self.cached_tokens = 0  # found at the first one
        self.queued_ns = -1
        self.admitted_ns = -1
        self.first_token_ns = -1
        self.last_token_ns = -1

    def block_keys(self, first: int, end: int, block_size: int) -> list[int]:
        """Return what identifies its full blocks from `first` up to `end`, and all before them."""
        if self.content is None:
            raise ValueError("the engine runs without prefix caching: contents aren't kept")
        return self.content.block_keys(first, end, block_size)

    def computed_before(self, step: int) -> int:
        """Return how many of its tokens were computed before a step."""
        return step + self.offset if self.decoding else self.computed_tokens

    def processed_before(self, step: int, in_flight: int) -> int:
        """Return how many of its tokens were computed by steps that have ended."""
        if not in_flight:
            return self.computed_before(step)
        if self.chunk_step == step - 1:
            return self.chunk_start_tokens
        return step - 1 + self.offset if self.decoding else self.computed_tokens

    def compute_chunk(self, step: int) -> None:
        """Count its share of a step as computed."""
        self.chunk_step, self.chunk_start_tokens = step, self.computed_tokens
        self.computed_tokens += self.chunk_tokens

    def lose_all(self) -> None:
        """Note that it was preempted, and is to be computed again; it doesn't decode."""
        self.rank = -1
        self.preemptions += 1
        self.lost_tokens += self.computed_tokens
        self.chunk_tokens = 0

    def start_decoding(self, step: int) -> None:
        """Begin to decode in `step`, with all known tokens computed and one more just sampled."""
        self.decoding = True
        self.chunk_tokens = 0
        self.offset = self.known_tokens - step

    def go_on_decoding(self, step: int) -> None:
        """Decode again in `step`, with all as it was when it stopped."""
        self.decoding = True
        self.offset = self.computed_tokens - step

    def stop_decoding(self, step: int) -> None:
        """Bring the counters up to date as they are before `step` is computed."""
        self.decoding = False
        self.computed_tokens = step + self.offset
        self.generated_tokens = self.computed_tokens - self.prompt_tokens + 1
        self.known_tokens = self.computed_tokens + 1
