"""Does a model fit a GPU? If not: by how much, where the memory goes, and what would fit."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvsim.errors import InputError
from kvsim.gpu import GpuSpec
from kvsim.memory.budget import MemoryBudget, split_memory
from kvsim.memory.flags import MemoryFlags, check_flags
from kvsim.model import ModelSpec, element_bytes, quantized_weights
from kvsim.units import format_bytes

# A node has 8 GPUs; stages may be on several.
LARGER_LAYOUTS = {"tensor_parallel_size": (2, 4, 8), "pipeline_parallel_size": (2, 3, 4, 8)}
SMALLEST_STEP_TOKENS = 512  # a smaller max_num_batched_tokens is no sensible advice
SMALLEST_BATCH_SEQS = 16
# Compute capability (8.0 is 80) from which CUDA has bfloat16, and vLLM's kernels fp8: of its own
# from 8.9, for weights and KV cache alone before.
AMPERE = 80


def memory_budget(model: ModelSpec, gpu: GpuSpec, flags: MemoryFlags) -> MemoryBudget:
    """Split the memory of a GPU into weights, activations, graphs, the rest, and the KV cache.

    Raises:
        InputError: Flags or a dtype that vLLM refuses, or a model that doesn't fit: by how much,
            and what would fit.
    """
    check_flags(model, flags)
    if model.dtype == "bfloat16" and not _is_ampere_or_newer(gpu):
        raise InputError(
            f"{gpu.name} has no bfloat16, which needs compute capability 8.0: set dtype float16"
        )
    budget = split_memory(model, gpu, flags)
    if not budget.fits:
        raise InputError(_does_not_fit(model, gpu, budget))
    return budget


def at_auto_dtype(model: ModelSpec, gpu: GpuSpec) -> ModelSpec:
    """Return the model as `dtype: auto` serves it: in float16 where the GPU has no bfloat16.

    So does vLLM's `_resolve_auto_dtype`; an explicit `bfloat16` it refuses.
    """
    if model.dtype == "bfloat16" and not _is_ampere_or_newer(gpu):
        return replace(model, dtype="float16")
    return model


def what_would_fit(model: ModelSpec, gpu: GpuSpec, flags: MemoryFlags) -> list[str]:
    """Return changes that make the model fit, each computed; none if it fits already.

    A change that leaves the longest request no longer than it is now is none: where the KV cache
    is given, weights and activations don't matter.
    """
    now = split_memory(model, gpu, flags)
    if now.fits:
        return []
    tried = [
        ("", now),
        *_larger_pool(model, gpu, now),
        *_smaller_steps(model, gpu, now),
        *_fp8(model, gpu, flags),
        *_more_gpus(model, gpu, flags),
    ]
    return [
        _at_length(change, budget)
        for change, budget in tried
        if budget.fits
        or budget.longest_request_tokens > (now.longest_request_tokens * bool(change))
    ]


def _is_ampere_or_newer(gpu: GpuSpec) -> bool:
    return gpu.sm_arch is None or gpu.sm_arch >= AMPERE


def _does_not_fit(model: ModelSpec, gpu: GpuSpec, budget: MemoryBudget) -> str:
    flags = budget.flags
    needed = _needed_blocks(budget) * budget.block_bytes
    changes = "; ".join(what_would_fit(model, gpu, flags)) or "none of the changes that were tried"
    return (
        f"{model.name} does not fit {gpu.name} at {_sizes(flags)}: one request of "
        f"{flags.max_model_len} tokens takes {format_bytes(needed)} of KV cache; "
        f"{_where_memory_goes(budget)}: {format_bytes(needed - budget.kv_cache_bytes)} short. "
        f"What would fit: {changes}"
    )


def _sizes(flags: MemoryFlags) -> str:
    names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    more = [name for name in names[1:] if getattr(flags, name) > 1]
    return ", ".join(f"{name} {getattr(flags, name)}" for name in (names[0], *more))


def _where_memory_goes(budget: MemoryBudget) -> str:
    left = format_bytes(max(0, budget.kv_cache_bytes))
    if budget.blocks_source != "computed":
        return f"{budget.blocks_source} gives it {left}"
    graphs = budget.cuda_graph_bytes if budget.flags.generation.counts_cuda_graphs else 0
    return (
        f"of a budget of {format_bytes(budget.budget_bytes)} weights take "
        f"{format_bytes(sum(budget.weights_bytes.values()))}, activations of a step "
        f"{format_bytes(budget.activation_bytes)}, CUDA graphs {format_bytes(graphs)} and "
        f"non-torch memory {format_bytes(budget.non_torch_bytes)}, so {left} is left"
    )


def _needed_blocks(budget: MemoryBudget) -> int:
    flags = budget.flags
    return budget.blocks_per_request(flags.max_model_len) + flags.generation.null_blocks


def _larger_pool(
    model: ModelSpec, gpu: GpuSpec, now: MemoryBudget
) -> Iterator[tuple[str, MemoryBudget]]:
    """Yield a KV cache that is given and large enough, where it is given."""
    blocks = _needed_blocks(now)
    if now.blocks_source == "num_gpu_blocks_override":
        larger = replace(now.flags, num_gpu_blocks_override=blocks)
        yield f"num_gpu_blocks_override {blocks}", split_memory(model, gpu, larger)
    elif now.blocks_source == "kv_cache_memory_bytes":
        size = blocks * now.block_bytes
        larger = replace(now.flags, kv_cache_memory_bytes=size)
        yield f"kv_cache_memory_bytes {size}", split_memory(model, gpu, larger)


def _smaller_steps(
    model: ModelSpec, gpu: GpuSpec, now: MemoryBudget
) -> Iterator[tuple[str, MemoryBudget]]:
    """Yield the largest power of two, of tokens and of sequences in a step, that fits.

    If none does, and nothing fits now, the smallest that is sensible.
    """
    smallest = {
        "max_num_batched_tokens": max(SMALLEST_STEP_TOKENS, now.flags.max_num_seqs),
        "max_num_seqs": SMALLEST_BATCH_SEQS,
    }
    for name, least in smallest.items():
        value = getattr(now.flags, name)
        budget = now
        while value > least and not budget.fits:
            value = max(least, 1 << ((value - 1).bit_length() - 1))
            budget = split_memory(model, gpu, replace(now.flags, **{name: value}))
        if budget.fits or not now.longest_request_tokens:
            yield f"{name} {value}", budget


def _fp8(model: ModelSpec, gpu: GpuSpec, flags: MemoryFlags) -> Iterator[tuple[str, MemoryBudget]]:
    """Yield weights and KV cache in fp8, where the GPU has kernels for them."""
    if not _is_ampere_or_newer(gpu):
        return
    if model.quantization is None:
        smaller = replace(model, quantization=quantized_weights("fp8"))
        yield "fp8 weights", split_memory(smaller, gpu, flags)
    if element_bytes(model.kv_cache_dtype(flags.kv_cache_dtype)) > 1:
        fp8_cache = replace(flags, kv_cache_dtype="fp8")
        yield "kv_cache_dtype fp8", split_memory(model, gpu, fp8_cache)


def _more_gpus(
    model: ModelSpec, gpu: GpuSpec, flags: MemoryFlags
) -> Iterator[tuple[str, MemoryBudget]]:
    """Yield more GPUs for each layer, then more stages, up to what needs no shorter length."""
    now = flags
    for name, sizes in LARGER_LAYOUTS.items():
        for size in (size for size in sizes if size > getattr(flags, name)):
            change: dict[str, Any] = {name: size}
            larger = replace(now, **change)
            try:
                check_flags(model, larger)
                budget = split_memory(model, gpu, larger)
            except InputError:  # the heads can't be divided so, or there are fewer layers
                continue
            yield _sizes(larger), budget
            if budget.fits:
                return
            now = larger if name == "tensor_parallel_size" else now


def _at_length(change: str, budget: MemoryBudget) -> str:
    """Return the change, with the longest `max_model_len` if the one asked for is too long."""
    if budget.fits:
        return change
    length = f"max_model_len {budget.longest_request_tokens}"
    return f"{change} with {length}" if change else length
