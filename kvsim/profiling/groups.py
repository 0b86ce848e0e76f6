"""Shapes told in few lines: those that differ in one number only share one."""

from collections.abc import Iterator, Sequence

from kvsim.profiling.shapes import AllReduce, AttentionCall, Gemm, Shape
from kvsim.profiling.tables import table_of


def grouped(shapes: Sequence[Shape]) -> Iterator[tuple[str, int, str]]:
    """Yield (table, number of shapes, what they are), in the order of the shapes."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for shape in shapes:
        what, axis, value = _told(shape)
        groups.setdefault((table_of(shape), what, axis), []).append(value)
    for (table, what, axis), values in groups.items():
        yield table, len(values), f"{what}, {axis} {' '.join(str(value) for value in values)}"


def _told(shape: Shape) -> tuple[str, str, int]:
    """Return what a shape has in common with others, the axis along which they differ, and where.

    So a prompt differs from others in its length, a decoding batch in its context.
    """
    if isinstance(shape, Gemm):
        return f"{shape.dtype} n {shape.n} k {shape.k}", "m", shape.m
    if isinstance(shape, AllReduce):
        return f"all-reduce over {shape.world_size} GPUs", "bytes", shape.size_bytes
    if isinstance(shape, AttentionCall):
        return _told_of_attention(shape)
    return f"{shape.op}, pieces {shape.pieces}", "piece_bytes", shape.piece_bytes


def _told_of_attention(shape: AttentionCall) -> tuple[str, str, int]:
    heads = f"heads {shape.q_heads}/{shape.kv_heads} of {shape.head_dim}, batch {shape.batch}"
    prefix = shape.kv_tokens - shape.new_tokens
    if shape.compared:
        call = f"{shape.phase}, {heads}, new_tokens {shape.new_tokens} prefix_tokens {prefix}"
        how = "varlen" if shape.fused else "gathered"
        return f"{call}, {how}", "block_size", shape.block_size
    if shape.phase == "decode":
        return heads, "kv_len", shape.kv_tokens
    if prefix:
        return f"{heads}, new_tokens {shape.new_tokens}", "prefix_tokens", prefix
    return heads, "new_tokens", shape.new_tokens
