"""What stands around a server's command: variables of its environment, GPUs that it is given."""

import re
from collections.abc import Mapping, Sequence

from kvsim.from_server.shell import commands

_ASSIGNED = re.compile(r"(?:--env=|-e)?(\w+)=(.*)", re.DOTALL)
_GPU_OPTIONS = {"--gpus", "-G"}  # of docker, and of srun
_DEVICES = r"(?:\d+|GPU-[\w-]+)(?:,(?:\d+|GPU-[\w-]+))*"
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")

# Variables of vLLM by their beginnings, on which capacity does not depend.
_IRRELEVANT = (
    "VLLM_API_KEY",
    "VLLM_ASSETS_CACHE",
    "VLLM_CACHE_ROOT",
    "VLLM_CONFIG",
    "VLLM_CONFIGURE_LOGGING",
    "VLLM_DO_NOT_TRACK",
    "VLLM_HOST_IP",
    "VLLM_HTTP_TIMEOUT",
    "VLLM_LOG",
    "VLLM_NO_USAGE_STATS",
    "VLLM_PORT",
    "VLLM_RPC",
    "VLLM_USAGE",
    "VLLM_WORKER_MULTIPROC_METHOD",
)


def variables_in(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that a command sets for the server, by itself or by docker's `-e`."""
    found: dict[str, str] = {}
    for word in words:
        match = _ASSIGNED.fullmatch(word)
        if "vllm" in word and re.search(r"[ \t\n]", word):  # sh -c "A=b vllm serve ..."
            for inner in commands(word):
                found |= variables_in(inner)
        elif match:
            found[match[1]] = match[2]
    return found


def gpus_given(words: Sequence[str], variables: Mapping[str, str]) -> int | None:
    """Return how many GPUs a server is given, by variables or by its launcher; None: not said."""
    for name in _VISIBLE:
        if re.fullmatch(_DEVICES, variables.get(name, "")):
            return variables[name].count(",") + 1
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, inline = word.partition("=")
        if name in _GPU_OPTIONS:
            return _count((inline if equals else following).strip("\"'"))
    return None


def _count(text: str) -> int | None:
    """Return how many GPUs an option gives: `4`, `h100:4`, `device=0,1`; None: all, or unknown."""
    number = re.fullmatch(r"(?:[\w.]+:)?(\d{1,4})", text)
    if number:
        return int(number[1])
    listed = text.partition("device=")[2]
    return listed.count(",") + 1 if re.fullmatch(_DEVICES, listed) else None


def is_of_old_engine(variables: Mapping[str, str]) -> bool:
    """Tell whether the variables choose the engine of vLLM before V1."""
    return variables.get("VLLM_USE_V1", "1").strip().lower() in {"0", "false"}


def unmodeled_and_irrelevant(variables: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of vLLM's variables: those whose effect is not modeled, and the others."""
    names = [name for name in variables if name.startswith("VLLM_") and name != "VLLM_USE_V1"]
    irrelevant = [name for name in names if name.startswith(_IRRELEVANT)]
    return [name for name in names if name not in irrelevant], irrelevant
