"""Engines before vLLM V1: the laws hold whatever comes, and simple cases have closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine import schedulers
from kvsim.engine.allocators.contiguous import Contiguous
from kvsim.engine.allocators.paged import Paged
from kvsim.engine.config import EngineConfig
from kvsim.engine.schedulers.faster_transformer import FasterTransformer
from kvsim.engine.schedulers.orca import Orca
from kvsim.engine.schedulers.sarathi import Sarathi
from kvsim.engine.schedulers.vllm_v0 import VllmV0
from kvsim.metrics.latency import token_gaps
from kvsim.policy import policies_in
from kvsim.tables import EVENT_KINDS, OUTCOMES
from kvsim.units import NS_PER_S
from tests.engine.harness import BLOCK, LinearCost, request_table, run

CONFIG = EngineConfig(
    max_num_seqs=8,
    max_num_batched_tokens=96,
    max_model_len=96,
    num_gpu_blocks=20,
    enable_chunked_prefill=False,
    watermark=0.01,
)
COST = LinearCost(50, 3, 1)
SMALL_HOST = VllmV0(preemption="swap", swap_space_gib=8 * BLOCK.size_bytes / 2**30)
PAGED = [VllmV0(), VllmV0(preemption="swap"), SMALL_HOST, Sarathi(chunk_size=32)]
LAYOUTS = [
    Contiguous(),
    Contiguous(reservation="oracle", placement="buddy"),
    Contiguous(reservation="oracle_pow2", placement="buddy"),
]
CONTIGUOUS = [Orca(), FasterTransformer()]
ENGINES = [(engine, Paged()) for engine in PAGED]
ENGINES += [(engine, layout) for engine in CONTIGUOUS for layout in LAYOUTS]
SWAPPED_OUT, SWAPPED_IN = EVENT_KINDS.index("swapped_out"), EVENT_KINDS.index("swapped_in")
PREEMPTED, RESUMED = EVENT_KINDS.index("preempted"), EVENT_KINDS.index("resumed")
TIMED_OUT = OUTCOMES.index("timed_out")

every_engine = pytest.mark.parametrize(("engine", "layout"), ENGINES)


def test_the_package_has_these_schedulers():
    assert [policy.model_fields["kind"].default for policy in policies_in(schedulers)] == [
        "faster_transformer",
        "orca",
        "sarathi",
        "vllm",
        "vllm_v0",
    ]


@st.composite
def crowds(draw):
    """Requests that come close together, and how many of them fit at a time."""
    spread_ns = draw(st.sampled_from([0, 100, 3_000]))
    row = st.tuples(st.integers(0, spread_ns), st.integers(1, 95), st.integers(1, 60))
    rows = draw(st.lists(row, min_size=1, max_size=40))
    config = replace(
        CONFIG,
        num_gpu_blocks=draw(st.integers(7, 30)),
        max_num_seqs=draw(st.sampled_from([1, 3, 20])),
    )
    limits = [draw(st.sampled_from([0, 0, 30])) for _ in rows]
    return [(*row, limit) for row, limit in zip(sorted(rows), limits, strict=True)], config


@every_engine
@settings(max_examples=25, deadline=None)
@given(crowd=crowds())
def test_it_serves_whatever_comes_under_all_laws(engine, layout, crowd):
    rows, config = crowd
    if isinstance(layout, Contiguous):  # a buddy chunk of 128 slots is to take the longest
        config = replace(config, num_gpu_blocks=max(8, config.num_gpu_blocks))
    found = run(request_table(rows), config, COST, layout, scheduler=engine).tables
    requests = found["requests"]
    order = requests["request"].argsort()
    asked = [min(answer, limit or 96, 96 - prompt) for _, prompt, answer, limit in rows]
    assert requests["output_tokens"][order].tolist() == asked
    gaps_s, counts = token_gaps(found["steps"], found["events"])
    assert (counts >= 0).all()
    assert counts.sum() == sum(asked) - len(asked)
    if engine.kind != "faster_transformer":  # its answers are kept back
        decoding_ns = (requests["finish_ns"] - requests["first_token_ns"]).sum()
        assert round((gaps_s * counts).sum() * NS_PER_S) == decoding_ns
    if engine.kind in {"orca", "faster_transformer"}:
        assert not requests["preemptions"].any()


@every_engine
@settings(max_examples=15, deadline=None)
@given(crowd=crowds(), patience_ns=st.integers(1, 5_000))
def test_clients_may_give_up_at_any_time(engine, layout, crowd, patience_ns):
    rows, config = crowd
    patience = np.full(len(rows), patience_ns, dtype=np.int64)
    requests = replace(request_table(rows), timeout_ns=patience)
    found = run(requests, config, COST, layout, scheduler=engine).tables["requests"]
    late = found["outcome"] == TIMED_OUT
    assert (found["finish_ns"] - found["arrival_ns"] <= patience_ns).all()
    assert len(found["request"]) == len(rows)
    assert (found["finish_ns"][late] - found["arrival_ns"][late] == patience_ns).all()
