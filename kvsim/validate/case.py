"""A measured server in kvsim's words, whatever file it comes from."""

from dataclasses import dataclass
from pathlib import Path

from kvsim.cost.small_ops import Sampling

OVERALL = -1  # stage of figures over a whole run

# What can be compared; the unit of each figure.
METRICS = {
    "e2e_mean": "ms",
    "e2e_p90": "ms",
    "e2e_p99": "ms",
    "ttft_mean": "ms",
    "ttft_p90": "ms",
    "ttft_p99": "ms",
    "tpot_mean": "ms",
    "itl_mean_reported": "ms",
    "throughput": "requests/s",
    "kv_cache_tokens": "tokens",
}


@dataclass(frozen=True, slots=True)
class Server:
    """What is recorded of a server; None where nothing is.

    Attributes:
        tensor_parallel_size: GPUs that share each layer of one data-parallel rank.
        expert_parallel_size: GPUs that share the experts whole; 1 or None: each expert is cut.
        expert_tensor_parallel_size: GPUs that share each expert; None: as the engine does it.
        precision: Of the weights, as the source names it: FP16, BF16, fp8, fp4.
        num_gpu_blocks: KV blocks as the server logged them, the null block included.
        sampling: What its clients ask of the sampler.
    """

    model: str
    gpu: str
    engine: str = "vllm"
    version: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel_size: int | None = None
    expert_tensor_parallel_size: int | None = None
    precision: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    sampling: Sampling = "plain"


@dataclass(frozen=True, slots=True)
class Prompts:
    """What the prompts of a client have in common.

    Attributes:
        distinct: So many prompts are sent round robin; None: all are different.
        groups: The distinct prompts share so many system prompts, one after another.
        system_tokens: Length of each system prompt, a part of the prompt.
    """

    distinct: int | None = None
    groups: int = 1
    system_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Replay:
    """The requests as they were sent, in a file of the experiment."""

    trace: Path
    prompts: Prompts = Prompts()


@dataclass(frozen=True, slots=True)
class Lengths:
    """A part of the requests that has these lengths."""

    weight: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class LoadStage:
    """A rate for a while; the client waits for all answers before the next stage."""

    rate_per_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Stages of arrivals that don't wait for answers: Poisson with a given count."""

    stages: tuple[LoadStage, ...]
    lengths: tuple[Lengths, ...]
    prompts: Prompts = Prompts()


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A semaphore of `concurrency`: all first requests at once, then one for each that ends.

    Attributes:
        length_range_ratio: Lengths are whole numbers drawn evenly from ratio x length to length;
            1: exactly the length.
        rounds: Requests for each place in the semaphore.
        warm_up_rounds: So many of them that don't count come before.
    """

    concurrency: int
    prompt_tokens: int
    output_tokens: int
    length_range_ratio: float = 1.0
    rounds: int = 10
    warm_up_rounds: int = 0


Client = Replay | OpenLoop | ClosedLoop


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure that was measured, in the unit that `METRICS` states."""

    metric: str
    value: float
    stage: int = OVERALL


@dataclass(frozen=True, slots=True)
class Case:
    """One measured server.

    Attributes:
        id: Its name in the file.
        client: Who sent; None: only the server's start is known.
        measured: What was measured; `kv_cache_tokens` may be given by `kv_bytes_per_gpu` instead.
        kv_bytes_per_gpu: Memory that the server's log gives the KV cache of each GPU.
        refusals: Why it can't be predicted; none if it can.
    """

    id: str
    server: Server
    client: Client | None
    measured: tuple[Measured, ...]
    kv_bytes_per_gpu: float | None = None
    refusals: tuple[str, ...] = ()
