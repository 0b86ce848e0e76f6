"""Which sequences share blocks in vLLM V0: samples and beams of a prompt, and declared prefixes."""

from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.request import Request

Group = tuple[int, int]  # a client's number for what it sent at once, and its attempt


class Kinship:
    """Keeps the groups of the requests that a replica has, and gives them their blocks.

    The prompt of a group is computed once: its first sequence gets the blocks, the others fork
    from it. Whoever writes to a block that others share as well gets a copy of it. From then on
    samples go their own ways; beams fork anew in each step.
    """

    def __init__(self, pool: PagedPool, declared_prefixes: bool) -> None:
        """Start with nobody; with `declared_prefixes` the blocks of system prompts stay."""
        self.pool = pool
        self._declared = declared_prefixes
        self._residents: dict[int, int] = {}  # system prompt → the sequence that keeps it
        # Of groups of beams: how many choices they have followed, and who is at which place since.
        self._beams: dict[Group, tuple[int, list[Request]]] = {}
        # Who asks for single tokens: beams, and samples that share the block they will write to.
        self.by_token: dict[int, Request] = {}  # by number

    def of(self, request: Request) -> list[Request]:
        """Return what is left of a request's group, in order."""
        return [request] if request.kin is None else request.kin

    def leave(self, request: Request) -> None:
        """Forget a request that has ended."""
        self.by_token.pop(request.number, None)
        if request.kin is not None:
            request.kin.remove(request)
            if not request.kin:
                self._beams.pop(_group_of(request), None)

    # Prompts

    def blocks_to_start(self, request: Request) -> int:
        """Return how many free blocks the known tokens of a request's group take."""
        block_size = self.pool.growth_tokens
        blocks = -(-request.known_tokens // block_size)
        if self._is_declared(request):
            blocks -= request.prefix_tokens // block_size
            if request.prefix not in self._residents:
                blocks += -(-request.prefix_tokens // block_size)
        return blocks

    def start(self, request: Request) -> int:
        """Give a request and its group their first blocks; return how many tokens are there."""
        pool, cached_tokens = self.pool, 0
        if self._is_declared(request):
            cached_tokens = request.prefix_tokens if request.prefix in self._residents else 0
            pool.fork(self._resident(request), request.number)
            pool.append(request.number, request.known_tokens - request.prefix_tokens)
        else:
            pool.allocate(request, request.number, request.known_tokens)
        for other in self.of(request)[1:]:
            pool.fork(request.number, other.number)
        return cached_tokens

    def begin_to_write(self, request: Request) -> None:
        """Note a request whose prompt was computed, with its group."""
        shares_last = request.known_tokens % self.pool.growth_tokens > 0
        if request.samples > 1 and (request.parents is not None or shares_last):
            self.by_token[request.number] = request

    def write(self, request: Request) -> bool:
        """Give a request the slot for its next token, and the rest of a new block; False: no room.

        With its first token a sample gets a last block of its own.
        """
        by_token = request.number in self.by_token
        if not self.pool.append(request.number, 1 if by_token else self.pool.growth_tokens):
            return False
        if by_token and request.parents is None:
            del self.by_token[request.number]
        return True

    # Beams

    def follow_choices(self, step: int) -> None:
        """Let beams die and others fork, as the last step has chosen."""
        for request in self.by_token.values():
            if request.parents is not None and request.decoding:
                self._follow(request, request.computed_before(step) - request.prompt_tokens)

    def _follow(self, request: Request, choices: int) -> None:
        """Follow choices up to so many of a request's group, all but the last of which it has."""
        group, kin = _group_of(request), self.of(request)
        followed, beams = self._beams.get(group, (0, kin))
        if choices <= followed:
            return
        assert request.parents is not None
        parents = request.parents[(choices - 1) * len(kin) : choices * len(kin)]
        dying = [beam for place, beam in enumerate(beams) if place not in parents]
        heirs: list[Request] = []
        for place in parents:
            heir = beams[place]
            if heir in heirs:  # its parent has gone on already, so it takes the place of a dead one
                heir = dying.pop()
                self.pool.free(heir.number)
                self.pool.fork(beams[place].number, heir.number)
            heirs.append(heir)
        self._beams[group] = choices, heirs

    # Declared prefixes

    def _is_declared(self, request: Request) -> bool:
        return self._declared and 0 < request.prefix_tokens < request.known_tokens

    def _resident(self, request: Request) -> int:
        """Return the sequence that keeps a request's system prompt, from now on if it is the first.

        Its slots are there; the first request computes what is to be in them.
        """
        if request.prefix not in self._residents:
            seq = -1 - len(self._residents)
            self.pool.allocate(request, seq, request.prefix_tokens)
            self.pool.keep_resident(seq)
            self._residents[request.prefix] = seq
        return self._residents[request.prefix]


def _group_of(request: Request) -> Group:
    return request.bundle, request.attempt
