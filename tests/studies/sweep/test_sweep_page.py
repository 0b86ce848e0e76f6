"""The page: findings, every point kept, small enough; in a browser nothing fails."""

import re

import pytest

from kvsim.studies.sweep.answer import answer_of
from kvsim.studies.sweep.heat_maps import heat_maps
from kvsim.studies.sweep.lines import lines
from kvsim.studies.sweep.page import build_page
from kvsim.studies.sweep.parallel import parallel_chart
from kvsim.studies.sweep.view import View
from tests import chromium
from tests.studies.sweep.synthetic import SLO, answer, outcome, queue, results_of

MOST_BYTES = 8_000_000
HOSTILE = "</script><img src=x onerror='window.pwned=1'>"


def page_of(found) -> str:
    return build_page(found, "Which?", "kvsim sweep x.yaml")


def test_the_same_results_give_the_same_page():
    first, second = page_of(answer(replications=2)), page_of(answer(replications=2))
    assert first == second


def test_ids_are_unique_and_links_lead_somewhere():
    page = page_of(answer()).partition('<script type="application/json"')[0]
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)
    for key in (
        "chart-front",
        "chart-map-0",
        "chart-line-0",
        "chart-parallel",
        "points",
        "failures",
    ):
        assert key in ids


def test_each_cell_of_a_map_has_its_number_and_gray_ones_are_kept():
    found = answer()
    view = View(found)
    chart = heat_maps(view)[found.metrics.index("ttft_p99_s")]
    colored, gray = chart.figure["data"]
    means, failed = found.results.means("ttft_p99_s"), found.results.failed
    for row, b in enumerate(view.grid["b.cap"]):
        for column, a in enumerate(view.grid["a.load"]):
            place = view.at({"a.load": a, "b.cap": b})
            assert found.results.settings[place].changes == {"a.load": a, "b.cap": b}
            words = colored["text"][row][column] or gray["text"][row][column]
            assert (colored["z"][row][column] is None) == (not found.eligible[place])
            if failed[place]:
                assert (words, gray["z"][row][column]) == ("×", 1)
            else:
                number = float(words.removeprefix("★ ").replace(",", ""))
                assert number == pytest.approx(1e3 * means[place], rel=6e-3)
    assert sum("★" in words for row in colored["text"] for words in row) == 1


def test_lines_have_bands_where_there_are_replications():
    bands = [t for t in lines(View(answer(replications=3)))[0].figure["data"] if "fill" in t]
    assert bands
    assert not [t for t in lines(View(answer()))[0].figure["data"] if "fill" in t]
    found = answer(replications=3)
    chart = lines(View(found))[found.metrics.index("goodput_requests_per_s")]
    assert all(" ± " in cell for row in chart.table.rows for cell in row[1:] if cell != "–")


def test_lines_of_parallel_coordinates_are_all_points_that_ran():
    found = answer()
    chart, dimensions = parallel_chart(View(found))
    missed, met, best = chart.figure["data"]
    assert len(met["meta"]) == found.eligible.sum()
    assert len(missed["meta"]) == 25 - found.eligible.sum()
    assert len(best["meta"]) == 1
    for trace in (missed, met, best):
        assert len(trace["x"]) == len(trace["y"]) == len(trace["meta"]) * (len(dimensions) + 1)
        assert all(0 <= y <= 1 for y in trace["y"] if y is not None)


@pytest.mark.parametrize(
    "parts",
    [
        {"axes": {"a.load": [4], "b.cap": [8]}, "replications": 2},
        {"axes": {"a.load": [4, 8], "b.cap": [8]}},
        {"axes": {"a.load": [4, 8], "b.cap": [13]}},
        {"axes": {"a.load": [4, 8], "b.cap": [1, 60], "c": [None, "x", {"kind": "y"}]}},
        {
            "axes": {"a.load": {"from": 1, "to": 9}, "b.cap": {"from": 1, "to": 60, "whole": True}},
            "samples": {"count": 16},
        },
        {"zipped": {"both": [{"a.load": 1, "b.cap": 2}, {"a.load": 4, "b.cap": 8}]}},
        {
            "axes": {"a.load": [1, 2], "b.cap": [2, 8]},
            "where": [{"left": "a.load", "op": "!=", "right": 2}],
        },
    ],
)
def test_any_form_of_sweep_has_a_page(parts):
    page = page_of(answer(**parts))
    assert "Reproduce with" in page


def test_points_without_slo_price_or_any_figure_have_a_page():
    for met, cost, ttft_s in ((None, 1.0, 0.1), (None, None, 0.1), (False, None, None)):
        results = results_of(lambda _, o=(met, cost, ttft_s): outcome(*o), axes={"a": [1, 2, 3]})
        assert "Points" in page_of(answer_of(results, None))


def test_a_large_sweep_has_a_small_page_that_says_so():
    axes = {
        "a.load": {"from": 1, "to": 100, "count": 100},
        "b.cap": {"from": 20, "to": 219, "count": 200},
    }
    page = page_of(answer(axes=axes))
    assert len(page.encode()) < MOST_BYTES
    assert "300 of 20,000 points; the table file has all." in page
    assert "Evenly picked rows and columns; the table file has all." in page
    assert "points are drawn, the front among them" in page


# In a browser


@pytest.mark.browser
def test_a_browser_draws_all_of_it_and_filters_by_keyboard(tmp_path):
    from playwright.sync_api import sync_playwright

    results = results_of(
        queue,
        name="hostile",
        axes={"a.load": [1, 2, 4, 8], "b.cap": [1, 8, 13], "c": [HOSTILE, "plain"]},
    )
    path = tmp_path / "page.html"
    path.write_text(build_page(answer_of(results, SLO), HOSTILE, "kvsim"), encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.executable(), args=chromium.ARGUMENTS
        )
        page = browser.new_page(viewport={"width": 400, "height": 900})
        log: list[str] = []
        page.on("console", lambda message: log.append(message.text))
        page.on("pageerror", lambda error: log.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-charts=drawn]", timeout=60_000)
        assert page.evaluate("window.pwned") is None
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        lines = "document.getElementById('chart-parallel').data.map((t) => t.x.length)"
        whole = page.evaluate(lines)
        page.focus("input[name=from-0]")
        page.keyboard.type("4")
        assert page.inner_text("#filters output") == "8 of 16 lines"
        assert sum(page.evaluate(lines)[:2]) * 2 == sum(whole[:2])
        page.select_option("select[name^=is-]", label="plain")
        assert page.inner_text("#filters output") == "4 of 16 lines"
        page.focus("#filters button")
        page.keyboard.press("Enter")
        page.wait_for_timeout(100)
        assert page.inner_text("#filters output") == "16 of 16 lines"
        assert page.evaluate(lines) == whole
        browser.close()
    assert not log
