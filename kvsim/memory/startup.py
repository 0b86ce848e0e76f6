"""The lines about memory that vLLM logs at start-up: written, and read from a server's log."""

import re

from kvsim.errors import InputError
from kvsim.memory.budget import MemoryBudget
from kvsim.memory.kv_groups import KVLayout
from kvsim.units import GIB

_NUMBER = r"([\d,_]+)"
_BLOCKS = re.compile(rf"#\s*(?:GPU|CUDA) blocks\s*:\s*{_NUMBER}", re.IGNORECASE)
_OVERRIDE = re.compile(rf"num_gpu_blocks\w*\s*(?:=|:|is)+\s*{_NUMBER}", re.IGNORECASE)
_TOKENS = re.compile(rf"KV cache size\s*:\s*{_NUMBER}\s*tokens", re.IGNORECASE)
_BYTES = re.compile(r"Available KV cache memory\s*:\s*([\d.]+)\s*GiB", re.IGNORECASE)
EXAMPLES = (
    "GPU KV cache size: 436,608 tokens",
    "# GPU blocks: 27288, # CPU blocks: 2048",
    "Available KV cache memory: 53.29 GiB",
)


def parse_startup_line(text: str, layout: KVLayout) -> int:
    """Return the number of KV blocks that a server's log states, in one line or several.

    A count of blocks is preferred to tokens, and tokens to GiB, which are rounded.

    Args:
        text: What the server logged.
        layout: How many tokens and bytes a block has, to turn them into blocks.

    Raises:
        InputError: No such line in the text, or it leaves no block.
    """
    blocks = 0
    if match := _BLOCKS.search(text) or _OVERRIDE.search(text):
        blocks = _integer(match[1])
    elif match := _TOKENS.search(text):
        blocks = layout.blocks(_integer(match[1]))
    elif match := _BYTES.search(text):
        blocks = int(_gib(match[1]) * GIB) // layout.block_bytes
    if blocks < 1:
        examples = "; ".join(f"'{line}'" for line in EXAMPLES)
        raise InputError(f"no KV cache size in '{text.strip()}'; expected a line like {examples}")
    return blocks


def startup_lines(budget: MemoryBudget) -> list[str]:
    """Return what vLLM logs about memory, in its words."""
    weights = sum(budget.weights_bytes.values()) / GIB
    length = budget.flags.max_model_len
    return [
        f"Model loading took {weights:.2f} GiB",
        f"Available KV cache memory: {budget.kv_cache_bytes / GIB:.2f} GiB",
        f"GPU KV cache size: {budget.kv_cache_tokens:,} tokens",
        f"Maximum concurrency for {length:,} tokens per request: "
        f"{budget.max_concurrency(length):.2f}x",
    ]


def _integer(digits: str) -> int:
    plain = digits.replace(",", "").replace("_", "")
    return int(plain) if plain else 0


def _gib(digits: str) -> float:
    try:
        return float(digits)
    except ValueError:
        return 0.0
