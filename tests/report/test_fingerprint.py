"""What was sent: arrivals and lengths as the requests table has them."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.report.fingerprint import fingerprint
from kvsim.report.length_chart import distribution, length_chart
from kvsim.tables import OUTCOMES


@pytest.fixture(scope="module")
def variant(synthetic):
    return synthetic.run(synthetic.Traffic(requests=2_000, steps=10)).variants[0]


def charts_of(variant):
    return {chart.key: chart for chart in fingerprint(variant).charts}


def test_it_has_rate_dispersion_and_lengths(variant):
    section = fingerprint(variant)
    assert [chart.key for chart in section.charts] == [
        "chart-rate", "chart-dispersion", "chart-lengths"
    ]  # fmt: skip
    assert section.table.rows
    for chart in section.charts:
        go.Figure(data=chart.figure["data"], layout=chart.figure["layout"])
        assert "log" not in {key.words for key in chart.keys}


def test_the_rates_add_up_to_the_requests(variant):
    figure = charts_of(variant)["chart-rate"].figure
    mean_per_s = np.mean(figure["data"][2]["y"])
    window_s = variant.summary["figures"]["window_s"]
    # The last of 2,000 ends the window; rates are drawn with four decimals.
    assert mean_per_s * window_s == pytest.approx(1_999, abs=0.01)


def test_samples_of_a_request_arrive_once(variant):
    requests = {name: np.repeat(column, 3) for name, column in variant.requests.items()}
    sampled = charts_of(replace(variant, requests=requests))
    for key in ("chart-rate", "chart-dispersion"):
        assert sampled[key].figure == charts_of(variant)[key].figure
    again = requests["attempt"].copy()
    again[::3] = 1  # but a retry is another arrival
    retried = charts_of(replace(variant, requests={**requests, "attempt": again}))
    assert retried["chart-rate"].title != sampled["chart-rate"].title


def test_answers_are_those_of_finished_requests(variant):
    outcome = variant.requests["outcome"].copy()
    outcome[:500] = OUTCOMES.index("timed_out")
    chart = charts_of(replace(variant, requests={**variant.requests, "outcome": outcome}))
    (prompts, answers) = chart["chart-lengths"].table.rows
    assert (prompts[1], answers[1]) == ("2,000", "1,500")
    assert "1,500 of 2,000" in chart["chart-lengths"].note
    assert charts_of(variant)["chart-lengths"].note == ""


def test_requests_that_all_come_at_once_have_no_rate(variant):
    requests = {**variant.requests, "arrival_ns": np.zeros(2_000, dtype=np.int64)}
    section = fingerprint(replace(variant, requests=requests))
    assert [chart.key for chart in section.charts] == ["chart-lengths"]
    assert section.sentence == "All requests arrive at once."
    assert section.table is None


@pytest.mark.parametrize("kind", ["empty", "rejected"])
def test_little_or_nothing_was_sent(synthetic, kind):
    section = fingerprint(getattr(synthetic, kind)().variants[0])
    assert (section is None) == (kind == "empty")


def test_one_request(synthetic):
    section = fingerprint(synthetic.run(synthetic.Traffic(requests=1, steps=3)).variants[0])
    assert "chart-lengths" in [chart.key for chart in section.charts]


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=400), st.integers(2, 50))
def test_a_distribution_is_the_share_that_is_at_most_as_long(tokens, most):
    ordered = np.sort(np.array(tokens))
    values, shares = distribution(ordered, most)
    assert len(values) <= max(most, 2)
    assert (values[-1], shares[-1]) == (ordered[-1], 1.0)
    for value, share in zip(values, shares, strict=True):
        assert share == (ordered <= value).mean()


def test_lengths_alone(variant):
    none = np.zeros(0, dtype=np.int64)
    assert length_chart(none, none) is None
    assert length_chart(np.array([550, 550]), none).title == "The median prompt has 550 tokens"
