"""The first PagedAttention kernel, of vLLM in 2023."""

from typing import Literal

from pydantic import Field

from kvsim.policy import Policy

PUBLISHED_BLOCK_SIZE = 16


class Paged2023(Policy):
    """Takes 20 to 26 % longer than a contiguous kernel at blocks of 16; smaller blocks cost more.

    The range is printed in the PagedAttention paper (Kwon et al., SOSP 2023, section 7.1) for
    blocks of 16 on A100: reading the block table, more branches, sequences of uneven lengths. What
    a block costs whatever its size (its entry, its turn of the loop) is paid more often by smaller
    ones: 1 + overhead · (1 - share + share · 16 / block_size). The paper shows this as a plot only,
    so the share is an assumption: with 0 small blocks cost no more, with 1 all of the overhead is
    by block; a kernel whose pages were measured from 1 to 128 tokens (FlashAttention 4 before its
    pull request 2104: 2.27 times at 1, 1.35 at 8, 1.2 at 32) lies within that band. Blocks above 16
    are taken as 16: kernels of 2023 were not faster with them.
    """

    kind: Literal["paged_2023"] = "paged_2023"
    overhead_fraction: float = Field(default=0.23, ge=0, le=1)
    """What paging adds to decode attention at blocks of 16: 0.20 to 0.26 in the paper."""
    per_block_fraction: float = Field(default=0.5, ge=0, le=1)
    """Part of it that each block costs whatever its size: an assumption, from 0 to 1."""

    def decode_factor(self, block_size: int) -> float:
        """Return how many times as long decode attention takes as in the tables."""
        smaller = max(1.0, PUBLISHED_BLOCK_SIZE / block_size)
        return 1 + self.overhead_fraction * (
            1 - self.per_block_fraction + self.per_block_fraction * smaller
        )

    def note(self, block_size: int) -> str:
        """Say what the factor is, and whether it is published."""
        assumed = ", assumed below blocks of 16" if block_size < PUBLISHED_BLOCK_SIZE else ""
        return f"{self.decode_factor(block_size):.3g} times as long in the kernel of 2023{assumed}"
