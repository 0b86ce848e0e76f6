"""The synchronous engine (vLLM V0): the GPU idles while Python schedules and samples."""

from typing import Literal

from pydantic import Field

from kvsim.policy import Policy

MEDIANS_BLOCK_SIZE = 16


class Synchronous(Policy):
    """A constant and a term for each sequence; workers reached through Ray under TP cost more.

    The defaults are straight lines through the medians that Microsoft Vidur published for the
    Sarathi-Serve fork of vLLM V0 on A100 nodes (Llama-2-7B; scheduling, input preparation,
    sampling, output processing, messages): 2.1 ms at 8 and 8.1 ms at 64 sequences on one GPU,
    5.5 ms and 15.1 ms on two, 5.6 ms and 17.5 ms on four.
    """

    kind: Literal["synchronous"] = "synchronous"
    fixed_s: float = Field(default=1.3e-3, ge=0, le=1)
    """Seconds of every iteration on one GPU; line through Vidur's medians at TP 1."""
    per_seq_s: float = Field(default=106e-6, ge=0, le=0.01)
    """Seconds for each sequence in the step on one GPU; slope of the same line."""
    tensor_parallel_fixed_s: float = Field(default=4.0e-3, ge=0, le=1)
    """Seconds of every iteration on several GPUs; line through Vidur's medians at TP 2 and 4."""
    tensor_parallel_per_seq_s: float = Field(default=190e-6, ge=0, le=0.01)
    """Seconds for each sequence in the step on several GPUs; slope of the same line."""
    per_table_entry_s: float = Field(default=50e-9, ge=0, le=1e-5)
    """Seconds for each entry of the block tables beyond those of blocks of 16, which the medians
    have in them: 38 to 51 ns in the same CPU times, from how much longer inputs take to prepare for
    CodeLlama-34B than for Llama-2 (tables of 1024 and of 256 entries a sequence)."""

    def host_s(self, seqs: int, all_reduces: int, tensor_parallel_size: int) -> float:
        """Return the host time of an iteration in seconds."""
        if tensor_parallel_size > 1:
            return self.tensor_parallel_fixed_s + self.tensor_parallel_per_seq_s * seqs
        return self.fixed_s + self.per_seq_s * seqs

    def context_token_s(self, block_size: int) -> float:
        """Return the host time in seconds of a token of context: smaller blocks, longer tables."""
        return self.per_table_entry_s * max(0.0, 1 / block_size - 1 / MEDIANS_BLOCK_SIZE)

    def source(self) -> str:
        """Say where the constants come from."""
        return "synchronous engine: CPU times of Sarathi-Serve on A100 (Microsoft Vidur)"
