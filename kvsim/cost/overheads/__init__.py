"""Host overhead: time of an iteration that no kernel explains; each file here is one policy.

A policy is frozen parameters with one method. It is asked for every number of sequences once, at
start; the answers are tabulated.
"""

from typing import Protocol


class OverheadPolicy(Protocol):
    """Says how much longer an engine iteration lasts than its kernels."""

    @property
    def kind(self) -> str:
        """Name of the policy in a scenario."""
        ...

    def host_s(self, seqs: int, all_reduces: int, tensor_parallel_size: int) -> float:
        """Return the host time of an iteration in seconds.

        Args:
            seqs: Sequences in the step.
            all_reduces: All-reduces in the step, 0 without tensor parallelism.
            tensor_parallel_size: GPUs of the replica.
        """
        ...

    def context_token_s(self, block_size: int) -> float:
        """Return the host time in seconds for each token of context of the decoding sequences.

        It is that of their block tables, beyond what `host_s` has of it.
        """
        ...

    def source(self) -> str:
        """Say where the constants come from, in one line."""
        ...
