"""What is left for the KV cache on a GPU: the lines that vLLM logs at start-up."""

from kvsim.memory.budget import MemoryBudget, split_memory
from kvsim.memory.fit import at_auto_dtype, memory_budget, what_would_fit
from kvsim.memory.flags import (
    MemoryFlags,
    parallel_problems,
    refuse_several_kv_sizes,
    resolve_flags,
)
from kvsim.memory.kv_groups import KVGroup, KVLayout, kv_layout, slots_of
from kvsim.memory.startup import parse_startup_line, startup_lines

__all__ = [
    "KVGroup",
    "KVLayout",
    "MemoryBudget",
    "MemoryFlags",
    "at_auto_dtype",
    "kv_layout",
    "memory_budget",
    "parallel_problems",
    "parse_startup_line",
    "refuse_several_kv_sizes",
    "resolve_flags",
    "slots_of",
    "split_memory",
    "startup_lines",
    "what_would_fit",
]
