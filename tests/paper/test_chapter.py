"""Figures beside printed ones: ratios, bounds, and what the page makes of them."""

import json
import re
from dataclasses import replace

import pytest

from kvsim.paper.chapter import HEADER, Chapter, Finding, about, within
from kvsim.paper.charts import bars
from kvsim.paper.page import build_page, verdict
from kvsim.paper.run import as_document


@pytest.mark.parametrize(
    ("ours", "bounds", "holds"),
    [
        (10.0, (9, 11), True),
        (9.0, (9, 11), True),
        (8.9, (9, 11), False),
        (None, (9, 11), False),
        (10.0, None, None),
    ],
)
def test_a_figure_holds_within_its_bounds(ours, bounds, holds):
    assert Finding("batch", "", 10.0, ours, bounds).holds is holds


def test_a_ratio_needs_two_numbers():
    assert Finding("batch", "", 10.0, 12.0).ratio == pytest.approx(1.2)
    for printed in (None, 0.0, (1.0, 2.0)):
        assert Finding("batch", "", printed, 12.0).ratio is None


def test_bounds_are_about_a_value():
    assert within(200.0, 0.02) == pytest.approx((196, 204))
    assert about(20.0, 3.0) == (17.0, 23.0)
    assert about(2.0, 3.0) == (0.0, 5.0)


def test_rows_fit_the_header():
    findings = [
        Finding("shares", "%", 20.4, 21.0, about(20.4, 3), "why"),
        Finding("ratio", "x", (1.7, 2.7), 1.6, (1.7, 2.7)),
        Finding("nothing", "", None, None),
    ]
    rows = [finding.row() for finding in findings]
    assert {len(row) for row in rows} == {len(HEADER)}
    assert rows[0][1:6] == ["20.4 %", "21 %", "1.03", "17.4 to 23.4 %", "yes"]
    assert rows[1][1:6] == ["1.7 to 2.7 x", "1.6 x", "–", "1.7 to 2.7 x", "no"]
    assert rows[2][1:6] == ["–", "–", "–", "–", "–"]


def test_the_page_tells_what_holds_and_what_does_not():
    chapter = Chapter(
        "figure2",
        "Figure 2",
        "Shares <of> memory",
        "What it is.",
        [Finding("one", "", 1.0, 1.0, (0, 2)), Finding("other", "", 1.0, 5.0, (0, 2), "because")],
        [bars("figure2", "Title", "What.", "%", ["a<br>b"], {"ours": [1.0]})],
    )
    assert verdict([chapter]) == "1 of 2 figures of the paper are within their bounds"
    page = build_page([chapter, replace(chapter, key="figure3")], "kvsim paper")
    places = re.findall(r'id="([^"]+)"', page.split("<script")[0])
    assert len(places) == len(set(places))
    assert page == build_page([chapter, replace(chapter, key="figure3")], "kvsim paper")
    assert "Shares &lt;of&gt; memory" in page
    assert "because" in page
    document = json.loads(json.dumps(as_document([chapter])))
    assert [found["holds"] for found in document["figure2"]["findings"]] == [True, False]
