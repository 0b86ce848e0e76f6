"""The laws of prompts one by one: against plain loops, and against the statistics they promise."""

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from kvsim.rng import stream
from kvsim.workload.prompts.agents import Agents
from kvsim.workload.prompts.fixed_set import FixedSet
from kvsim.workload.prompts.sessions import Sessions
from kvsim.workload.prompts.shared_prefix import SharedPrefix

SEEDS = range(20)
SECOND_NS = 10**9


def whole(values):
    return np.array(values, dtype=np.int64)


def prompts_of(law, sessions, seed=0, new_tokens=10, output_tokens=5):
    turns = law.turns(sessions, stream(seed, "turns"))
    requests = int(turns.sum())
    new, output = np.full(requests, new_tokens), np.full(requests, output_tokens)
    return law.prompts(turns, new, output, stream(seed, "prompts"))


def segments_of(prompts):
    return [prompts.segments.of(request) for request in range(len(prompts.prompt_tokens))]


# Sessions that end early


def test_a_first_prompt_is_sent_however_long_it_is():
    law = Sessions(turns_mean=4, turns_kind="fixed", think_mean_s=1, max_context_tokens=9)
    prompts = prompts_of(law, 3, new_tokens=10)
    assert prompts.turns.tolist() == [1, 1, 1]
    assert prompts.prompt_tokens.tolist() == [10, 10, 10]


@pytest.mark.parametrize(("longest", "turns"), [(39, 2), (40, 3), (54, 3), (55, 4), (70, 4)])
@pytest.mark.parametrize(
    "law",
    [
        Sessions(turns_mean=4, turns_kind="fixed", think_mean_s=1),
        Agents(
            calls_mean=3, calls_kind="fixed", tool_mean_s=1, tool_result_mean_tokens=10.0,
            tool_result_cv=0,
        ),
    ],
    ids=["sessions", "agents"],
)  # fmt: skip
def test_a_session_ends_before_a_prompt_would_exceed_its_context(law, longest, turns):
    """Its prompts would have 10, 25, 40 and 55 tokens."""
    prompts = prompts_of(law.model_copy(update={"max_context_tokens": longest}), 3)
    assert prompts.turns.tolist() == [turns] * 3
    assert prompts.prompt_tokens.tolist() == [10, 25, 40, 55][:turns] * 3


# How many, how long


@pytest.mark.parametrize("seed", SEEDS)
def test_geometric_turns_end_with_the_same_probability_after_each(seed):
    law = Sessions(turns_mean=4, think_mean_s=1)
    turns = law.turns(20_000, stream(seed, "turns"))
    seen = np.bincount(np.minimum(turns, 20), minlength=21)[1:]
    share = stats.geom.pmf(np.arange(1, 21), 1 / 4)
    share[-1] = stats.geom.sf(19, 1 / 4)
    assert stats.chisquare(seen, 20_000 * share).pvalue > 1e-5


def test_uniform_and_fixed_turns():
    uniform = Sessions(turns_mean=3.5, turns_kind="uniform", think_mean_s=1)
    seen = np.bincount(uniform.turns(20_000, stream(0, "turns")))
    assert seen[0] == 0
    assert len(seen) == 7
    assert stats.chisquare(seen[1:]).pvalue > 1e-4
    fixed = Sessions(turns_mean=3, turns_kind="fixed", think_mean_s=1)
    assert fixed.turns(4, stream(0, "turns")).tolist() == [3, 3, 3, 3]


def test_an_agent_sends_one_request_more_than_it_calls_tools():
    parameters = {"tool_mean_s": 1, "tool_result_mean_tokens": 5.0}
    fixed = Agents(calls_mean=3, calls_kind="fixed", **parameters)
    assert fixed.turns(3, stream(0, "turns")).tolist() == [4, 4, 4]
    none = Agents(calls_mean=0, **parameters)
    assert none.turns(3, stream(0, "turns")).tolist() == [1, 1, 1]
    calls = Agents(calls_mean=2.5, **parameters).turns(20_000, stream(0, "turns")) - 1
    assert calls.min() == 0
    assert calls.mean() == pytest.approx(2.5, abs=5 * np.sqrt(2.5 * 3.5 / 20_000))


@pytest.mark.parametrize(
    ("pauses", "law"),
    [
        ({"think_kind": "exponential"}, stats.expon(scale=2.0)),
        (
            {"think_kind": "lognormal", "think_cv": 1.5},
            # sigma² = ln(1 + cv²), and the median is the mean over sqrt(1 + cv²)
            stats.lognorm(s=np.sqrt(np.log(3.25)), scale=2.0 / np.sqrt(3.25)),
        ),
    ],
)
def test_further_turns_come_after_pauses_of_their_law(pauses, law):
    sessions = Sessions(turns_mean=5, turns_kind="fixed", think_mean_s=2.0, **pauses)
    for seed in SEEDS:
        delay = prompts_of(sessions, 500, seed).delay_ns.reshape(500, 5)
        assert (delay[:, 0] == 0).all()
        assert stats.kstest(delay[:, 1:].ravel() / SECOND_NS, law.cdf).pvalue > 1e-5


def test_constant_pauses_and_those_of_tools():
    law = Agents(
        calls_mean=2, calls_kind="fixed", tool_mean_s=0.25, tool_kind="constant",
        tool_result_mean_tokens=5.0,
    )  # fmt: skip
    assert prompts_of(law, 2).delay_ns.tolist() == [0, 250_000_000, 250_000_000] * 2


def test_no_pause_is_longer_than_a_run():
    law = Sessions(
        turns_mean=2, turns_kind="fixed", think_mean_s=1e9, think_kind="lognormal", think_cv=9.0
    )
    assert prompts_of(law, 2000).delay_ns.max() == 10**18


def test_an_agent_repeats_its_task_and_adds_what_tools_return():
    law = Agents(
        calls_mean=4, calls_kind="fixed", tool_mean_s=1, tool_result_mean_tokens=200.0,
        tool_result_cv=0.5, prefix_tokens=1000,
    )  # fmt: skip
    for seed in SEEDS:
        prompts = prompts_of(law, 500, seed, new_tokens=60, output_tokens=30)
        prompt = prompts.prompt_tokens.reshape(500, 5)
        assert (prompt[:, 0] == 1060).all()
        results = (np.diff(prompt, axis=1) - 30).ravel()
        assert results.mean() == pytest.approx(200, abs=5 * 100 / np.sqrt(2000))
        assert np.log(results).std() == pytest.approx(np.sqrt(np.log(1.25)), rel=0.1)


# System prompts


def popularity(groups, exponent):
    weights = [rank**-exponent for rank in range(1, groups + 1)]
    return np.array(weights) / sum(weights)


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 2.0])
def test_system_prompts_are_as_popular_as_zipf_says(exponent):
    law = SharedPrefix(prefix_tokens=9, groups=12, zipf_exponent=exponent)
    for seed in SEEDS:
        prompts = prompts_of(law, 20_000, seed)
        seen = np.bincount(prompts.segments.seed[::2], minlength=12)  # all groups come up
        assert stats.chisquare(seen, 20_000 * popularity(12, exponent)).pvalue > 1e-5


def test_a_system_prompt_s_length_is_drawn_once():
    law = SharedPrefix(prefix_tokens=100, prefix_max_tokens=199, groups=2000)
    prompts = prompts_of(law, 100_000)
    group, tokens = prompts.segments.seed[::2], prompts.segments.tokens[::2]
    lengths = dict(zip(group.tolist(), tokens.tolist(), strict=True))
    assert [lengths[number] for number in group.tolist()] == tokens.tolist()
    assert stats.chisquare(np.bincount(list(lengths.values()))[100:]).pvalue > 1e-4
    assert (prompts.prompt_tokens == tokens + 10).all()


def test_only_the_system_prompt_is_shared():
    prompts = prompts_of(SharedPrefix(prefix_tokens=8), 3)
    assert segments_of(prompts) == [
        ([(0, 8), (1, 10)], 1),
        ([(0, 8), (2, 10)], 2),
        ([(0, 8), (3, 10)], 3),
    ]


def test_a_session_keeps_its_system_prompt():
    law = Sessions(turns_mean=3, turns_kind="fixed", think_mean_s=1, prefix_tokens=8, groups=50)
    first = [segments[0] for segments, _ in segments_of(prompts_of(law, 100))]
    assert all(len(set(first[at : at + 3])) == 1 for at in range(0, 300, 3))
    assert len(set(first)) > 30


# A fixed set


def test_prompts_are_sent_in_turn_and_repeat_their_lengths():
    law = FixedSet(distinct_prompts=3)
    new, output = whole([5, 6, 7, 50, 60, 70, 80]), whole([1, 2, 3, 10, 20, 30, 40])
    prompts = law.prompts(np.ones(7, int), new, output, stream(0, "prompts"))
    assert prompts.prompt_tokens.tolist() == [5, 6, 7, 5, 6, 7, 5]
    assert prompts.output_tokens.tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert [segments for segments, _ in segments_of(prompts)] == [
        [(number, length)]
        for number, length in zip([0, 1, 2, 0, 1, 2, 0], [5, 6, 7] * 3, strict=False)
    ]
    assert prompts.segments.answer_seed.tolist() == [3, 4, 5, 6, 7, 8, 9]


def test_a_random_order_takes_each_prompt_equally_often():
    law = FixedSet(distinct_prompts=40, order="random")
    lengths = np.arange(1, 20_001)
    for seed in SEEDS:
        prompts = law.prompts(np.ones(20_000, int), lengths, lengths, stream(seed, "prompts"))
        assert stats.chisquare(np.bincount(prompts.segments.seed, minlength=40)).pvalue > 1e-5
        known: dict[int, int] = {}
        sent = zip(prompts.segments.seed.tolist(), lengths.tolist(), strict=True)
        expected = [known.setdefault(number, drawn) for number, drawn in sent]
        assert prompts.prompt_tokens.tolist() == prompts.output_tokens.tolist() == expected


# Refused


THINKS = {"turns_mean": 3, "think_mean_s": 1}
CALLS = {"tool_mean_s": 1, "tool_result_mean_tokens": 5.0}


@pytest.mark.parametrize(
    ("law", "parameters", "complaint"),
    [
        (Sessions, {**THINKS, "turns_mean": 0.5}, "greater than or equal to 1"),
        (
            Sessions,
            {**THINKS, "turns_mean": 2.5, "turns_kind": "fixed"},
            "turns_mean must be a who",
        ),
        (
            Sessions,
            {**THINKS, "turns_mean": 2.2, "turns_kind": "uniform"},
            "turns_mean must be a mul",
        ),
        (Sessions, {**THINKS, "think_kind": "lognormal"}, "think_cv must be given"),
        (Sessions, {**THINKS, "think_cv": 1.0}, "think_cv is only for lognormal pauses"),
        (Sessions, {**THINKS, "prefix_max_tokens": 5}, "prefix_tokens must be from 1 to"),
        (Agents, {**CALLS, "calls_mean": 0.5, "calls_kind": "fixed"}, "calls_mean must be a whole"),
        (Agents, {**CALLS, "calls_mean": 1, "tool_cv": 2.0}, "tool_cv is only for lognormal"),
        (SharedPrefix, {"prefix_tokens": 9, "prefix_max_tokens": 8}, "prefix_tokens must be from"),
        (SharedPrefix, {"prefix_tokens": 0}, "greater than or equal to 1"),
        (SharedPrefix, {}, "prefix_tokens"),
        (FixedSet, {"distinct_prompts": 0}, "greater than or equal to 1"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(law, parameters, complaint):
    with pytest.raises(ValidationError, match=complaint):
        law(**parameters)
