"""What every allocator's `check` asks for; works under `python -O` too."""

from kvsim.engine.allocators import KVAllocator
from kvsim.errors import require


def require_sums(pool: KVAllocator, taken: int, rounding: int, free: int) -> None:
    """Compare an allocator's running sums with the same sums counted afresh, in tokens.

    `free` counts all free slots, in usable holes or not.
    """
    require(pool.taken_tokens == taken, f"taken: {pool.taken_tokens}, counted {taken}")
    require(pool.rounding_tokens == rounding, f"rounding: {pool.rounding_tokens} != {rounding}")
    split = pool.holes_tokens + pool.free_tokens
    require(split == free, f"holes + free: {split}, counted {free}")
    require(taken + rounding + free == pool.capacity_tokens, "slots don't sum to the capacity")
