from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kvsim.metrics.arrivals import burstiness
from kvsim.rng import stream
from kvsim.traffic.fidelity import ks_distance
from kvsim.traffic.lengths import length_figures, rank_correlation
from kvsim.traffic.sessions import session_figures, turns_and_gaps
from kvsim.traffic.summary import analyze, as_dict, sentence
from kvsim.traffic.tables import all_tables
from kvsim.workload.requests import Segments
from kvsim.workload.traces import Trace

S = 1_000_000_000


def plain_log(requests: int = 1_000, rate_per_s: float = 5.0, seed: int = 0) -> Trace:
    rng = stream(seed, "summary-tests")
    times = np.cumsum(rng.exponential(S / rate_per_s, requests)).astype(np.int64)
    prompt, output = rng.integers(1, 1000, requests), rng.integers(1, 100, requests)
    return Trace(times - times[0], prompt, output)


@pytest.mark.parametrize("seed", range(5))
def test_rank_correlation_and_distance_are_those_of_scipy(seed):
    rng = stream(seed, "scipy")
    one = rng.integers(1, 20, 200)  # many ties
    other = one + rng.integers(0, 30, 200)
    assert rank_correlation(one, other) == pytest.approx(stats.spearmanr(one, other).statistic)
    assert ks_distance(one, other) == pytest.approx(stats.ks_2samp(one, other).statistic)


def test_rank_correlation_of_constant_lengths_is_unknown():
    assert rank_correlation(np.array([5, 5]), np.array([1, 2])) is None
    assert rank_correlation(np.array([5]), np.array([1])) is None


def test_lengths_with_exact_answers():
    figures = length_figures(np.arange(1, 102))
    assert (figures.mean_tokens, figures.min_tokens, figures.max_tokens) == (51.0, 1, 101)
    assert (figures.p10_tokens, figures.p50_tokens, figures.p90_tokens) == (11.0, 51.0, 91.0)
    assert figures.p99_tokens == 100.0


def test_sessions_with_exact_answers():
    ones = np.ones(7, dtype=np.int64)
    session = np.array([4, 2, 4, -1, 4, 2, 9])
    trace = Trace(np.array([0, 1, 3, 4, 8, 9, 10]) * S, ones, ones, session=session)
    turns, gaps = turns_and_gaps(trace)
    assert turns.tolist() == [2, 3, 1]
    assert sorted(gaps.tolist()) == [3 * S, 5 * S, 8 * S]
    figures = session_figures(turns, gaps)
    assert (figures.sessions, figures.turns_mean, figures.turns_max) == (3, 2.0, 3)
    assert figures.single_turn_share == pytest.approx(1 / 3)
    assert figures.gap_p50_s == 5.0
    assert turns_and_gaps(replace(trace, session=np.full(7, -1))) is None
    alone = session_figures(*turns_and_gaps(replace(trace, session=np.arange(7))))
    assert (alone.single_turn_share, alone.gap_p50_s) == (1.0, None)


def test_samples_of_a_request_arrive_once():
    ones = np.ones(6, dtype=np.int64)
    trace = Trace(
        np.repeat([0, S, 2 * S], 2),
        10 * ones,
        np.array([1, 3, 5, 7, 9, 11]),
        group=np.repeat([0, 1, 2], 2),
        horizon_ns=4 * S,
    )
    traffic = analyze(trace)
    assert (traffic.arrivals.requests, traffic.samples) == (3, 2.0)
    assert traffic.prompt_tokens_per_s == pytest.approx(30 / 4)  # one prompt a request
    assert traffic.output_tokens_per_s == pytest.approx(36 / 4)  # all its answers


def test_a_log_of_one_instant_has_lengths_only():
    ones = np.ones(3, dtype=np.int64)
    traffic = analyze(Trace(0 * ones, ones, ones))
    assert traffic.arrivals is None
    assert as_dict(traffic)["arrivals"] is None
    assert sentence(traffic).startswith("3 requests at one instant; prompts of 1 token (median)")
    assert [table.header[0] for table in all_tables(traffic, None)] == ["figure", "tokens"]


def test_one_request_is_told_in_the_singular():
    ones = np.ones(1, dtype=np.int64)
    assert sentence(analyze(Trace(0 * ones, ones, 2 * ones))).startswith("1 request; prompts of")


@pytest.mark.parametrize(
    ("apart_s", "words"),
    [(86_400, "20 requests over 19 days;"), (400 * 86_400, "20 requests over 20.8 years;")],
)
def test_long_logs_are_told_in_days_and_years(apart_s, words):
    ones = np.ones(20, dtype=np.int64)
    assert sentence(analyze(Trace(np.arange(20) * apart_s * S, ones, ones))).startswith(words)


@given(gaps=st.lists(st.integers(0, 3_000), min_size=1, max_size=20).filter(any))
def test_the_busiest_window_is_never_less_busy_than_the_mean(gaps):
    times = np.cumsum([0, *gaps]) * (S // 1000)
    ones = np.ones(len(times), dtype=np.int64)
    arrivals = analyze(Trace(times, ones, ones)).arrivals
    for window in arrivals.windows:
        assert window.peak_per_s is None or window.peak_per_s >= arrivals.rate_per_s * (1 - 1e-6)


def test_the_mean_of_a_short_log_counts_both_its_ends_and_no_window_does():
    ones = np.ones(2, dtype=np.int64)
    told = sentence(analyze(Trace(np.array([0, S]), ones, ones)))
    assert told.startswith("2 requests over 1 s; 2/s on average, too few to judge how evenly;")


def test_the_sentence_tells_poisson_from_bursts():
    even = analyze(plain_log(20_000, seed=1))
    assert burstiness(even.arrivals) == "about as uneven as Poisson at every scale up to 60 s"
    log = plain_log(400)
    bursts = log.take(np.repeat(np.arange(400), 10))
    assert burstiness(analyze(bursts).arrivals).startswith("far burstier than Poisson")
    clock = replace(log, arrival_ns=np.arange(400) * S)
    assert burstiness(analyze(clock).arrivals).startswith("more even than Poisson")


def test_reuse_is_told_in_words_tables_and_json():
    ones = np.ones(3, dtype=np.int64)
    segments = Segments(np.arange(4), np.array([7, 8, 7]), 33 * ones, np.array([1, 2, 3]))
    trace = Trace(np.arange(3) * S, 33 * ones, ones, segments=segments)
    traffic = analyze(trace)
    told = as_dict(traffic)["prefix_reuse"]
    assert told["unbounded_hit_rate"] == pytest.approx(32 / 99)
    assert told["distinct_tokens"] == told["enough_cache_tokens"] == 64
    assert dict(zip(told["cache_tokens"], told["hit_rate"], strict=True)) == pytest.approx(
        {16: 0.0, 32: 0.0, 64: 32 / 99}
    )
    assert "at most 32.3 % of the prompt tokens" in sentence(traffic)
    table = all_tables(traffic, 1024)[-1]
    assert list(table.rows[-1]) == ["100 % of all reuse", "32.3 %", "64", "64.00 KiB"]
