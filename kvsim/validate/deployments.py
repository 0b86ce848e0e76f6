"""A recorded server → the scenario that a user would write for it."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError

from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.gpu import gpu_names
from kvsim.model import load_model, model_names
from kvsim.policy import Parameters
from kvsim.scenario.schema import Scenario
from kvsim.validate.case import Server
from kvsim.workload.parameters import Workload

T = TypeVar("T", bound=Parameters)

GPU_MEMORY_UTILIZATION = 0.9  # the engines' default in the versions before kvsim's own

# What a name says of how a checkpoint is stored, as `engine.quantization` calls it; the first hit
# counts.
_PRECISIONS = {
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "w4a16": "int4",
    "awq": "int4",
    "gptq": "int4",
    "int4": "int4",
    "w8a8": "int8",
    "int8": "int8",
    "fp8": "fp8",
    "fp4": "nvfp4",
}
# Words of a name that don't change a model's shapes: its tuning, its packaging, its release.
_SAME_SHAPES = re.compile(
    r"meta|instruct|chat|hf|it|base|dynamic|static|block|pertensor|quantized|kv|thinking"
    r"|v0\.\d|\d{4}|fp8|fp4|nvfp4|mxfp4|w4a16|w8a8|int4|int8|awq|gptq|bf16|fp16"
)

_VENDOR_WORDS = {"", "nvidia", "geforce", "tesla", "gpu", "tensor", "core"}
_MEMORY_SIZE = re.compile(r"(\d{2,3})gi?b?")


def scenario_of(server: Server, workload: Workload, with_recorded_blocks: bool = True) -> Scenario:
    """Return the deployment as a scenario; names of models and GPUs become those of the catalog.

    Args:
        server: What is recorded of it; what isn't stays as `vllm serve` has it.
        workload: What its clients sent.
        with_recorded_blocks: Take the KV blocks that the server logged rather than compute them.

    Raises:
        InputError: The catalog has no such model or GPU, or the engine can't be set up so.
    """
    problems: list[Problem] = []
    model, quantization = _told(problems, model_and_quantization, server) or ("", None)
    gpu = _told(problems, gpu_of, server.gpu)
    _refuse_mixed_experts(server, problems)
    if problems:
        raise InputError(*problems)
    blocks = server.num_gpu_blocks if with_recorded_blocks else None
    engine = {
        **_parallel(server),
        "quantization": quantization,
        "dtype": _dtype(server.dtype),
        "kv_cache_dtype": _kv_dtype(server.kv_cache_dtype),
        "max_model_len": server.max_model_len or _longest_that_fits(model, server),
        "max_num_batched_tokens": server.max_num_batched_tokens,
        "max_num_seqs": server.max_num_seqs,
        "gpu_memory_utilization": server.gpu_memory_utilization or GPU_MEMORY_UTILIZATION,
        "block_size": server.block_size,
        "num_gpu_blocks_override": blocks,
        "enable_prefix_caching": server.enable_prefix_caching,
        "enable_chunked_prefill": server.enable_chunked_prefill,
    }
    return validated(
        Scenario,
        {
            "name": "validate",
            "model": model,
            "gpu": gpu,
            "engine": {name: value for name, value in engine.items() if value is not None},
            "workload": workload,
            "cost": {
                "kind": "kernels",
                "profile": profile_name(server.engine, server.version),
                "sampling": server.sampling,
            },
            "oversized_requests": "reject",
        },
    )


def _longest_that_fits(model: str, server: Server) -> int | None:
    """Return a limit for a server that started although its model's context is larger.

    Of such a server the limit isn't recorded, but it can't be more than its KV cache.
    """
    if server.num_gpu_blocks is None or server.block_size is None:
        return None
    most_tokens = (server.num_gpu_blocks - 1) * server.block_size
    return most_tokens if load_model(model).max_position_embeddings > most_tokens else None


def profile_name(engine: str, version: str | None) -> str:
    """Return the profile of constants for an engine's version; without one, that of vLLM 0.15."""
    if engine != "vllm":
        return {"trtllm": "trtllm-1.x", "sglang": "sglang-0.5"}.get(engine, "vllm-0.15")
    found = re.match(r"v?(\d+)\.(\d+)", version or "")
    if found is None:
        return "vllm-0.15"
    release = (int(found[1]), int(found[2]))
    if release < (0, 8):
        return "vllm-v0"
    if release < (0, 14):
        return "vllm-0.12"
    if release < (0, 18):
        return "vllm-0.15"
    return "vllm-0.19" if release < (0, 22) else "vllm-0.23"


# Models


def model_and_quantization(server: Server) -> tuple[str, str | None]:
    """Return the model of the catalog, and what it is quantized to while loading.

    A checkpoint of the catalog in the recorded precision is taken where there is just one. Any
    tuning of a model has the shapes of its base.
    """
    wanted = _precision(f"{server.precision or ''} {server.model}")
    if server.model in model_names() and wanted in {None, _stored(server.model)}:
        return server.model, None
    like = [name for name in model_names() if _shapes(name) == _shapes(server.model)]
    if not like:
        hint = did_you_mean(server.model, model_names(), at_most=3)
        raise InputError(f"model {server.model!r} is not in the catalog{hint}")
    stored = [name for name in like if _stored(name) == wanted]
    if len(stored) == 1 or (stored and wanted is None):
        return stored[0], None
    plain = [name for name in like if _stored(name) is None]
    if not plain:  # stored in one precision only, whatever a dashboard calls it
        return like[0], None
    return (server.model if server.model in plain else plain[0]), wanted


def _precision(text: str) -> str | None:
    return next((kind for word, kind in _PRECISIONS.items() if word in text.lower()), None)


@cache
def _stored(name: str) -> str | None:
    quantization = load_model(name).quantization
    return None if quantization is None else quantization.weight_dtype.removesuffix("_block")


def _shapes(name: str) -> str:
    words = re.split(r"[-_ ]", name.rpartition("/")[2].lower())
    return "-".join(word for word in words if not _SAME_SHAPES.fullmatch(word))


# GPUs


def gpu_of(name: str) -> str:
    """Return the catalog's name of a GPU, for example of `H100-80GB-SXM`.

    A data-center GPU without its form is one with NVLink.

    Raises:
        InputError: The catalog has no such GPU.
    """
    known = {plain.replace("_", ""): plain for plain in gpu_names()}
    text = re.sub(r"(?<=\d)[ -](?=gi?b\b)", "", name.lower())
    words = [word for word in re.split(r"[^a-z0-9]+", text) if word not in _VENDOR_WORDS]
    sizes = [found[1] for word in words if (found := _MEMORY_SIZE.fullmatch(word))]
    bare = "".join(word for word in words if not _MEMORY_SIZE.fullmatch(word))
    for form in ("", "sxm", "server"):
        for size in (*(f"{size}gb" for size in sizes), ""):
            for candidate in (f"{bare}{form}{size}", f"{bare.removeprefix('rtx')}{form}{size}"):
                if bare and candidate in known:
                    return known[candidate]
    raise InputError(f"GPU {name!r} is not in the catalog")


# The engine


def _parallel(server: Server) -> dict[str, Any]:
    """Return the settings of parallelism that differ from one GPU."""
    wanted: dict[str, Any] = {
        "tensor_parallel_size": server.tensor_parallel_size,
        "pipeline_parallel_size": server.pipeline_parallel_size,
        "data_parallel_size": server.data_parallel_size,
    }
    sizes = {name: size for name, size in wanted.items() if size > 1}
    return sizes | ({"enable_expert_parallel": True} if _shares_experts(server) else {})


def _shares_experts(server: Server) -> bool:
    return (server.expert_parallel_size or 1) > 1


def _refuse_mixed_experts(server: Server, problems: list[Problem]) -> None:
    if _shares_experts(server) and (server.expert_tensor_parallel_size or 1) > 1:
        problems.append(
            Problem(
                f"experts are shared by {server.expert_parallel_size} groups and each is cut in "
                f"{server.expert_tensor_parallel_size}: vLLM does one or the other"
            )
        )


def _dtype(name: str | None) -> str | None:
    return {"bf16": "bfloat16", "fp16": "float16"}.get((name or "").lower(), name)


def _kv_dtype(name: str | None) -> str | None:
    """Return vLLM's word; 16 bit is that of the model."""
    return None if (name or "").lower() in {"bf16", "fp16"} else name


def _told(problems: list[Problem], find: Any, wanted: Any) -> Any:
    try:
        return find(wanted)
    except InputError as error:
        problems += error.problems
        return None


def validated(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return a part of a scenario; its mistakes become an `InputError`."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise InputError(
            *(
                Problem(mistake["msg"], path=".".join(str(step) for step in mistake["loc"]))
                for mistake in error.errors()
            )
        ) from error
