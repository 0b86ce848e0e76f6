"""The answer: who counts, who is best, who is on the front; against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.statistics import mean_interval
from kvsim.studies.sweep.answer import answer_of, ranked
from kvsim.studies.sweep.tables import headlines, point_rows, shown_first, verdict_word
from kvsim.study.tasks import Failure
from tests.studies.sweep.synthetic import SLO, answer, outcome, results_of

COST, TTFT = "usd_per_million_output_tokens", "ttft_p99_s"
VALUE = st.one_of(st.none(), st.sampled_from([0.1, 0.2, 0.3, 0.5, 1.0]))
POINTS = st.lists(st.tuples(st.booleans(), VALUE, VALUE), min_size=1, max_size=12)


@given(POINTS)
def test_the_front_is_what_no_eligible_point_beats(rows):
    results = results_of(
        lambda point: outcome(*rows[point.changes["a"]]), axes={"a": list(range(len(rows)))}
    )
    found = answer_of(results, SLO)
    known = {i: (c, t) for i, (met, c, t) in enumerate(rows) if met and c is not None}
    pairs = {i: pair for i, pair in known.items() if pair[1] is not None}
    unbeaten = {
        pair
        for pair in pairs.values()
        if not any(o != pair and o[0] <= pair[0] and o[1] <= pair[1] for o in pairs.values())
    }
    if all(c is None for _, c, _ in rows):
        return  # ranked by throughput then, of which there is none
    assert {pairs[i] for i in found.front} == unbeaten
    assert len(found.front) == len(unbeaten)
    assert [pairs[i][1] for i in found.front] == sorted(pairs[i][1] for i in found.front)
    if known:
        assert known[found.best][0] == min(cost for cost, _ in known.values())
    else:
        assert found.best is None


def test_a_point_is_eligible_only_if_all_its_replications_meet_the_slo():
    met = {(1, 0): True, (1, 1): True, (2, 0): True, (2, 1): False, (3, 0): True}

    def found(point):
        if (verdict := met.get((point.changes["a"], point.replication))) is None:
            return Failure("killed", "3 workers died of it")
        return outcome(verdict, 1.0, 0.1)

    answer = answer_of(results_of(found, axes={"a": [1, 2, 3]}, replications=2), SLO)
    assert answer.eligible.tolist() == [True, False, False]
    assert [verdict_word(answer, i) for i in range(3)] == ["met", "1 of 2", "killed"]
    assert "Failed: 1 killed." in " ".join(headlines(answer))


def test_intervals_are_those_of_the_replications():
    found = answer(replications=4)
    values = found.results.of(TTFT)[3]
    assert found.results.interval(3, TTFT) == mean_interval(values)
    header, (row,) = point_rows(found, [3])
    assert " ± " in row[header.index("TTFT p99")]


@pytest.mark.parametrize(
    ("met", "cost", "expected"),
    [
        (True, 2.0, "2 of 2 points meet the SLO; the cheapest costs $2.00 per million output"),
        (None, 2.0, "2 of 2 points ran; no SLO is set; the cheapest costs $2.00"),
        (None, None, "2 of 2 points ran; no SLO is set; the fastest generates 80 tokens/s, at a 1"),
        (False, 2.0, "None of 2 points meets the SLO; the closest keeps its bounds for 75 %"),
    ],
)
def test_the_sentence_says_what_is_known(met, cost, expected):
    more = {"output_tokens_per_s": 80.0, "slo_attainment_fraction": 0.75}
    results = results_of(lambda _: outcome(met, cost, 0.1, **more), axes={"a": [1, 2]})
    assert answer_of(results, SLO).sentence.startswith(expected)


def test_points_are_shown_best_first_and_failures_last():
    found = answer()
    order = shown_first(found)
    assert sorted(order) == list(range(30))
    assert order[: 1 + len(set(found.front) - {found.best})][0] == found.best
    assert set(order[-5:]) == set(np.flatnonzero(found.results.failed))
    costs = found.results.means(COST)[[i for i in ranked(found) if found.eligible[i]]]
    assert list(costs) == sorted(costs)


def test_latencies_that_are_shown_are_those_of_the_slo():
    results = results_of(lambda _: outcome(True, 1.0, 0.1), axes={"a": [1, 2]})
    assert answer_of(results, {"e2e_p95_s": 3.0}).latencies == ("e2e_p95_s",)
    assert answer_of(results, {"ttft_p99.9_s": 3.0}).latencies == ("ttft_p99_s", "tpot_p99_s")
    assert answer_of(results, None).latencies == ("ttft_p99_s", "tpot_p99_s")
