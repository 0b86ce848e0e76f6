"""The answer in words and on its page, from a search by exact recursions."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from kvsim.studies.capacity.answer import CapacityAnswer
from kvsim.studies.capacity.bounds import Bound
from kvsim.studies.capacity.curves import of_trials, targets_chart
from kvsim.studies.capacity.knob import knob_at
from kvsim.studies.capacity.limit import Search, Terms
from kvsim.studies.capacity.observe import Observed
from kvsim.studies.capacity.page import build_page
from kvsim.studies.capacity.search import Options, ask
from kvsim.studies.capacity.simulation import Question
from kvsim.studies.capacity.words import answer_of
from tests.studies.capacity.queues import Queue
from tests.studies.capacity.test_known_rates import scenario_of
from tests.studies.capacity.test_limit import LOAD, TTFT, observed


@pytest.fixture(scope="module")
def answer(tmp_path_factory) -> CapacityAnswer:
    queue = Queue(1)
    question = ask(scenario_of(tmp_path_factory.mktemp("md1"), queue, 0.75), Options())
    question = replace(question, knob=replace(question.knob, first=1.2))  # more than it serves
    search = Search(
        question.knob,
        question.bounds,
        Terms(requests=1_000, precision=0.2),
        lambda asks: queue.simulate(question, 0, asks),
    )
    return answer_of(question, search, search.run())


def test_the_sentence_names_the_feasible_end_the_limit_and_the_target(answer):
    assert answer.sentence == (
        f"Up to {answer.feasible:g} requests/s the SLO is met; the limit is {answer.value:g} "
        f"requests/s (95 % interval {answer.low:g} to {answer.high:g}), set by queue_p99_s."
    )
    assert answer.low == answer.feasible < answer.value < answer.high
    assert answer.limited_by == "queue_p99_s"


def test_statuses_follow_from_the_intervals(answer):
    for one in answer.tried:
        if one.status in {"met", "undecided", "missed"}:
            expected = "missed" if one.low > 1 else "met" if one.high <= 1 else "undecided"
            assert one.status == expected
    assert {one.status for one in answer.tried} >= {"met", "missed"}


def test_saturated_values_are_called_unstable(answer):
    status = {one.value: one.status for one in answer.tried}
    saturated = [value for value in status if value > 1.1]  # requests/s; it serves one
    assert saturated
    assert {status[value] for value in saturated} == {"unstable"}
    assert all(one.growth > 0.01 for one in answer.trials if one.value in saturated)


def test_every_trial_is_told_and_has_the_window_of_its_value(answer):
    assert sum(one.replications for one in answer.tried) <= len(answer.trials)
    for trial in answer.trials:
        assert trial.warmup_requests >= 0.09 * (trial.requests + trial.warmup_requests)
        assert trial.latencies_s["queue_p50_s"] <= trial.latencies_s["queue_p99_s"]
        assert trial.goodput_per_s >= 0


def test_it_is_plain_data(answer):
    document = json.loads(json.dumps(answer.as_dict(), allow_nan=False))
    assert document["low"] == answer.low
    assert len(document["trials"]) == len(answer.trials)


class _Ids(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids = []

    def handle_starttag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]


def test_the_page_is_the_same_each_time_and_draws_each_curve(answer):
    page = build_page(answer, "md1", "kvsim capacity md1.yaml")
    assert page == build_page(answer, "md1", "kvsim capacity md1.yaml")
    ids = _Ids()
    ids.feed(page)
    assert len(ids.ids) == len(set(ids.ids))
    assert {"chart-targets", "chart-queue", "chart-goodput", "trials"} <= set(ids.ids)
    assert answer.sentence in page


def test_the_name_of_a_class_is_no_html_to_plotly(answer):
    name = "<b>chat: queue_p99_s"
    trials = [replace(one, means={name: one.means["queue_p99_s"]}) for one in answer.trials]
    chart = targets_chart(replace(answer, allowed={name: 0.01}, trials=trials))
    assert "&lt;b&gt;chat" in str(chart.figure)
    assert "<b>" not in str(chart.figure)


def test_a_page_without_any_start_can_be_made(answer):
    refused = [replace(one, refusal="no room") for one in answer.trials]
    build_page(replace(answer, trials=refused, feasible=None), "md1", "kvsim")


def test_curves_are_of_the_longest_runs(answer):
    for value, trials in of_trials(answer).items():
        lengths = {one.requests + one.warmup_requests for one in trials}
        assert len(lengths) == 1
        mine = [one for one in answer.trials if one.value == value]
        assert max(one.requests + one.warmup_requests for one in mine) in lengths


def answered(knob, simulate, bounds=(TTFT,), terms=None):
    """Return the answer of a search on given observations."""
    search = Search(knob, bounds, terms or Terms(confidence=None), simulate)
    question = Question(None, knob, bounds, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Question, "slo", {TTFT.name: 2.0})
        return answer_of(question, search, search.run())


@pytest.mark.parametrize("smallest", [False, True])
def test_a_setting_that_is_harder_the_other_way_is_said(smallest):
    seqs = knob_at("engine.max_num_seqs", 512 if smallest else 8, 8, 512, smallest)

    def simulate(asks):
        return [observed({TTFT.name: 0.5 if (one.value < 30) != smallest else 0.0}) for one in asks]

    answer = answered(seqs, simulate)
    assert answer.feasible is None
    ends = ("512", "8") if smallest else ("8", "512")
    assert f"at {ends[0]} ttft_p99_s is missed, at {ends[1]} the SLO is met" in answer.sentence
    assert answer.sentence.endswith(f"Ask {'without' if smallest else 'with'} --smallest.")


def test_a_refusal_is_told_with_its_reason():
    length = knob_at("engine.max_model_len", 1000, 1000, 9000, False)

    def simulate(asks):
        return [
            Observed.refused("no room for it") if one.value > 5000 else observed({TTFT.name: 0.0})
            for one in asks
        ]

    answer = answered(length, simulate)
    assert any(note.endswith("it is refused: no room for it.") for note in answer.notes)


def test_of_an_undecided_value_the_undecided_target_is_shown():
    growth = Bound("steady queue", "growth", 0.01)

    def simulate(asks):
        return [observed({TTFT.name: 0.001}, 0.02 * (one.replication % 2) - 0.005) for one in asks]

    answer = answered(LOAD, simulate, (TTFT, growth), Terms(max_replications=4))
    assert {one.status for one in answer.tried} == {"undecided"}
    assert {one.worst for one in answer.tried} == {"steady queue"}
