"""Kernels that read each sequence's keys and values in one piece, as FasterTransformer's do."""

from typing import Literal

from kvsim.policy import Policy


class Contiguous(Policy):
    """As the tables, on the ground that paging costs the kernels measured there next to nothing.

    The baselines of the PagedAttention paper: its own kernel is measured against this one.
    """

    kind: Literal["contiguous"] = "contiguous"

    def decode_factor(self, block_size: int) -> float:
        """Return 1."""
        return 1.0

    def note(self, block_size: int) -> str:
        """Say that the tables are of another layout."""
        return "contiguous KV priced as modern paged kernels"
