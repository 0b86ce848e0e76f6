"""Attention kernels by generation: what paging costs them; each file here is one policy.

The tables that kvsim ships were measured on paged kernels of today. A policy says how many times as
long the decode attention of its generation takes, by block size; prompts are computed on their own
keys and values, which are contiguous, before these go to the cache.
"""

from typing import Protocol


class AttentionKernelPolicy(Protocol):
    """Says what a generation of kernels pays for reading the KV cache through a block table."""

    @property
    def kind(self) -> str:
        """Name of the policy in a scenario."""
        ...

    def decode_factor(self, block_size: int) -> float:
        """Return how many times as long decode attention takes as in the tables, at least 1."""
        ...

    def note(self, block_size: int) -> str:
        """Say what the factor rests on, in a few words; empty: nothing was changed."""
        ...
