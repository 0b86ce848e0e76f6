"""Settings of vLLM that kvsim doesn't model: refused by name, never ignored."""

from collections.abc import Mapping
from typing import Any

_NEUTRAL = (None, False)  # says that the feature is not used

_ONE = (None, 1)
_REPLICAS = "replicas don't share a step; set replicas, each with its own GPUs"

# vLLM's name → (values that change nothing, why it is refused and what to do instead).
NOT_MODELLED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "enable_prefix_caching": (
        _NEUTRAL,
        "prefix caching is not modelled in this version: every prompt is computed in full; set it "
        "to false, which predicts a server without it",
    ),
    "async_scheduling": (
        _NEUTRAL,
        "asynchronous scheduling is not modelled in this version: a step is scheduled when the one "
        "before has ended; set it to false",
    ),
    "scheduling_policy": (
        (None, "fcfs"),
        "only first come, first served is modelled; set it to fcfs",
    ),
    "pipeline_parallel_size": (_ONE, "pipeline stages are not modelled; use tensor_parallel_size"),
    "data_parallel_size": (_ONE, f"data-parallel ranks are not modelled: {_REPLICAS}"),
    "decode_context_parallel_size": (_ONE, "context parallelism is not modelled; leave it at 1"),
    "prefill_context_parallel_size": (_ONE, "context parallelism is not modelled; leave it at 1"),
    "enable_expert_parallel": (
        _NEUTRAL,
        "expert parallelism is not modelled; experts are split by tensor_parallel_size",
    ),
    "speculative_config": (
        _NEUTRAL,
        "speculative decoding is not modelled: every step yields one token a sequence; remove it "
        "and read the result as that of a server without it",
    ),
    "kv_transfer_config": (
        _NEUTRAL,
        "disaggregated prefill and decode, and KV offloading, are not modelled; remove it: each "
        "replica prefills and decodes",
    ),
    "no_enable_prefix_caching": ((None, True), "write enable_prefix_caching: false"),
    "kv_offloading_size": (
        (None, 0),
        "offloading KV to the CPU is not modelled; remove it: preempted requests are recomputed",
    ),
    "swap_space": (
        (None, 0),
        "vLLM V1 does not swap, and neither does kvsim; remove it: preempted requests are "
        "recomputed",
    ),
    "cpu_offload_gb": (
        (None, 0),
        "offloading weights to the CPU is not modelled; remove it, and use a larger "
        "tensor_parallel_size if the model does not fit",
    ),
    "enable_lora": (_NEUTRAL, "LoRA adapters are not modelled; remove it"),
    "max_loras": (_ONE, "LoRA adapters are not modelled; remove it"),
    "max_lora_rank": ((None,), "LoRA adapters are not modelled; remove it"),
    "num_scheduler_steps": (_ONE, "vLLM V1 has no multi-step scheduling; remove it"),
    "max_num_scheduled_tokens": (
        (None,),
        "a scheduling limit below the token budget is not modelled; lower max_num_batched_tokens",
    ),
    "max_num_partial_prefills": (
        _ONE,
        "limits on concurrent partial prefills are not modelled; long_prefill_token_threshold is",
    ),
    "max_long_partial_prefills": (
        _ONE,
        "limits on concurrent partial prefills are not modelled; long_prefill_token_threshold is",
    ),
    "scheduler_delay_factor": ((None, 0), "vLLM V1 has no scheduler delay; remove it"),
    "prefill_schedule_interval": ((None, 1), "spaced-out prefills are not modelled; remove it"),
    "enable_dbo": (_NEUTRAL, "dual-batch overlap is not modelled; remove it"),
    "scheduler_cls": ((None,), "only vLLM's own scheduler is modelled; remove it"),
    "sliding_window": ((None,), "the window is read from the model's config.json; remove it"),
    "rope_scaling": (
        (None,),
        "a stretched context is read from the model's config.json; remove it",
    ),
    "hf_overrides": ((None, {}), "put the change into a config.json and name it as the model"),
    "limit_mm_per_prompt": ((None, {}), "images, audio and video are not modelled; remove it"),
    "guided_decoding_backend": (
        (None,),
        "the cost of structured output is not modelled; remove it",
    ),
    "structured_outputs_config": (
        (None, {}),
        "the cost of structured output is not modelled; remove it",
    ),
}


def refuse_unmodelled(engine: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Sort out vLLM's settings that kvsim doesn't model.

    Args:
        engine: The section `engine` as written.

    Returns:
        The section without them, and for each that asks for something: name → why it is refused.
        A setting that says that its feature is off asks for nothing.
    """
    refused = {
        name: NOT_MODELLED[name][1]
        for name, value in engine.items()
        if name in NOT_MODELLED and not _is_neutral(value, NOT_MODELLED[name][0])
    }
    return {key: value for key, value in engine.items() if key not in NOT_MODELLED}, refused


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value == item and type(value) is type(item) for item in neutral)
