"""`kvsim memory`: where the memory of a GPU goes, without starting a server."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvsim.memory import MemoryBudget


def memory(
    model: Annotated[str, typer.Option(help="Name in the catalog, or path of a config.json.")],
    gpu: Annotated[str, typer.Option(help="Name in the catalog, such as h100_sxm.")],
    tensor_parallel_size: Annotated[
        int | None, typer.Option(help="GPUs that share each layer.")
    ] = None,
    pipeline_parallel_size: Annotated[
        int | None, typer.Option(help="Stages that the layers are divided into.")
    ] = None,
    data_parallel_size: Annotated[
        int | None, typer.Option(help="Engines of one replica; they share the experts.")
    ] = None,
    enable_expert_parallel: Annotated[bool, typer.Option(help="Whole experts on a GPU.")] = False,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="Part of the GPU's memory that the engine takes.")
    ] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Longest request, in tokens.")] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens of one engine step.")
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Sequences of one engine step.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens of one KV block.")] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="auto, bfloat16, fp8, ...")] = None,
    enforce_eager: Annotated[bool, typer.Option(help="No CUDA graphs.")] = False,
    num_gpu_blocks_override: Annotated[
        int | None, typer.Option(help="A measured number of KV blocks.")
    ] = None,
    kv_cache_memory_bytes: Annotated[
        int | None, typer.Option(help="KV cache of one GPU, instead of what would be left.")
    ] = None,
    kv_startup_line: Annotated[
        str | None, typer.Option(help="What a server logged about its KV cache, pasted.")
    ] = None,
    vllm_version: Annotated[
        str | None, typer.Option(help="Version whose memory profile is followed.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")] = False,
) -> None:
    """Show where the memory of a GPU goes, and what is left for the KV cache."""
    from kvsim.gpu import load_gpu
    from kvsim.memory import (
        at_auto_dtype,
        memory_budget,
        parse_startup_line,
        refuse_several_kv_sizes,
        resolve_flags,
        split_memory,
    )
    from kvsim.model import load_model

    refuse_several_kv_sizes(num_gpu_blocks_override, kv_startup_line, kv_cache_memory_bytes)
    card = load_gpu(gpu)
    spec = at_auto_dtype(load_model(model), card)
    flags = resolve_flags(
        spec,
        card,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        enable_expert_parallel=enable_expert_parallel,
        gpu_memory_utilization=gpu_memory_utilization,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        block_size=block_size,
        kv_cache_dtype=kv_cache_dtype,
        enforce_eager=enforce_eager,
        num_gpu_blocks_override=num_gpu_blocks_override,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        vllm_version=vllm_version,
    )
    if kv_startup_line is not None:
        from dataclasses import replace

        blocks = parse_startup_line(kv_startup_line, split_memory(spec, card, flags).kv_layout)
        flags = replace(flags, num_gpu_blocks_override=blocks)
    budget = memory_budget(spec, card, flags)
    if json:
        import json as json_format

        print(json_format.dumps(_for_machines(model, gpu, budget), indent=2))
    else:
        print(_as_text(model, gpu, budget))


def _lengths(budget: "MemoryBudget") -> list[int]:
    """Return `max_model_len` and shorter lengths, each a quarter of the one before."""
    lengths = [budget.flags.max_model_len]
    while lengths[-1] // 4 >= 256 and len(lengths) < 5:
        lengths.append(lengths[-1] // 4)
    return lengths


def _for_machines(model: str, gpu: str, budget: "MemoryBudget") -> dict[str, Any]:
    from dataclasses import asdict

    from kvsim.memory import startup_lines

    return {
        "model": model,
        "gpu": gpu,
        **asdict(budget),
        "block_bytes": budget.block_bytes,
        "kv_cache_tokens": budget.kv_cache_tokens,
        "max_concurrency": {str(n): budget.max_concurrency(n) for n in _lengths(budget)},
        "startup_lines": startup_lines(budget),
    }


def _as_text(model: str, gpu: str, budget: "MemoryBudget") -> str:
    from kvsim.memory import startup_lines

    flags = budget.flags
    num_gpus = flags.parallel.num_gpus
    gpus = f"{num_gpus} x {gpu}" if num_gpus > 1 else gpu
    lines = [f"{model} on {gpus}: memory of one GPU", ""]
    lines += [f"  {label:<34}{size:>12}  {note}".rstrip() for label, size, note in _rows(budget)]
    lines += ["", f"  {'tokens per request':<34}{'concurrency':>12}"]
    lines += [f"  {n:<34,}{budget.max_concurrency(n):>11,.2f}x" for n in _lengths(budget)]
    lines += ["", *startup_lines(budget)]
    return "\n".join(lines)


def _rows(budget: "MemoryBudget") -> list[tuple[str, str, str]]:
    """Return the split as (label, size, note)."""
    from kvsim.units import format_bytes

    flags = budget.flags
    weights = budget.weights_bytes
    inside = "" if flags.generation.counts_cuda_graphs else "beside the budget"
    sizes = [
        ("total", budget.total_bytes, "nominal"),
        ("usable", budget.usable_bytes, "" if budget.usable_is_known else "estimated"),
        ("budget", budget.budget_bytes, f"gpu_memory_utilization {flags.gpu_memory_utilization}"),
        ("weights", sum(weights.values()), ""),
        *((f"  {part.replace('_', ' ')}", size, "") for part, size in weights.items()),
        ("activation peak", budget.activation_bytes, f"{flags.max_num_batched_tokens} tokens"),
        ("CUDA graphs", budget.cuda_graph_bytes, "none: eager" if flags.enforce_eager else inside),
        ("non-torch", budget.non_torch_bytes, "CUDA modules, NCCL"),
        ("KV cache", budget.kv_cache_bytes, budget.blocks_source),
        ("  per token", budget.kv_bytes_per_token, ""),
    ]
    if budget.state_bytes_per_sequence:
        sizes.append(("  per sequence, any length", budget.state_bytes_per_sequence, ""))
    rows = [(label, format_bytes(size), note) for label, size, note in sizes]
    rows.append(("  blocks", f"{budget.num_gpu_blocks:,}", _block_note(budget)))
    rows.append(("  tokens", f"{budget.kv_cache_tokens:,}", ""))
    return rows


def _block_note(budget: "MemoryBudget") -> str:
    """Say how many tokens a block has, and how many groups of layers take from the blocks."""
    groups = budget.kv_layout.groups
    sizes = " or ".join(str(size) for size in sorted({group.block_size for group in groups}))
    windows = sum(1 for group in groups if group.window_tokens)
    if not windows:
        return f"of {sizes} tokens"
    return f"of {sizes} tokens; KV groups: {len(groups)}, with a window: {windows}"
