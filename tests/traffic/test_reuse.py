"""The hit curve against a cache that is really kept, block by block."""

from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine.content import Paths
from kvsim.traffic.reuse import hit_curve
from kvsim.workload.requests import Segments
from kvsim.workload.traces import Trace, read_trace


def log(requests: list[tuple[list[tuple[int, int]], int, int]]) -> Trace:
    """A log of (segments, seed of the answer, answer tokens)."""
    segments = [segment for parts, _, _ in requests for segment in parts]
    first = np.cumsum([0, *(len(parts) for parts, _, _ in requests)])
    return Trace(
        arrival_ns=np.arange(len(requests), dtype=np.int64),
        prompt_tokens=np.array([sum(n for _, n in parts) for parts, _, _ in requests]),
        output_tokens=np.array([output for _, _, output in requests]),
        segments=Segments(
            first.astype(np.int64),
            np.array([seed for seed, _ in segments], dtype=np.int64),
            np.array([tokens for _, tokens in segments], dtype=np.int64),
            np.array([seed for _, seed, _ in requests], dtype=np.int64),
        ),
    )


def tokens_of(parts, answer_seed, output) -> list[tuple[int, int]]:
    """Each token by seed and place in its stream; an answer may continue the last segment."""
    tokens = [(seed, at) for seed, n in parts for at in range(n)]
    start = tokens[-1][1] + 1 if tokens[-1][0] == answer_seed else 0
    return tokens + [(answer_seed, start + at) for at in range(output)]


def hits_of_a_kept_cache(requests, size_blocks: int, block: int) -> int:
    """Tokens found by one LRU list of whole prefixes; the newest stands first."""
    cache: list[tuple] = []
    found = 0
    for parts, answer_seed, output in requests:
        tokens = tokens_of(parts, answer_seed, output)
        keys = [tuple(tokens[: end + block]) for end in range(0, len(tokens), block)]
        prompt = len(tokens) - output
        for key in keys[: (prompt - 1) // block]:
            if key not in cache:
                break
            found += block
        kept = keys[: (len(tokens) - 1) // block]
        cache = [*kept, *(key for key in cache if key not in kept)][:size_blocks]
    return found


SEGMENT = st.tuples(st.integers(0, 3), st.integers(0, 9))
REQUESTS = st.lists(
    st.tuples(
        st.lists(SEGMENT, min_size=1, max_size=5).filter(lambda parts: sum(n for _, n in parts)),
        st.integers(0, 3),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=80, deadline=None)
@given(REQUESTS, st.integers(1, 4))
def test_every_cache_size_finds_what_a_kept_cache_finds(requests, block):
    trace = log(requests)
    curve = hit_curve(trace, block)
    sizes = np.arange(curve.enough_tokens // block + 3)
    rates = curve.hit_rates(sizes * block)
    for size, rate in zip(sizes, rates, strict=True):
        found = hits_of_a_kept_cache(requests, int(size), block)
        assert rate * trace.prompt_tokens.sum() == pytest.approx(found)
    assert rates[-1] == pytest.approx(curve.unbounded)
    below = rates[sizes < curve.enough_tokens // block]
    assert (below < curve.unbounded - 1e-12).all()
    every = {
        tuple(tokens_of(*r)[: end + block])
        for r in requests
        for end in range(0, len(tokens_of(*r)) - block, block)
    }
    assert curve.distinct_blocks == len(every)


def test_two_prompts_that_take_turns_need_room_for_both():
    """A B A B: 3 blocks of 4 tokens each are kept, 2 are sought; the answer's fill no block."""
    a, b = ([(1, 12)], 101, 1), ([(2, 12)], 102, 1)
    curve = hit_curve(log([a, b, a, b]), 4)
    sizes = np.array([0, 12, 15, 16, 20, 24])
    # The block first to return lies below the three of the other prompt.
    assert curve.hit_rates(sizes) * 48 == pytest.approx([0, 0, 0, 8, 16, 16])
    assert curve.unbounded == pytest.approx(16 / 48)
    assert curve.enough_tokens == 20
    assert curve.smallest_for(1.0) == 20
    assert curve.smallest_for(0.5) == 16
    assert curve.distinct_blocks == 6


def test_a_log_without_contents_has_no_curve():
    plain = log([([(1, 4)], 2, 1)])
    assert hit_curve(Trace(plain.arrival_ns, plain.prompt_tokens, plain.output_tokens)) is None


def test_a_log_in_which_nothing_returns():
    curve = hit_curve(log([([(1, 40)], 2, 1), ([(3, 40)], 4, 1)]))
    assert (curve.unbounded, curve.enough_tokens) == (0.0, 0)
    assert curve.hit_rates(np.array([0, 10**9])).tolist() == [0.0, 0.0]
    assert curve.smallest_for(0.9) == 0


def test_a_published_log_against_the_engines_own_block_keys():
    """The engine numbers paths and blocks by itself; an unbounded cache is a set of its keys."""
    trace = read_trace(Path(__file__).parents[1] / "data/traces/mooncake_conversation.jsonl")
    paths, kept, found = Paths(), set(), 0
    lengths = zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    for request, (prompt, output) in enumerate(lengths):
        content = paths.chain(*trace.segments.of(request))
        sought = content.block_keys(0, (prompt - 1) // 16, 16)
        found += 16 * sum(1 for _ in takewhile(kept.__contains__, sought))
        kept.update(content.block_keys(0, (prompt + output - 1) // 16, 16))
    curve = hit_curve(trace)
    assert found > 0
    assert curve.unbounded == pytest.approx(found / trace.prompt_tokens.sum())
    assert curve.distinct_blocks == len(kept)
