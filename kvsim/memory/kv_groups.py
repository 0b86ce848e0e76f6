"""KV groups: layers with equal attention, which share block tables; all blocks are equally large.

Rules R35 to R39 are those of `docs/vllm-rules.md`.
"""

import math
from dataclasses import dataclass

from kvsim.memory.flags import MemoryFlags
from kvsim.model import ModelSpec, element_bytes

# Up to this ratio of the largest number of alike layers to the smallest, groups are as large as
# the largest: little is lost to padding. Else as the smallest.
LITTLE_PADDING = 1.25


@dataclass(frozen=True, slots=True)
class KVGroup:
    """One group of layers; a block holds `block_size` tokens in all of them."""

    block_size: int
    window_tokens: int = 0  # sliding window; 0: full attention

    def blocks(self, tokens: int) -> int:
        """Return the blocks that so many tokens fill, the last one perhaps in part."""
        return -(-tokens // self.block_size)

    def most_blocks(self, tokens: int, chunk_tokens: int) -> int:
        """Return the blocks that vLLM counts for a sequence of this length (R36).

        Those of a window and of one chunk, and one for where they begin inside a block.

        Args:
            tokens: Its length in the end.
            chunk_tokens: Most of its tokens that are computed in a step.
        """
        if not self.window_tokens:
            return self.blocks(tokens)
        return self.blocks(min(self.window_tokens - 1 + chunk_tokens, tokens)) + 1

    def passed_blocks(self, computed_tokens: int) -> int:
        """Return how many leading blocks no later token reads, so many being computed (R35)."""
        if not self.window_tokens:
            return 0
        return max(0, computed_tokens + 1 - self.window_tokens) // self.block_size

    @property
    def window_blocks(self) -> int:
        """Blocks before its own that the first token of a block reads (R37)."""
        return -(-(self.window_tokens - 1) // self.block_size)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How the KV cache is cut into blocks, which groups take from one pool."""

    groups: tuple[KVGroup, ...]
    block_bytes: int  # on one GPU

    def most_blocks(self, tokens: int, chunk_tokens: int) -> int:
        """Return the blocks that vLLM counts for a sequence of this length, in all groups."""
        return sum(group.most_blocks(tokens, chunk_tokens) for group in self.groups)

    def tokens(self, blocks: int) -> int:
        """Return what vLLM logs as tokens: as if no group gave blocks back."""
        smallest = min(group.block_size for group in self.groups)
        return blocks // len(self.groups) * smallest

    def blocks(self, tokens: int) -> int:
        """Return the blocks of which vLLM logs so many tokens."""
        smallest = min(group.block_size for group in self.groups)
        return tokens // smallest * len(self.groups)


def slots_of(groups: tuple[KVGroup, ...]) -> tuple[int, int]:
    """Return the slots of a block, and those that a token takes in all groups.

    All blocks have as many bytes, so as many slots: the least common multiple of their sizes.
    """
    block_slots = math.lcm(*(group.block_size for group in groups))
    return block_slots, sum(block_slots // group.block_size for group in groups)


def kv_layout(model: ModelSpec, flags: MemoryFlags) -> KVLayout:
    """Group the layers as vLLM's planner does (R39).

    Alike layers are dealt out to groups of about as many as there are of the rarest kind, in
    order of first appearance. Where a token has fewer bytes in a layer of one kind, its blocks
    have more tokens. Models with MLA, chunked or linear attention form one group, charged for the
    whole context, as do those whose block sizes would not be whole.

    Raises:
        InputError: Unknown dtype, or heads that can't be divided among so many GPUs.
    """
    size, tensor_parallel_size = flags.block_size, flags.tensor_parallel_size
    per_token = model.kv_bytes_per_token(tensor_parallel_size, flags.kv_cache_dtype)
    whole = KVLayout((KVGroup(size),), per_token * size)
    kinds = {group.attention.kind for group in model.layers}
    if not flags.slides_windows or "sliding" not in kinds or kinds - {"full", "sliding"}:
        return whole
    element = element_bytes(model.kv_cache_dtype(flags.kv_cache_dtype))
    alike: dict[tuple[int, int], int] = {}  # window, bytes of a token in a layer → layers
    for group in model.layers:
        attention = group.attention
        kind = attention.window_tokens, attention.kv_bytes_per_token(tensor_parallel_size, element)
        alike[kind] = alike.get(kind, 0) + group.count
    largest_bytes = max(token_bytes for _, token_bytes in alike)
    if any(largest_bytes % token_bytes for _, token_bytes in alike):
        return whole
    fewest, most = min(alike.values()), max(alike.values())
    layers = most if most < LITTLE_PADDING * fewest else fewest
    groups = [
        KVGroup(size * largest_bytes // token_bytes, window)
        for (window, token_bytes), count in alike.items()
        for _ in range(-(-count // layers))
    ]
    return KVLayout(tuple(groups), largest_bytes * size * layers)
