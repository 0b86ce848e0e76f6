"""Figures and verdicts by class against the same figures of a run that has only that class."""

import numpy as np
import pytest

from kvsim.metrics.classes import CLASS_FIGURES, class_summaries, class_table, overall
from kvsim.metrics.step_sums import last_end_ns
from kvsim.metrics.summary import summarize
from kvsim.metrics.throughput import request_figures
from tests.metrics.test_summary import random_tables


@pytest.mark.parametrize("seed", range(10))
def test_a_class_has_the_figures_that_its_requests_have_alone(seed, context):
    requests, steps, events = random_tables(seed)
    rng = np.random.default_rng(seed)
    requests["class"] = rng.integers(0, 2, len(requests["class"]))
    slo = {"e2e_p90_s": 2e-8, "max_failed_fraction": 0.9}
    run = context(horizon_ns=40, class_names=("a", "b"), class_slos={"b": slo})
    found = class_summaries(requests, last_end_ns(steps, run), run)
    for code, name in enumerate(("a", "b")):
        mine = {column: values[requests["class"] == code] for column, values in requests.items()}
        alone = summarize(mine, steps, events, context(horizon_ns=40, slo=slo if code else None))
        figures = found[name]["figures"]
        assert not any(
            figure.startswith(("itl", "usd", "kv", "step"))
            for figure in figures
            if figures[figure] is not None
        )
        for figure, value in figures.items():
            if not figure.startswith("usd"):
                assert value == alone["figures"][figure], figure
        assert found[name]["verdict"] == alone["verdict"]


def verdict(met, targets=1, sentence="It."):
    return {"met": met, "certain": None, "sentence": sentence, "targets": [{}] * targets}


@pytest.mark.parametrize(
    ("whole", "classes", "met", "sentence"),
    [
        (verdict(True), {"a": verdict(None, 0)}, True, "It."),
        (verdict(None, 0), {"a": verdict(True, 1, "Yes.")}, True, "Class a: Yes."),
        (verdict(True), {"a": verdict(True, 1, "Yes.")}, True, "It. Class a: Yes."),
        (
            verdict(True),
            {"a": verdict(True), "b": verdict(False, 1, "Misses it.")},
            False,
            "Class b misses it.",
        ),
        (verdict(False, 1, "No."), {"a": verdict(False)}, False, "No."),
        (verdict(True), {"a": verdict(None, 1, "Who knows.")}, None, "Class a: Who knows."),
        (verdict(None, 0), {}, None, "It."),
    ],
)
def test_all_parts_have_to_meet_their_targets(whole, classes, met, sentence):
    parts = {name: {"verdict": part} for name, part in classes.items()}
    found = overall(whole, parts)
    assert (found["met"], found["sentence"]) == (met, sentence)
    assert found["targets"] == whole["targets"]


def test_the_table_has_a_row_for_each_class(context):
    requests, _, _ = random_tables(3)
    requests["class"] %= 1
    found = class_summaries(requests, 99, context(horizon_ns=40, class_names=("a", "nobody")))
    header, rows = class_table(found)
    assert len(header) == len(CLASS_FIGURES) + 2
    assert [row[0] for row in rows] == ["a", "nobody"]
    assert rows[1][1] == "0 requests"
    assert {row[-1] for row in rows} == {"none"}


def test_who_was_answered_at_last_is_not_unanswered():
    columns = {
        "group": [0, 0, 1, 1, 2, 3, 3],
        "attempt": [0, 1, 0, 0, 0, 0, 1],
        "outcome": [3, 0, 0, 1, 0, 3, 3],  # the second's samples: one finished, one rejected
        "arrival_ns": [0] * 7,
        "admitted_ns": [0] * 7,
        "prompt_tokens": [1] * 7,
        "cached_tokens": [0] * 7,
    }
    figures = request_figures({name: np.array(values) for name, values in columns.items()}, 0)
    assert figures["unanswered_fraction"] == 2 / 4
    assert figures["retries_total"] == 2
    assert figures["failed_fraction"] == 4 / 7
