"""What every law of prompts owes the workload; each file of the package is tested unasked."""

from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvsim.workload.prompts
from kvsim.engine.content import Paths
from kvsim.policy import policies_in
from kvsim.rng import stream

THINKS = {"turns_mean": 3, "think_mean_s": 2.5}
CALLS = {"tool_mean_s": 0.5, "tool_result_mean_tokens": 9.0}

# Parameters to test a law with; one that isn't named here is tested without any.
PARAMETERS = {
    "shared_prefix": [
        {"prefix_tokens": 20},
        {"prefix_tokens": 1, "prefix_max_tokens": 40, "groups": 7, "zipf_exponent": 1.2},
        {"prefix_tokens": 8, "groups": 10**5},
    ],
    "fixed_set": [
        {"distinct_prompts": 1},
        {"distinct_prompts": 5},
        {"distinct_prompts": 5, "order": "random"},
        {"distinct_prompts": 10**8, "order": "random"},
    ],
    "sessions": [
        THINKS,
        {**THINKS, "turns_kind": "fixed", "think_kind": "constant", "prefix_tokens": 20},
        {**THINKS, "turns_kind": "uniform", "think_kind": "lognormal", "think_cv": 2.0},
        {**THINKS, "max_context_tokens": 90, "prefix_tokens": 1, "prefix_max_tokens": 99},
        {**THINKS, "prefix_tokens": 7, "groups": 3, "zipf_exponent": 1.0},
    ],
    "agents": [
        {**CALLS, "calls_mean": 2.0},
        {**CALLS, "calls_mean": 0, "prefix_tokens": 30},
        {**CALLS, "calls_mean": 4, "calls_kind": "fixed", "prefix_tokens": 30, "groups": 4},
        {**CALLS, "calls_mean": 1.5, "calls_kind": "uniform", "max_context_tokens": 120},
    ],
}
LAWS = [
    law(**parameters)
    for law in policies_in(kvsim.workload.prompts)
    for parameters in PARAMETERS.get(law.model_fields["kind"].default, [{}])
]
every_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
any_law = st.sampled_from(LAWS)
sizes = st.integers(0, 25)
seeds = st.integers(0, 2**32)


def ask(law, sessions, seed, longest=40):
    """Return the turns wanted, the lengths offered, and the prompts that the law makes of them."""
    turns = law.turns(sessions, stream(seed, "turns"))
    rng = stream(seed, "lengths")
    new, output = rng.integers(1, longest + 1, (2, int(turns.sum())))
    offered = new.copy(), output.copy()
    prompts = law.prompts(turns, new, output, stream(seed, "prompts"))
    assert all(np.array_equal(*pair) for pair in zip(offered, (new, output), strict=True))
    return turns, new, output, prompts


def first_turns(turns):
    return np.cumsum(turns) - turns


def test_these_are_all_the_laws():
    kinds = [policy.model_fields["kind"].default for policy in policies_in(kvsim.workload.prompts)]
    assert kinds == ["agents", "fixed_set", "sessions", "shared_prefix", "unrelated"]


@given(any_law, sizes, seeds)
def test_each_session_has_a_request_and_no_more_than_it_wants(law, sessions, seed):
    wanted, _, _, prompts = ask(law, sessions, seed)
    assert wanted.dtype == prompts.turns.dtype == np.int64
    assert wanted.shape == prompts.turns.shape == (sessions,)
    assert ((prompts.turns >= 1) & (prompts.turns <= wanted)).all()
    for lengths in (prompts.prompt_tokens, prompts.output_tokens):
        assert lengths.dtype == np.int64
        assert lengths.shape == (prompts.turns.sum(),)
        assert (lengths >= 1).all()


@given(any_law, sizes, seeds)
def test_a_session_that_gets_fewer_turns_than_it_wants_is_composed_all_the_same(
    law, sessions, seed
):
    turns = law.turns(sessions, stream(seed, "turns"))
    turns[-1:] = 1
    lengths = np.full(turns.sum(), 5)
    prompts = law.prompts(turns, lengths, lengths, stream(seed, "prompts"))
    assert (prompts.turns <= turns).all()


@given(any_law, sizes, seeds)
def test_a_first_turn_waits_for_nothing(law, sessions, seed):
    _, _, _, prompts = ask(law, sessions, seed)
    if prompts.delay_ns is None:
        assert (prompts.turns == 1).all()
    else:
        assert prompts.delay_ns.dtype == np.int64
        assert prompts.delay_ns.shape == prompts.prompt_tokens.shape
        assert (prompts.delay_ns >= 0).all()
        assert (prompts.delay_ns[first_turns(prompts.turns)] == 0).all()


@given(any_law, sizes, seeds)
def test_segments_add_up_to_the_prompts(law, sessions, seed):
    _, _, _, prompts = ask(law, sessions, seed)
    segments = prompts.segments
    if segments is None:
        assert (prompts.turns == 1).all()
        return
    requests = len(prompts.prompt_tokens)
    for column in (segments.first, segments.seed, segments.tokens, segments.answer_seed):
        assert column.dtype == np.int64
    assert len(segments.answer_seed) == requests
    assert segments.first.tolist() == sorted(segments.first)
    assert (segments.first[0], segments.first[-1]) == (0, len(segments.seed))
    assert (segments.tokens >= 1).all()
    sums = [sum(tokens for _, tokens in segments.of(i)[0]) for i in range(requests)]
    assert sums == prompts.prompt_tokens.tolist()


@given(any_law, sizes, seeds)
def test_seeds_count_from_zero_without_gaps(law, sessions, seed):
    _, _, _, prompts = ask(law, sessions, seed)
    if prompts.segments is not None:
        used = {*prompts.segments.seed.tolist(), *prompts.segments.answer_seed.tolist()}
        assert used == set(range(len(used)))


@given(any_law, sizes, seeds)
def test_a_further_prompt_begins_with_the_last_one_and_its_answer(law, sessions, seed):
    """No token of an answer stands anywhere else than there and in the session's later turns."""
    _, _, _, prompts = ask(law, sessions, seed)
    if prompts.segments is None:
        return
    answered: set[tuple[int, int]] = set()
    for first, turns in zip(first_turns(prompts.turns).tolist(), prompts.turns, strict=True):
        said: list[tuple[int, int]] = []
        for request in range(first, first + int(turns)):
            tokens, prompt_tokens = tokens_of(prompts, request), prompts.prompt_tokens[request]
            assert tokens[: len(said)] == said
            assert prompt_tokens > len(said)
            new, answer = tokens[len(said) : prompt_tokens], tokens[prompt_tokens:]
            assert answered.isdisjoint(new + answer)
            answered.update(answer)
            said = tokens


@every_law
def test_the_same_seed_gives_the_same_prompts_and_another_one_others(law):
    def flat(seed):
        _, _, _, prompts = ask(law, 50, seed)
        parts = [prompts.turns, prompts.prompt_tokens, prompts.output_tokens]
        parts += [] if prompts.delay_ns is None else [prompts.delay_ns]
        if prompts.segments is not None:
            shown = prompts.segments
            parts += [shown.first, shown.seed, shown.tokens, shown.answer_seed]
        return np.concatenate(parts).tolist()

    assert flat(3) == flat(3)
    assert flat(3) != flat(4)


def tokens_of(prompts, request):
    """Return a request's tokens, prompt and answer, one by one."""
    segments, answer_seed = prompts.segments.of(request)
    prompt = [(seed, offset) for seed, tokens in segments for offset in range(tokens)]
    start = segments[-1][1] if segments[-1][0] == answer_seed else 0
    end = start + int(prompts.output_tokens[request])
    return prompt + [(answer_seed, offset) for offset in range(start, end)]


def agreeing(one, other):
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@given(any_law, st.integers(1, 8), seeds, st.integers(1, 9))
def test_the_engine_finds_exactly_the_prefixes_that_the_tokens_have(law, sessions, seed, block):
    _, _, _, prompts = ask(law, sessions, seed, longest=12)
    if prompts.segments is None:
        return
    paths = Paths()
    requests = range(min(len(prompts.prompt_tokens), 30))
    tokens = [tokens_of(prompts, request) for request in requests]
    keys = [
        paths.chain(*prompts.segments.of(request)).block_keys(
            0, len(tokens[request]) // block, block
        )
        for request in requests
    ]
    for one in requests:
        for other in requests[:one]:
            shared = agreeing(tokens[one], tokens[other])
            assert agreeing(keys[one], keys[other]) == shared // block
            assert len(set(keys[one]) & set(keys[other])) == shared // block
