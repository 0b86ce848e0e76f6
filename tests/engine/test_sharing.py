"""vLLM V0 shares blocks: samples, beams and declared prefixes, step by step."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cost.pcie import HostLink
from kvsim.engine.config import EngineConfig
from kvsim.engine.schedulers.vllm_v0 import VllmV0
from kvsim.errors import InputError
from kvsim.tables import EVENT_KINDS
from kvsim.units import GIB
from kvsim.workload.beams import draw_beams
from kvsim.workload.requests import Beams
from tests.engine.harness import BLOCK, LinearCost, request_table, run, segments_of
from tests.engine.plain_v0 import COMPARED, Group, PlainV0

COST = LinearCost(7, 2, 1)
BLOCK_SIZE = 4
CONFIG = EngineConfig(
    max_num_seqs=16,
    max_num_batched_tokens=128,
    max_model_len=128,
    num_gpu_blocks=200,
    block_size=BLOCK_SIZE,
    watermark=0.01,
    enable_chunked_prefill=False,
)
TIGHT = replace(CONFIG, num_gpu_blocks=34, watermark=0.05)


def table_of(groups):
    """The request table of plain groups: a row a sequence."""
    rows = [(g.arrival, g.prompt, answer, 0) for g in groups for answer in g.answers]
    numbers = [number for number, g in enumerate(groups) for _ in g.answers]
    table = replace(request_table(rows), group=np.array(numbers))
    if groups[0].parents is not None:
        first = np.cumsum([0, *(len(g.parents) for g in groups)])
        parents = [choice for g in groups for choice in g.parents]
        width = len(groups[0].answers)
        shaped = np.array(parents, dtype=np.uint8).reshape(-1, width)
        table = replace(table, beams=Beams(width, first, shaped))
    if any(g.prefix for g in groups):
        prefixes = [g.prefix or (0, 0) for g in groups for _ in g.answers]
        prompts = [
            [(seed, tokens), (1000 + row, prompt - tokens)]
            for row, ((seed, tokens), (_, prompt, _, _)) in enumerate(
                zip(prefixes, rows, strict=True)
            )
        ]
        table = replace(
            table,
            segments=segments_of(prompts, list(range(-len(rows), 0))),
            prefix_tokens=np.array([tokens for _, tokens in prefixes]),
        )
    return table


def both(groups, config, policy):
    """The steps of the engine and of the plain one, as lists of tuples."""
    trace = run(table_of(groups), config, COST, scheduler=policy)
    steps = {name: column.tolist() for name, column in trace.tables["steps"].items()}
    steps["held"] = steps["kv_held_tokens"]
    parts = (steps[f"kv_{part}_tokens"] for part in ("held", "to_come", "inside"))
    steps["owned"] = [sum(row) for row in zip(*parts, strict=True)]
    steps["shared"] = steps["shared_kv_tokens"]
    swap_blocks = int(policy.swap_space_gib * GIB) // BLOCK.size_bytes
    swap_ns = HostLink().copy_ns(BLOCK.size_bytes, BLOCK.tensors, BLOCK.link_bytes_per_s)
    plain = PlainV0(
        groups, config, COST, swap_blocks, swap_ns, policy.swaps, policy.declared_prefixes
    ).run()
    found = [dict(zip(COMPARED, row, strict=True)) for row in zip(*(steps[n] for n in COMPARED))]
    return found, plain, trace


arrivals = st.integers(0, 600)


@st.composite
def sampled(draw):
    samples = draw(st.integers(1, 5))
    answers = st.lists(st.integers(1, 25), min_size=samples, max_size=samples)
    group = st.builds(Group, arrivals, st.integers(1, 30), answers)
    return sorted(draw(st.lists(group, min_size=1, max_size=10)), key=lambda g: g.arrival)


@st.composite
def searched(draw):
    width = draw(st.integers(2, 5))
    choice = st.lists(st.integers(0, width - 1), min_size=width, max_size=width)
    groups = []
    for _ in range(draw(st.integers(1, 8))):
        answer = draw(st.integers(1, 20))
        choices = max(0, answer - 2)
        parents = draw(st.lists(choice, min_size=choices, max_size=choices))
        group = Group(draw(arrivals), draw(st.integers(1, 30)), [answer] * width, parents)
        groups.append(group)
    return sorted(groups, key=lambda g: g.arrival)


@st.composite
def prefixed(draw):
    lengths = draw(st.lists(st.integers(1, 18), min_size=1, max_size=2))
    groups = draw(sampled())
    for group in groups:
        number = draw(st.integers(0, len(lengths)))
        if number < len(lengths):
            group.prefix = (1 + number, lengths[number])
            group.prompt += lengths[number]
    return groups


@pytest.mark.parametrize("config", [CONFIG, TIGHT], ids=["ample", "tight"])
@pytest.mark.parametrize("preemption", ["auto", "swap"])
@settings(max_examples=60)
@given(groups=sampled() | searched() | prefixed(), declared=st.booleans())
def test_the_engine_does_as_the_plain_one(config, preemption, groups, declared):
    policy = VllmV0(preemption=preemption, declared_prefixes=declared)
    found, plain, _ = both(groups, config, policy)
    assert found == plain
