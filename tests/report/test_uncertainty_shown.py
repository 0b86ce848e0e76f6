"""The page shows how sure its figures are: within one run, and over replications."""

import dataclasses
import re

import pytest

from kvsim.metrics.catalog import format_range
from kvsim.metrics.summary import certainty, with_replications
from kvsim.report.inputs import ReportInput
from kvsim.report.page import build_report
from kvsim.report.uncertainty import differences, interval, observations, sentences


@pytest.fixture(scope="module")
def runs(synthetic) -> list[ReportInput]:
    return [synthetic.run(synthetic.Traffic(seed=seed)) for seed in range(4)]


@pytest.fixture(scope="module")
def replicated(runs) -> ReportInput:
    names = [variant.name for variant in runs[0].variants]
    summaries = with_replications(
        {name: [run.variants[place].summary for run in runs] for place, name in enumerate(names)}
    )
    variants = [
        dataclasses.replace(variant, summary=summaries[variant.name])
        for variant in runs[0].variants
    ]
    return dataclasses.replace(runs[0], variants=variants)


def text_of(run: ReportInput) -> str:
    body = build_report(run).partition("<main>")[2].partition("</main>")[0]
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", body))


def test_one_run_shows_intervals_and_what_its_requests_are_worth(runs):
    base = runs[0].variants[0]
    text = text_of(runs[0])
    assert interval(base.summary, "ttft_p50_s") in text
    assert certainty(base.summary) in sentences(runs[0].variants)[0]
    count = base.summary["uncertainty"]["ttft_mean_s"]["count"]
    assert 1 <= count <= base.summary["figures"]["requests_total"]
    assert f"from {count:,}" in observations(runs[0].variants).rows[0][1]
    assert not differences(runs[0].variants).rows
    assert "replication by replication" not in text


def test_replications_show_means_and_differences(replicated):
    base, other = replicated.variants
    text = text_of(replicated)
    assert "Values are means over 4 replications" in text
    found = other.summary["differences"]["ttft_p99_s"]
    shown = format_range("ttft_p99_s", found["low"], found["high"])
    assert shown in text
    assert interval(base.summary, "requests_per_s") in text
    assert sentences(replicated.variants) == [certainty(base.summary)]


@pytest.mark.parametrize("certain", [True, False])
def test_a_verdict_that_is_uncertain_has_no_color(runs, certain):
    variant = runs[0].variants[0]
    verdict = {**variant.summary["verdict"], "met": True, "certain": certain}
    summary = {**variant.summary, "verdict": verdict}
    run = dataclasses.replace(runs[0], variants=[dataclasses.replace(variant, summary=summary)])
    assert ('<div class="verdict met">' in build_report(run)) == certain
