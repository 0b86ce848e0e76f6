"""Pipeline stages: laws of a cycle over equal batches, against the same model without stages."""

from dataclasses import replace

import numpy as np
import pytest

from kvsim.cost import StepShape
from kvsim.cost.collectives import hop_curve
from kvsim.cost.kernels import Deployment, build_cost
from kvsim.cost.overheads.none import NoOverhead
from kvsim.gpu import load_gpu
from kvsim.model import load_model

H100 = load_gpu("h100_sxm")
LLAMA = load_model("meta-llama/Llama-3.1-8B-Instruct")  # 32 layers
ALONE = Deployment(1, "auto", 1024, 128, 4096)


def built(stages: int, **changes: object):
    deployment = replace(ALONE, pipeline_parallel_size=stages, **changes)
    return build_cost(LLAMA, H100, deployment, NoOverhead())


def decode_ns(cost, seqs: int, context: int) -> int:
    return cost.step_ns(seqs, seqs, seqs, seqs * context, 0.0)


def hops_ns(stages: int, tokens: int) -> float:
    hop = hop_curve(H100, np.array([tokens * 2 * LLAMA.hidden_size * 2.0]), between_nodes=False)
    back = hop_curve(H100, np.array([tokens * 8.0]), between_nodes=False)
    return float((stages - 1) * hop.ns[0] + back.ns[0])


def part_ns(cost, component: str, steps: StepShape) -> float:
    split = cost.parts_ns(steps)
    return sum(float(np.sum(ns)) for part, ns in split.items() if part.component == component)


def decodes(seqs: int, context: int) -> StepShape:
    zero = np.zeros(1, np.int64)
    return StepShape(zero, zero, zero, zero, zero, np.array([seqs]), np.array([seqs * context]))


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_sequence_alone_passes_all_stages_and_the_hops(stages):
    expected = decode_ns(built(1), 1, 1000) + hops_ns(stages, 1)
    assert decode_ns(built(stages), 1, 1000) == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("stages", [2, 4])
def test_a_full_pipe_takes_as_long_as_all_layers_at_its_share_of_the_sequences(stages):
    seqs = 32 * stages
    alone, piped = built(1), built(stages)
    last = sum(part_ns(alone, name, decodes(32, 500)) for name in ("logits", "sampler"))
    expected = decode_ns(alone, 32, 500) + (stages - 1) * last + hops_ns(stages, 32)
    assert decode_ns(piped, seqs, 500) == pytest.approx(expected, rel=1e-6)


def test_uneven_stages_go_at_the_pace_of_the_longest():
    # 32 layers in 3 stages: 11 are the longest, so a cycle lasts as 33 layers would.
    alone, piped = decodes(16, 800), decodes(48, 800)
    layers = part_ns(built(1), "gemm", alone)
    assert part_ns(built(3), "gemm", piped) == pytest.approx(layers * 33 / 32, rel=1e-6)


def test_chunks_are_spread_over_the_batches_in_flight():
    alone, piped = built(1), built(4)
    chunk_ns = alone.chunks_ns([(512, 1000)])
    assert piped.chunks_ns([(512, 1000)]) == chunk_ns
    one = piped.step_ns(512, 1, 0, 0, chunk_ns)
    assert one == pytest.approx(alone.step_ns(512, 1, 0, 0, chunk_ns) + hops_ns(4, 512), abs=2)
    two = piped.step_ns(1024, 2, 0, 0, 2 * chunk_ns)
    assert one <= two < 1.02 * one


def test_parts_sum_to_the_duration():
    cost = built(4)
    rows = [(0, 0, 0, 3, 900), (1, 300, 700, 0, 0), (2, 512, 2000, 61, 61_123), (0, 0, 0, 128, 9e4)]
    durations, columns = [], []
    for chunks, tokens, kv_tokens, seqs, context in rows:
        chunks_ns = chunks * cost.chunks_ns([(200, 100)])
        durations.append(cost.step_ns(tokens + seqs, chunks + seqs, seqs, int(context), chunks_ns))
        columns.append((chunks, tokens, kv_tokens, 0, chunks_ns, seqs, int(context)))
    steps = StepShape(*(np.array(column) for column in zip(*columns, strict=True)))
    total = np.sum(list(cost.parts_ns(steps).values()), axis=0)
    assert np.abs(total - durations).max() <= 1


def test_a_gpu_does_its_stage_of_the_work():
    flops, size_bytes = built(1).work(decodes(32, 500))
    piped_flops, piped_bytes = built(4).work(decodes(128, 500))
    assert piped_flops[0] == pytest.approx(flops[0])  # four times the tokens, a quarter of layers
    assert piped_bytes[0] == pytest.approx(size_bytes[0])  # its weights are read four times


def test_stages_on_several_nodes_send_over_the_network():
    inside = built(2, tensor_parallel_size=4)
    across = built(4, tensor_parallel_size=4)
    steps = decodes(1, 100)
    beyond = part_ns(across, "communication", steps) - part_ns(inside, "communication", steps)
    within = part_ns(inside, "communication", steps)
    assert beyond > 0
    network = hop_curve(H100, np.array([1e6]), between_nodes=True)
    node = hop_curve(H100, np.array([1e6]), between_nodes=False)
    assert network.ns[0] > 2 * node.ns[0]
    assert within > 0
