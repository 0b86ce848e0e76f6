"""No host overhead: the bare sum of the kernels."""

from typing import Literal

from kvsim.policy import Policy


class NoOverhead(Policy):
    """Leaves the kernels alone; a lower bound of what an engine needs."""

    kind: Literal["none"] = "none"

    def host_s(self, seqs: int, all_reduces: int, tensor_parallel_size: int) -> float:
        """Return no time at all."""
        return 0.0

    def context_token_s(self, block_size: int) -> float:
        """Return 0: there is no host."""
        return 0.0

    def source(self) -> str:
        """Say that nothing is added."""
        return "no host overhead: the bare sum of the kernels"
