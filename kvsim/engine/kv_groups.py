"""KV groups: layers with equal attention, which share block tables (R35 to R38)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVGroup:
    """One group of layers; blocks of all groups have as many bytes and come from one pool."""

    block_size: int  # tokens a block
    window_tokens: int = 0  # sliding window; 0: full attention

    def passed_blocks(self, computed_tokens: int) -> int:
        """Return how many leading blocks no later token reads, so many being computed (R35)."""
        if not self.window_tokens:
            return 0
        return max(0, computed_tokens + 1 - self.window_tokens) // self.block_size

    @property
    def window_blocks(self) -> int:
        """Blocks that the next token reads besides its own, if these end with a full one (R37)."""
        return -(-(self.window_tokens - 1) // self.block_size)

    def blocks(self, tokens: int) -> int:
        """Return the blocks that so many tokens fill, the last one perhaps in part."""
        return -(-tokens // self.block_size)

    def most_blocks(self, chunk_tokens: int, max_model_len: int) -> int:
        """Return how many blocks a sequence owns at most, prompts being cut into chunks (R36)."""
        if not self.window_tokens:
            return self.blocks(max_model_len)
        return self.blocks(min(self.window_tokens - 1 + chunk_tokens, max_model_len)) + 1
