import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.cost import StepShape
from kvsim.cost.affine import AffineCost

COUNTS = st.integers(0, 10_000)


@given(decode=st.lists(COUNTS, max_size=30), chunks=st.lists(st.tuples(COUNTS, COUNTS), max_size=5))
def test_a_floor_on_the_context_counts_whole_microseconds(
    decode: list[int], chunks: list[tuple[int, int]]
) -> None:
    cost = AffineCost(
        fixed_ns=5_000_000, per_token_ns=20_000, per_context_token_ns=500, context_floor_ns=1_000
    )
    tokens = len(decode) + sum(new for new, _ in chunks)
    context = sum(decode) + sum(new + prefix for new, prefix in chunks)
    chunks_ns = cost.chunks_ns(chunks)
    step_ns = cost.step_ns(
        tokens, len(decode) + len(chunks), len(decode), sum(decode), float(chunks_ns)
    )
    assert step_ns == (5000 + 20 * tokens + context // 2) * 1000


def test_each_term_counts_once() -> None:
    cost = AffineCost(fixed_ns=7, per_token_ns=11, per_seq_ns=13, per_context_token_ns=17)
    chunks_ns = cost.chunks_ns([(4, 6)])
    assert cost.step_ns(6, 3, 2, 100, chunks_ns) == 7 + 11 * 6 + 13 * 3 + 17 * (100 + 10)


def test_a_step_lasts_at_least_a_nanosecond() -> None:
    assert AffineCost().step_ns(0, 0, 0, 0, 0.0) == 1


@pytest.mark.parametrize("floor_ns", [0, 1000])
def test_the_parts_sum_to_the_step(floor_ns: int) -> None:
    cost = AffineCost(3.25, 1.5, 0.75, 0.3, floor_ns)
    random = np.random.default_rng(1)
    columns = [random.integers(1, 9000, 50) for _ in range(7)]
    steps = StepShape(*columns)
    total = np.sum(list(cost.parts_ns(steps).values()), axis=0)
    for i in range(50):
        tokens = int(steps.prefill_tokens[i] + steps.decode_seqs[i])
        seqs = int(steps.prefill_seqs[i] + steps.decode_seqs[i])
        ns = cost.step_ns(
            tokens,
            seqs,
            int(steps.decode_seqs[i]),
            int(steps.decode_kv_tokens[i]),
            float(steps.prefill_attention_ns[i]),
        )
        assert abs(ns - total[i]) <= 1


def test_the_law_does_not_pretend_to_know_what_bounds_a_step() -> None:
    cost = AffineCost(fixed_ns=3, per_token_ns=2)
    parts = cost.parts_ns(StepShape(*(np.ones(1, np.int64) for _ in range(7))))
    assert {part.bound for part in parts} == {"unknown"}
    assert [line[:2] for line in cost.basis] == [("fixed", "given"), ("tokens", "given")]
