"""The synchronous engine (vLLM V0): the GPU idles while Python schedules and samples."""

from typing import Literal

from pydantic import Field

from kvsim.policy import Policy


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

    def host_s(self, seqs: int, all_reduces: int, tensor_parallel_size: int) -> float:
        """Return the host time of an iteration in seconds."""
        if tensor_parallel_size > 1:
            return self.tensor_parallel_fixed_s + self.tensor_parallel_per_seq_s * seqs
        return self.fixed_s + self.per_seq_s * seqs

    def source(self) -> str:
        """Say where the constants come from."""
        return "synchronous engine: CPU times of Sarathi-Serve on A100 (Microsoft Vidur)"
