"""Conversations against plain loops: what they say, and what their prompts have in common."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.content import Paths
from kvsim.workload.prompts._conversations import compose_conversations
from kvsim.workload.prompts._prefixes import Prefixes


def whole(values):
    return np.array(values, dtype=np.int64)


def segments_of(prompts):
    return [prompts.segments.of(request) for request in range(len(prompts.prompt_tokens))]


def test_a_conversation_by_hand():
    prompts = compose_conversations(
        turns=whole([2, 1]),
        new_tokens=whole([10, 11, 12]),
        output_tokens=whole([1, 2, 3]),
        prefixes=Prefixes(whole([0, 0]), whole([7, 7]), 1),
        delay_ns=whole([40, 50, 60]),
    )
    assert prompts.prompt_tokens.tolist() == [17, 29, 19]
    assert prompts.output_tokens.tolist() == [1, 2, 3]
    assert prompts.delay_ns.tolist() == [0, 50, 0]
    assert segments_of(prompts) == [
        ([(0, 7), (1, 10)], 1),
        ([(0, 7), (1, 22)], 1),
        ([(0, 7), (2, 12)], 2),
    ]


def test_without_a_system_prompt_a_conversation_is_one_segment():
    prompts = compose_conversations(whole([3, 1]), whole([5, 6, 7, 8]), whole([1, 2, 3, 4]))
    assert segments_of(prompts) == [([(0, 5)], 0), ([(0, 12)], 0), ([(0, 21)], 0), ([(1, 8)], 1)]


@given(st.integers(1, 300))
def test_a_prompt_has_as_many_segments_however_long_its_conversation_is(turns):
    one = np.ones(turns, dtype=np.int64)
    prefixes = Prefixes(whole([0]), whole([9]), 1)
    prompts = compose_conversations(whole([turns]), one, one, prefixes)
    assert len(prompts.segments.seed) == 2 * turns
    paths = Paths()
    asked = [paths.chain(*segments).block_keys(0, 5, 2) for segments in segments_of(prompts)]
    assert len({keys[4] for keys in asked}) == 1  # the system prompt ends in this block


def by_a_plain_loop(sessions, max_context_tokens):
    """Let sessions [[(new, output, delay)]] talk; yields (turn, prompt, output, delay)."""
    for turns in sessions:
        context = 0
        for turn, (new, output, delay) in enumerate(turns):
            if turn and context + new > max_context_tokens:
                break
            yield turn, context + new, output, delay if turn else 0
            context += new + output


one_turn = st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 9))


@given(
    st.lists(st.lists(one_turn, min_size=1, max_size=6), max_size=6),
    st.none() | st.integers(1, 150),
)
def test_conversations_are_those_of_a_plain_loop(sessions, max_context_tokens):
    new, output, delay = whole([row for turns in sessions for row in turns]).reshape(-1, 3).T
    prompts = compose_conversations(
        whole([len(turns) for turns in sessions]),
        new,
        output,
        delay_ns=delay,
        max_context_tokens=max_context_tokens,
    )
    expected = list(by_a_plain_loop(sessions, max_context_tokens or 10**9))
    turn = [place for turns in prompts.turns for place in range(turns)]
    lengths = (prompts.prompt_tokens, prompts.output_tokens, prompts.delay_ns)
    columns = (column.tolist() for column in lengths)
    assert list(zip(turn, *columns, strict=True)) == expected


# What prompts have in common


def said_word_by_word(sessions, prefix_tokens):
    """Let sessions (group, [(new, output)]) talk; yields prompt and answer, all tokens named.

    A token is named after who says it where: nothing is known of streams, seeds or segments.
    """
    for number, (group, turns) in enumerate(sessions):
        history = [("system", group, at) for at in range(prefix_tokens[group])]
        for turn, (new, output) in enumerate(turns):
            prompt = history + [("asks", number, turn, at) for at in range(new)]
            answer = [("answers", number, turn, at) for at in range(output)]
            yield prompt, answer
            history = prompt + answer


def beginnings(tokens, block):
    """The full blocks of a sequence, each with all that precedes it."""
    return [tuple(tokens[:end]) for end in range(block, len(tokens) + 1, block)]


def composed(sessions, prefix_tokens):
    """The same sessions, composed by kvsim."""
    group = whole([group for group, _ in sessions])
    new, output = whole([turn for _, turns in sessions for turn in turns]).T
    prefixes = Prefixes(group, whole(prefix_tokens)[group], len(prefix_tokens))
    return compose_conversations(
        whole([len(turns) for _, turns in sessions]), new, output, prefixes
    )


short_turn = st.tuples(st.integers(1, 7), st.integers(1, 7))
talks = st.lists(
    st.tuples(st.integers(0, 1), st.lists(short_turn, min_size=1, max_size=5)),
    min_size=1,
    max_size=4,
)
lengths_of_two_system_prompts = st.tuples(st.integers(1, 9), st.integers(1, 9))


@given(talks, lengths_of_two_system_prompts, st.integers(1, 5))
def test_blocks_are_equal_where_all_words_up_to_their_end_are(sessions, prefix_tokens, block):
    paths, pairs = Paths(), set()
    prompts, said = composed(sessions, prefix_tokens), said_word_by_word(sessions, prefix_tokens)
    for segments, (prompt, answer) in zip(segments_of(prompts), said, strict=True):
        words = beginnings(prompt + answer, block)
        keys = paths.chain(*segments).block_keys(0, len(words), block)
        pairs.update(zip(keys, words, strict=True))
    assert len(pairs) == len({key for key, _ in pairs}) == len({begun for _, begun in pairs})


@given(talks, lengths_of_two_system_prompts, st.integers(1, 5), st.integers(1, 9))
def test_an_unbounded_cache_finds_as_much_also_where_answers_are_cut(
    sessions, prefix_tokens, block, max_tokens
):
    """Each request looks up its prompt, then leaves behind what was computed of its answer."""
    prompts = composed(sessions, prefix_tokens)
    paths, of_keys, of_words = Paths(), set(), set()
    said = said_word_by_word(sessions, prefix_tokens)
    for segments, (prompt, answer) in zip(segments_of(prompts), said, strict=True):
        computed = prompt + answer[: max_tokens - 1][: len(answer) - 1]
        content = paths.chain(*segments)
        sought = content.block_keys(0, (len(prompt) - 1) // block, block)
        words = beginnings(prompt[:-1], block)
        assert [key in of_keys for key in sought] == [begun in of_words for begun in words]
        of_keys.update(content.block_keys(0, len(computed) // block, block))
        of_words.update(beginnings(computed, block))
