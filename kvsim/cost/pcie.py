"""Copies between a GPU and its host: each piece has a price of its own, beside its bytes.

    time of a piece = launch + bytes / (peak_fraction x peak)

Small pieces, such as the keys of one layer in one block of 2023's vLLM, are bound by the launch.
"""

from typing import Literal

from pydantic import Field

from kvsim.policy import Parameters
from kvsim.units import NS_PER_S


class HostLink(Parameters):
    """The link of one GPU to its host, used in one direction at a time.

    V0 issues the copies of both directions one by one on a stream of its own, so they share the
    link by turns. Behind the defaults stand public runs of asynchronous copies of known size in a
    loop on PCIe 5: MI300X, 4, 32, 128 and 512 KB at 0.75, 3.3, 10.6 and 24 GB/s; another MI300, 4,
    16, 256 and 1024 KiB at 1.7, 6.6, 18 and 37 GB/s; and H100, one way in blocks of 2 MB, at 50
    GB/s. Each of the former is met within a factor of two. An A100 (PCIe 4) copied at 3.1 GB/s in
    pieces of a size that wasn't told, which these constants put at 16 KB, and at 12.6 GB/s with a
    kernel that gathers them.
    """

    launch_s: float = Field(default=4.6e-6, ge=0, le=1e-3)
    """Seconds of each copy, whatever its size: the least-squares fit to the logarithms of those
    eight rates, of which single ones give 2.2 to 11 µs; H100, 3.5 to 4 µs up to 64 KB (peer)."""
    peak_fraction: float = Field(default=0.78, gt=0, le=1)
    """Share of the link's peak that large pieces reach: H100, 50 of 64 GB/s."""
    layout: Literal["per_layer", "whole_block"] = "per_layer"
    """Pieces of a block: per_layer: keys and values of each layer lie apart, as in 2023's vLLM, one
    copy for each; whole_block: a block is copied as one."""

    def copy_ns(self, size_bytes: int, tensors: int, peak_bytes_per_s: float) -> float:
        """Return how long one block is on the link, in ns.

        Args:
            size_bytes: Bytes of the block.
            tensors: Pieces that it consists of where keys and values of each layer lie apart.
            peak_bytes_per_s: Peak rate of the link in one direction.
        """
        pieces = tensors if self.layout == "per_layer" else 1
        rate = self.peak_fraction * peak_bytes_per_s
        return (pieces * self.launch_s + size_bytes / rate) * NS_PER_S
