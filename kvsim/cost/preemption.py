"""What giving way costs a sequence: its KV cache is computed again, or copied to the host and back.

The microbenchmark of the PagedAttention paper (Kwon et al., SOSP 2023, figure 19).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvsim.cost import StepCost
from kvsim.cost.pcie import HostLink


@dataclass(frozen=True, slots=True)
class PreemptionCost:
    """Both ways for one block size, in ns."""

    block_size_tokens: int
    recompute_ns: int  # a step that computes all tokens as one prompt
    swap_out_ns: int
    swap_in_ns: int

    @property
    def swap_ns(self) -> int:
        """Time on the link, out and in."""
        return self.swap_out_ns + self.swap_in_ns


def preemption_costs(
    cost: StepCost,
    link: HostLink,
    tokens: int,
    token_bytes: int,
    tensors: int,
    peak_bytes_per_s: float,
    block_sizes_tokens: Sequence[int],
) -> Iterator[PreemptionCost]:
    """Yield what it costs a sequence of `tokens` to give way, for each block size.

    Args:
        cost: What steps cost; the recomputation is a step of its own, as in vLLM V0.
        link: How blocks get to the host and back.
        tokens: Length of the sequence; its last block is copied whole.
        token_bytes: KV cache of a token on one GPU.
        tensors: Pieces of a block where keys and values of each layer lie apart.
        peak_bytes_per_s: Peak rate of a GPU's link in one direction.
        block_sizes_tokens: Block sizes to compare.
    """
    recompute_ns = cost.step_ns(tokens, 1, 0, 0, cost.chunks_ns([(tokens, 0)]))
    for size in block_sizes_tokens:
        blocks = -(-tokens // size)
        copy_ns = round(blocks * link.copy_ns(size * token_bytes, tensors, peak_bytes_per_s))
        yield PreemptionCost(size, recompute_ns, copy_ns, copy_ns)
