"""Contents: paths by hand, and two ways to say the same conversation that no run can tell apart."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine.config import EngineConfig
from kvsim.engine.content import BLOCKS_OF_A_PATH, Paths
from tests.engine.harness import LinearCost, request_table, run, segments_of

CACHING = EngineConfig(
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_model_len=160,
    num_gpu_blocks=20,
    enable_prefix_caching=True,
)


def paths_of(content, blocks):
    return [key // BLOCKS_OF_A_PATH for key in content.block_keys(0, blocks, 1)]


def test_an_answer_of_the_last_segment_s_seed_continues_it():
    paths = Paths()
    assert paths_of(paths.chain([(7, 2), (8, 3)], 8), 7) == [1, 1, 2, 2, 2, 2, 2]
    assert paths_of(paths.chain([(7, 2), (8, 5)], 8), 9) == [1, 1] + [2] * 7


def test_any_other_answer_is_a_segment_of_its_own():
    paths = Paths()
    assert paths_of(paths.chain([(7, 2), (8, 3)], 9), 7) == [1, 1, 2, 2, 2, 3, 3]
    assert paths_of(paths.chain([(7, 2), (8, 3)], 7), 7) == [1, 1, 2, 2, 2, 4, 4]


@pytest.mark.parametrize("empty", [[(7, 0)], [(9, 0)]])
def test_empty_segments_say_nothing(empty):
    paths = Paths()
    for answer_seed in (7, 8, 9):
        plain = paths.chain([(7, 2), (8, 3)], answer_seed).block_keys(0, 9, 1)
        for segments in (
            [(7, 2), (8, 3), *empty],
            [(7, 2), *empty, (8, 3)],
            [*empty, (7, 2), (8, 3)],
        ):
            assert paths.chain(segments, answer_seed).block_keys(0, 9, 1) == plain


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_keys_from_any_block_on_are_those_of_the_whole(lengths, block_size, first, more):
    """A block's path is that of its last token, wherever one begins to ask."""
    prompt = [(7 + place, tokens) for place, tokens in enumerate(lengths)]
    content = Paths().chain(prompt, 99)
    of_tokens = paths_of(content, (first + more + 1) * block_size)
    keys = content.block_keys(first, first + more, block_size)
    assert [divmod(key, BLOCKS_OF_A_PATH) for key in keys] == [
        (of_tokens[(index + 1) * block_size - 1], index) for index in range(first, first + more)
    ]


# Two ways to say a conversation


SYSTEM_PROMPT = (0, 5)


def said(sessions, one_stream):
    """Yield (session, prompt, seed of the answer, output) of sessions [[(new, output)]].

    Either each session is a stream, or all that anybody says at once is a segment of its own.
    """
    for number, turns in enumerate(sessions, start=1):
        stream, pieces, length = 1000 * number, [], 0
        for turn, (new, output) in enumerate(turns):
            pieces.append((stream + 2 * turn, new))
            length += new
            answer = stream if one_stream else stream + 2 * turn + 1
            own = [(stream, length)] if one_stream else list(pieces)
            yield number, [SYSTEM_PROMPT, *own], answer, output
            pieces.append((stream + 2 * turn + 1, output))
            length += output


def table_of(sessions, samples, one_stream, max_tokens):
    """The requests with their samples, of which only the first answers what is repeated."""
    rows, prompts, answers, session = [], [], [], []
    for number, prompt, answer, output in said(sessions, one_stream):
        for sample in range(samples):
            length = sum(tokens for _, tokens in prompt)
            rows.append((30 * number, length, output, max_tokens))
            prompts.append(prompt)
            answers.append(-len(rows) if sample else answer)
            session.append(number)
    return replace(
        request_table(rows),
        group=np.arange(len(rows)) // samples,
        session=np.array(session, dtype=np.int64),
        delay_ns=np.full(len(rows), 10, dtype=np.int64),
        segments=segments_of(prompts, answers),
    )


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=6),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 2),
    st.sampled_from([0, 7]),
)
def test_a_run_is_the_same_whichever_way_conversations_are_said(sessions, samples, max_tokens):
    """Runs whose caches are too small for all, with samples, and with answers that are cut."""
    streams, pieces = (
        run(table_of(sessions, samples, one_stream, max_tokens), CACHING, LinearCost(5, 1, 0))
        for one_stream in (True, False)
    )
    for name, table in streams.tables.items():
        for column, values in table.items():
            assert np.array_equal(values, pieces.tables[name][column]), (name, column)


def test_what_those_runs_find_is_worth_a_comparison():
    sessions = [[(9, 12)] * 5 for _ in range(6)]
    found = run(table_of(sessions, 2, True, 0), CACHING, LinearCost(5, 1, 0)).tables["requests"]
    assert 0.2 < found["cached_tokens"].sum() / found["prompt_tokens"].sum() < 0.95
