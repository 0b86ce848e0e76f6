"""Copies between a GPU and its host: each piece has a price of its own, beside its bytes.

    time of a piece = launch + bytes / (efficiency x peak)

Small pieces, such as the keys of one layer in one block of 2023's vLLM, are bound by the launch.
"""

from typing import Literal

from pydantic import Field

from kvsim.policy import Parameters
from kvsim.units import NS_PER_S


class HostLink(Parameters):
    """The link of one GPU to its host, used in one direction at a time.

    V0 issues the copies of both directions one by one on a stream of its own, so they share the
    link by turns. Public measurements behind the defaults (asynchronous copies of known size in a
    loop): AMD MI300X on PCIe 5, 4 KB at 0.75 and 512 KB at 24 GB/s; another MI300 4 KiB at 1.7 and
    1 MiB at 37 GB/s; H100 3.5 to 4 us a copy up to 64 KB (peer copies), and 50 GB/s one way in
    blocks of 2 MB. vLLM's A100, PCIe 4: 3.1 GB/s in pieces of a size that wasn't told, 12.6 GB/s
    with a kernel that gathers them.
    """

    launch_s: float = Field(default=5.5e-6, ge=0, le=1e-3)
    """Seconds of each copy, whatever its size: 2.4 to 5.5 us at 4 KB in public runs, up to 10 us
    for 32 KB beyond the bytes' own time."""
    efficiency: float = Field(default=0.78, gt=0, le=1)
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
        rate = self.efficiency * peak_bytes_per_s
        return (pieces * self.launch_s + size_bytes / rate) * NS_PER_S
