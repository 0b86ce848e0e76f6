"""What kvsim does not model: settings of vLLM that are refused by name, and limits of every run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """A setting of vLLM that is refused, never ignored.

    Attributes:
        why: Why it is refused, and what to do instead.
        neutral: Values that change nothing: they say that the feature is not used.
    """

    why: str
    neutral: tuple[Any, ...] = (None, False)


_ONE = (None, 1)
_ZERO = (None, 0)
_NOTHING: tuple[Any, ...] = (None, {})
_UNSET = (None,)
_PARTIAL_PREFILLS = (
    "limits on concurrent partial prefills are not modeled; long_prefill_token_threshold is"
)

REFUSED: Mapping[str, Refusal] = {
    "decode_context_parallel_size": Refusal(
        "context parallelism is not modeled; leave it at 1", _ONE
    ),
    "prefill_context_parallel_size": Refusal(
        "context parallelism is not modeled; leave it at 1", _ONE
    ),
    "speculative_config": Refusal(
        "speculative decoding is not modeled: every step yields one token a sequence; remove "
        "it and read the result as that of a server without it"
    ),
    "kv_transfer_config": Refusal(
        "disaggregated prefill and decode, and KV offloading, are not modeled; remove it: each "
        "replica prefills and decodes"
    ),
    "no_enable_prefix_caching": Refusal("write enable_prefix_caching: false", (None, True)),
    "kv_offloading_size": Refusal(
        "offloading KV to the CPU is not modeled; remove it: preempted requests are recomputed",
        _ZERO,
    ),
    "swap_space": Refusal(
        "vLLM V1 does not swap: preempted requests are recomputed; remove it, or write "
        "scheduler: {kind: vllm_v0, preemption: swap, swap_space_gib: 4}",
        _ZERO,
    ),
    "cpu_offload_gb": Refusal(
        "offloading weights to the CPU is not modeled; remove it, and use a larger "
        "tensor_parallel_size if the model does not fit",
        _ZERO,
    ),
    "enable_lora": Refusal("LoRA adapters are not modeled; remove it"),
    "max_loras": Refusal("LoRA adapters are not modeled; remove it", _ONE),
    "max_lora_rank": Refusal("LoRA adapters are not modeled; remove it", _UNSET),
    "num_scheduler_steps": Refusal("multi-step scheduling is not modeled; remove it", _ONE),
    "max_num_partial_prefills": Refusal(_PARTIAL_PREFILLS, _ONE),
    "max_long_partial_prefills": Refusal(_PARTIAL_PREFILLS, _ONE),
    "scheduler_delay_factor": Refusal("vLLM V1 has no scheduler delay; remove it", _ZERO),
    "enable_dbo": Refusal("dual-batch overlap is not modeled; remove it"),
    "scheduler_cls": Refusal("only vLLM's own scheduler is modeled; remove it", _UNSET),
    "sliding_window": Refusal("the window is read from the model's config.json; remove it", _UNSET),
    "rope_scaling": Refusal(
        "a stretched context is read from the model's config.json; remove it", _UNSET
    ),
    "hf_overrides": Refusal("put the change into a config.json and name it as the model", _NOTHING),
    "limit_mm_per_prompt": Refusal("images, audio and video are not modeled; remove it", _NOTHING),
    "guided_decoding_backend": Refusal(
        "the cost of structured output is not modeled; remove it", _UNSET
    ),
    "structured_outputs_config": Refusal(
        "the cost of structured output is not modeled; remove it", _NOTHING
    ),
}

# What no setting asks for, and no run has.
LIMITS = (
    "The front end, where no cost profile tells its times: HTTP and tokenizing are then free.",
    "The way between clients, router and replicas: an answer is there when its token is computed.",
    "What scenarios are refused for by name, such as speculative decoding and LoRA adapters.",
)


def refuse_unmodeled(engine: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Sort out vLLM's settings that kvsim does not model.

    Args:
        engine: The section `engine` as written.

    Returns:
        The section without them, and for each that asks for something: name → why it is refused.
        A setting that says that its feature is off asks for nothing.
    """
    refused = {
        name: REFUSED[name].why
        for name, value in engine.items()
        if name in REFUSED and not _is_neutral(value, REFUSED[name].neutral)
    }
    return {key: value for key, value in engine.items() if key not in REFUSED}, refused


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value == item and type(value) is type(item) for item in neutral)
