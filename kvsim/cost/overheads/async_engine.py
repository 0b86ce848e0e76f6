"""The asynchronous engine (vLLM V1): what its CPU does not hide behind the GPU."""

from typing import Literal

from pydantic import Field

from kvsim.policy import Policy


class AsyncEngine(Policy):
    """A constant, a term for each running sequence, and one for each all-reduce at TP >= 4.

    The defaults are the middles of the ranges that public vLLM runs leave over the sum of their
    kernels: 0 to 0.6 ms for the engine version, 8 to 20 µs for a sequence, 3 to 8 µs for an
    all-reduce (skew between GPUs). Llama-3.1-8B on one H100 (vLLM 0.15) leaves 0.46 to 0.78 ms at
    12 to 35 sequences; these defaults give 0.47 to 0.79 ms.
    """

    kind: Literal["async_engine"] = "async_engine"
    fixed_s: float = Field(default=300e-6, ge=0, le=1)
    """Seconds of every iteration, a trait of the engine's version: 0 to 0.6 ms in public runs."""
    per_seq_s: float = Field(default=14e-6, ge=0, le=0.01)
    """Seconds for each sequence in the step: 8 to 20 µs in public runs."""
    per_all_reduce_s: float = Field(default=5.5e-6, ge=0, le=0.01)
    """Seconds for each all-reduce of the step at tensor_parallel_size 4 and up: 3 to 8 µs in
    public runs."""

    def host_s(self, seqs: int, all_reduces: int, tensor_parallel_size: int) -> float:
        """Return the host time of an iteration in seconds."""
        skew_s = self.per_all_reduce_s * all_reduces if tensor_parallel_size >= 4 else 0.0
        return self.fixed_s + self.per_seq_s * seqs + skew_s

    def context_token_s(self, block_size: int) -> float:
        """Return 0: block tables are only appended to, behind the GPU."""
        return 0.0

    def source(self) -> str:
        """Say where the constants come from."""
        return "asynchronous engine: residual of public vLLM runs over the sum of their kernels"
