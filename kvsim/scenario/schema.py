"""What a scenario file may say: sections, fields, types and limits.

Fields of `engine` have vLLM's names. Where the default is null, `kvsim.scenario.resolve` fills in
that of vLLM 0.33.0.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

import kvsim.cost.attention_kernels
import kvsim.cost.overheads
import kvsim.engine.allocators
import kvsim.engine.routers
import kvsim.engine.schedulers
from kvsim.cost.attention_kernels.modern import Modern
from kvsim.cost.front_end import FrontEnd
from kvsim.cost.layers import All2AllBackend
from kvsim.cost.moe import Routing
from kvsim.cost.small_ops import Sampling
from kvsim.defaults import BLOCK_SIZE, GPU_MEMORY_UTILIZATION
from kvsim.engine.allocators.paged import Paged
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.engine.schedulers.vllm import Vllm
from kvsim.errors import InputError, did_you_mean
from kvsim.gpu import CustomGpu
from kvsim.memory import refuse_several_kv_sizes
from kvsim.metrics.targets import check_targets
from kvsim.policy import OneOf, Parameters, Policy, completed
from kvsim.scenario.profiles import DEFAULT_PROFILE
from kvsim.workload.limits import Printable, Seconds, Tokens
from kvsim.workload.parameters import ClassName, Workload

BASE = "base"  # name of the scenario without any override
MOST_REPLICATIONS = 10_000
MOST_BLOCKS = 10**8  # of a KV cache; a list of more free blocks would not fit the memory

# Targets to be suggested for a misspelt one; others are understood too (`ttft_p99.9_s`).
_TARGETS = (
    "max_failed_fraction",
    *(
        f"{latency}_{statistic}_s"
        for latency in ("ttft", "tpot", "itl", "e2e", "normalized", "queue")
        for statistic in ("mean", "p50", "p90", "p95", "p99", "max")
    ),
)


def _is_file_name(name: str) -> str:
    if name.startswith(".") or "/" in name or "\\" in name:
        raise ValueError("names a folder of results: no / or \\ in it, and no dot at its start")
    return name


Name = Annotated[Printable, Field(min_length=1, max_length=80), AfterValidator(_is_file_name)]


def _is_target(name: str) -> str:
    try:
        if not name.isascii():
            raise InputError("targets are written in plain ASCII")
        check_targets({name: 1.0})
    except InputError as error:
        raise ValueError(error.problems[0].message + did_you_mean(name, _TARGETS)) from None
    return name


Slo = dict[Annotated[str, AfterValidator(_is_target)], Seconds]

if TYPE_CHECKING:
    from kvsim.cost.overheads.async_engine import AsyncEngine
    from kvsim.engine.allocators.contiguous import Contiguous
    from kvsim.engine.routers.prefix_aware import PrefixAware
    from kvsim.engine.schedulers.vllm_v0 import VllmV0

    AnyAllocator = Paged | Contiguous
    AnyRouter = RoundRobin | PrefixAware
    AnyScheduler = Vllm | VllmV0
    AnyOverhead = AsyncEngine
    AnyAttentionKernel = Modern
else:
    AnyAllocator = Annotated[Policy, OneOf(kvsim.engine.allocators, "paged")]
    AnyRouter = Annotated[Policy, OneOf(kvsim.engine.routers, "round_robin")]
    AnyScheduler = Annotated[Policy, OneOf(kvsim.engine.schedulers, "vllm")]
    AnyOverhead = Annotated[Policy, OneOf(kvsim.cost.overheads, "async_engine")]
    AnyAttentionKernel = Annotated[Policy, OneOf(kvsim.cost.attention_kernels, "modern")]


def _form_of_gpu(value: Any) -> str | None:
    if isinstance(value, str):
        return "name"
    return "custom" if isinstance(value, dict | CustomGpu) else None


AnyGpu = Annotated[
    Annotated[Printable, Field(min_length=1), Tag("name")] | Annotated[CustomGpu, Tag("custom")],
    Discriminator(
        _form_of_gpu,
        custom_error_type="gpu_form",
        custom_error_message="should be a name of the catalog or a mapping of figures",
    ),
]


class Engine(Parameters):
    """Settings of each replica, under the names of `vllm serve`."""

    dtype: Literal["auto", "bfloat16", "float16", "half"] = "auto"
    """Type of weights and activations that are not quantized; auto: the checkpoint's."""
    quantization: Literal["fp8", "int8", "int4", "nvfp4", "mxfp4"] | None = None
    """fp8: quantize a 16-bit checkpoint while loading; the others: as if it were stored so; null:
    as its config.json says."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=1024)
    """GPUs that share each layer of one replica."""
    pipeline_parallel_size: int = Field(default=1, ge=1, le=1024)
    """Stages that the layers are divided into, each on GPUs of its own."""
    data_parallel_size: int = Field(default=1, ge=1, le=1024)
    """Engines of one replica, each with GPUs, scheduler and KV cache of its own; they share the
    routed experts."""
    enable_expert_parallel: bool = False
    """Keep each routed expert whole on one GPU, instead of a piece of each on all GPUs."""
    all2all_backend: All2AllBackend = "allgather_reducescatter"
    """How tokens get to the experts of other ranks; DeepEP needs enable_expert_parallel."""
    max_model_len: Tokens | None = None
    """Longest prompt and answer together; null: the model's max_position_embeddings."""
    max_num_seqs: int | None = Field(default=None, ge=1, le=2**16)
    """Most sequences in a step; null: by the GPU's memory."""
    max_num_batched_tokens: int | None = Field(default=None, ge=1, le=2**20)
    """Token budget of a step; null: by the GPU's memory."""
    max_num_scheduled_tokens: int | None = Field(default=None, ge=1, le=2**20)
    """Token budget of a step, if it is less than max_num_batched_tokens."""
    max_num_active_seqs: int | None = Field(default=None, ge=1, le=2**16)
    """Most sequences that run at a time, if fewer than max_num_seqs."""
    gpu_memory_utilization: float = Field(default=GPU_MEMORY_UTILIZATION, gt=0, le=1)
    """Share of the GPU's memory that the engine may use."""
    block_size: int = Field(default=BLOCK_SIZE, ge=1, le=2**16)
    """Tokens in a KV block."""
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    """Type of the KV cache; auto: the checkpoint's, else the model's."""
    num_gpu_blocks_override: int | None = Field(default=None, ge=1, le=MOST_BLOCKS)
    """KV blocks as measured, instead of the computed number."""
    kv_startup_line: str | None = None
    """A line of the server's log that tells its KV cache size; overrides the computed size."""
    kv_cache_memory_bytes: int | None = Field(default=None, ge=1, le=10**14)
    """KV cache of each GPU in bytes, instead of what gpu_memory_utilization leaves."""
    enforce_eager: bool = False
    """No CUDA graphs: their memory is free for KV."""
    enable_prefix_caching: bool = True
    """Keep full blocks findable, so that equal beginnings of prompts are computed once (paged)."""
    prefix_cache_retention_interval: int | None = Field(default=0, ge=0, le=10**8)
    """Where sliding windows can be found: 0: behind prompts, n: every n tokens, null: anywhere."""
    disable_hybrid_kv_cache_manager: bool = False
    """Keep the whole context in layers with a sliding window, too."""
    enable_chunked_prefill: bool = True
    """Let a prompt be computed over several steps."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """fcfs: first come, first served; priority: the smallest priority of a request first."""
    long_prefill_token_threshold: int = Field(default=0, ge=0, le=10**8)
    """Longest chunk of one prompt in a step; 0: no limit but the token budget."""
    long_prefill_token_threshold_adaptive: bool = False
    """Raise that limit to an equal share of max_num_batched_tokens for each request there is."""
    prefill_schedule_interval: int = Field(default=1, ge=1, le=10**6)
    """Compute prompts only in one of so many steps, while others decode and none was left out."""
    async_scheduling: bool | None = None
    """Schedule a step while the one before is computed; null: as the cost's profile says, and
    vLLM's default, which is true, without one."""
    scheduler_reserve_full_isl: bool = True
    """Admit a request only if its whole prompt fits the free blocks now."""
    watermark: float = Field(default=0.0, ge=0, lt=1)
    """Share of the blocks kept free when requests are admitted."""

    @model_validator(mode="after")
    def _kv_cache_has_one_size(self) -> Self:
        try:
            refuse_several_kv_sizes(
                self.num_gpu_blocks_override, self.kv_startup_line, self.kv_cache_memory_bytes
            )
        except InputError as error:
            raise ValueError(str(error)) from None
        return self


class KernelStepCost(Policy):
    """Step time as the sum of measured CUDA kernels and the host's overhead."""

    kind: Literal["kernels"] = "kernels"
    profile: Printable = DEFAULT_PROFILE
    """Constants of an engine and its version: one that ships (`kvsim catalog`), or a file beside
    this one, as `kvsim calibrate` writes it."""
    overhead: AnyOverhead | None = None
    """Time of a step that no kernel explains; null: that of the profile."""
    front_end: FrontEnd | None = None
    """What a request pays outside of the engine's steps; null: as the profile says."""
    attention_kernel: AnyAttentionKernel = Modern.model_construct()
    """Generation of the kernels that read the KV cache: what paging costs them."""
    expert_routing: Routing = "auto"
    """How tokens choose experts: all alike (uniform, balanced), or some far more often than others;
    auto: uniform up to 32 experts, else by the power law."""
    sampling: Sampling = "plain"
    """How the next token is chosen: plain: greedily or by temperature; top_p: with top-p or top-k,
    for which logits are sorted. Without a temperature in the request vLLM samples as the model's
    generation_config.json says, which for most chat models is top-p."""


class AffineStepCost(Policy):
    """Step time as a given law: fixed + tokens + sequences + context."""

    kind: Literal["affine"] = "affine"
    fixed_ns: float = Field(default=0, ge=0, le=1e11)
    """Of every step."""
    per_token_ns: float = Field(default=0, ge=0, le=1e9)
    """For each token of the step, prefill and decode alike."""
    per_seq_ns: float = Field(default=0, ge=0, le=1e9)
    """For each sequence of the step."""
    per_context_token_ns: float = Field(default=0, ge=0, le=1e6)
    """For each token of context of each sequence, those of this step included."""
    context_floor_ns: int = Field(default=0, ge=0, le=10**11)
    """Round the context term down to a multiple of this; 0: don't."""


_COSTS = ("kernels", "affine")


def _complete_cost(value: Any) -> Any:
    return value if isinstance(value, Policy) else completed(value, "kernels", _COSTS)


if TYPE_CHECKING:
    AnyCost = KernelStepCost | AffineStepCost
else:
    _Cost = Annotated[KernelStepCost | AffineStepCost, Field(discriminator="kind")]
    _AsWritten = _Cost | Literal[_COSTS]
    AnyCost = Annotated[_Cost, BeforeValidator(_complete_cost, json_schema_input_type=_AsWritten)]


class Scenario(Parameters):
    """A deployment, what its clients send, and the targets it should meet."""

    name: Name = "scenario"
    """Name of the scenario; by default that of its file."""
    model: Printable = Field(min_length=1)
    """Name in the catalog, or path of a config.json or its folder, beside this file."""
    gpu: AnyGpu
    """Name in the catalog, or your own GPU by its figures."""
    engine: Engine = Engine.model_construct()
    """Settings of each replica, under the names of `vllm serve`."""
    kv_cache: AnyAllocator = Paged.model_construct()
    """How the KV cache is laid out."""
    scheduler: AnyScheduler = Vllm.model_construct()
    """Who runs in a step: vLLM V1's scheduler, or that of an engine of 2022 to 2024."""
    replicas: int = Field(default=1, ge=1, le=1024)
    """Equal servers, each with its own GPUs."""
    routing: AnyRouter = RoundRobin.model_construct()
    """Which replica gets a request."""
    workload: Workload
    """What the clients send."""
    slo: Slo | None = None
    """Targets such as ttft_p99_s, tpot_mean_s, e2e_p95_s, itl_p99_s, queue_p90_s (at most so many
    seconds), and max_failed_fraction, by default 0.001."""
    class_slos: dict[ClassName, Slo] = Field(default_factory=dict)
    """Targets of single classes of traffic, by their names; itl can't be told apart by class."""
    cost: AnyCost = KernelStepCost.model_construct()
    """How long a step lasts."""
    price_usd_per_gpu_hour: float | None = Field(default=None, gt=0, le=1e6)
    """Your price of a GPU; null: that of the catalog, if it knows one."""
    seed: int = Field(default=0, ge=0, lt=2**64)
    """Root of all random streams."""
    replications: int = Field(default=1, ge=1, le=MOST_REPLICATIONS)
    """Independent draws of the workload, each simulated: figures are then means with intervals."""
    warmup_s: Seconds = 0.0
    """Requests that arrive before it are left out of the latencies."""
    max_simulated_s: float | None = Field(default=None, gt=0, le=1e9)
    """Stop here: nobody arrives any more, and requests in the system count as unfinished; null: run
    until all have left."""
    oversized_requests: Literal["refuse", "reject"] = "refuse"
    """Requests that can never be served: refuse the scenario, or reject them on arrival as the
    server does, and count them."""
    variants: dict[Name, dict[str, JsonValue]] = Field(default_factory=dict)
    """Name → what differs from the above; all variants face the same requests."""

    @field_validator("slo")
    @classmethod
    def _complete_targets(cls, slo: dict[str, float] | None) -> dict[str, float] | None:
        return None if slo is None else _complete(slo)

    @field_validator("class_slos")
    @classmethod
    def _complete_targets_of_classes(
        cls, slos: dict[str, dict[str, float]], info: ValidationInfo
    ) -> dict[str, dict[str, float]]:
        classes = info.data["workload"].classes if "workload" in info.data else slos
        for name, slo in slos.items():
            if name not in classes:
                known = did_you_mean(name, classes) or f"; known are {', '.join(classes) or 'none'}"
                raise ValueError(f"the workload has no class {name!r}{known}")
            if any(target.startswith("itl") for target in slo):
                raise ValueError(f"{name}: steps don't tell whose tokens they compute: no itl here")
        return {name: _complete(slo) for name, slo in slos.items()}


def _complete(slo: dict[str, float]) -> dict[str, float]:
    complete = {"max_failed_fraction": 0.001, **slo}
    if complete["max_failed_fraction"] > 1:
        raise ValueError("max_failed_fraction is a share of the requests: at most 1")
    return complete
