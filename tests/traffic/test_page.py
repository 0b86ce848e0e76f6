"""The page without a browser: what it says, what it allows, and that it is the same every time."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.report.drawing import log_axis, log_ticks, short_number
from kvsim.report.figure import Table
from kvsim.report.shell import is_page
from kvsim.rng import stream
from kvsim.traffic.page import ForModel, build_page
from kvsim.traffic.summary import analyze
from kvsim.workload.requests import Segments
from kvsim.workload.traces import Trace

S = 1_000_000_000
HOSTILE = '</script><img src=x onerror="pwned=1">'


def log(requests: int = 600) -> Trace:
    """200 sessions of three turns: each prompt is the last one and 80 tokens more."""
    rng = stream(0, "page-tests")
    times = np.sort(rng.integers(0, 900 * S, requests))
    turn, session = np.arange(requests) // 200, np.arange(requests) % 200
    pieces = [(10 * (i % 200) + part, 80) for i in range(requests) for part in range(i // 200 + 1)]
    seeds, tokens = np.array(pieces).T
    first = np.append(0, np.cumsum(turn + 1))
    segments = Segments(first, seeds, tokens, np.arange(90_000, 90_000 + requests))
    output = rng.integers(1, 300, requests)
    return Trace(times - times[0], 80 * (turn + 1), output, session=session, segments=segments)


def figures_of(page: str) -> list[dict]:
    return json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)[1])


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def page() -> str:
    model = ForModel("meta-llama/Llama-3.1-8B-Instruct", 131_072)
    fit = Table(["figure", "log"], [["requests per second", "0.7"]])
    return build_page(analyze(log()), "chat.csv", "kvsim trace chat.csv", model, fit)


def test_the_page_is_the_same_every_time(page):
    model = ForModel("meta-llama/Llama-3.1-8B-Instruct", 131_072)
    fit = Table(["figure", "log"], [["requests per second", "0.7"]])
    assert page == build_page(analyze(log()), "chat.csv", "kvsim trace chat.csv", model, fit)


def test_every_chart_has_its_place_its_finding_and_its_numbers(page):
    keys = [figure["key"] for figure in figures_of(page)]
    assert keys == [
        "chart-rate",
        "chart-dispersion",
        "chart-lengths",
        "chart-joint",
        "chart-turns",
        "chart-gaps",
        "chart-reuse",
    ]
    tags = Tags(page).found
    places = [attributes.get("id") for tag, attributes in tags if tag == "div"]
    assert all(places.count(key) == 1 for key in keys)
    assert sum(tag == "details" for tag, _ in tags) == len(keys)
    sections = {attributes["id"] for tag, attributes in tags if tag == "section"}
    links = {attributes["href"][1:] for tag, attributes in tags if tag == "a"}
    assert links == sections - {"inputs"} | {"start"}  # which the skip link leads to


def test_titles_say_what_the_data_show(page):
    assert "200 sessions of 3 turns on average; 0 % have one" in page
    traffic = analyze(log())
    assert f"At most {100 * traffic.reuse.unbounded:.3g} %" in page
    assert "KV cache of meta-llama/Llama" in page
    # 10 k tokens of 128 KiB each
    assert "10 k<br>1.22 GiB" in str(figures_of(page))


def test_the_rate_in_the_chart_adds_up_to_the_requests(page):
    figure = next(figure for figure in figures_of(page) if figure["key"] == "chart-rate")
    low, high, mean = (np.array(line["y"]) for line in figure["data"])
    assert (low <= mean).all()
    assert (mean <= high).all()
    traffic = analyze(log())
    counted = mean.mean() * traffic.arrivals.duration_s
    assert counted == pytest.approx(600, abs=5)  # of 120 bins the last may be cut


def test_the_density_and_the_distributions_sum_to_all_requests(page):
    figures = {figure["key"]: figure for figure in figures_of(page)}
    joint = figures["chart-joint"]["data"][0]
    assert sum(share for row in joint["z"] for share in row if share) == pytest.approx(100, abs=0.1)
    for line in figures["chart-lengths"]["data"]:
        assert (np.diff(line["y"]) >= 0).all()
        assert (line["y"][0], line["y"][-1]) == (0, 100)


def test_nothing_is_loaded_and_only_the_pages_scripts_run(page):
    tags = Tags(page).found
    policy = next(a["content"] for t, a in tags if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline'; img" in policy  # styles alone
    assert not [a for tag, a in tags if tag == "script" and "src" in a]


def test_a_hostile_name_stays_text():
    page = build_page(analyze(log()), HOSTILE, HOSTILE, ForModel(HOSTILE, 1))
    assert not [tag for tag, _ in Tags(page).found if tag == "img"]
    assert page.count("</script>") == Tags(page).found.count(("script", {})) + 1


def test_a_log_that_says_little_makes_a_small_page():
    ones = np.ones(3, dtype=np.int64)
    page = build_page(analyze(Trace(0 * ones, ones, ones)), "x", "kvsim trace x")
    assert [figure["key"] for figure in figures_of(page)] == ["chart-lengths", "chart-joint"]
    assert "say what prompts have in common" in page


@pytest.mark.parametrize("requests", [1, 2, 25])
def test_few_requests_make_a_page(requests):
    page = build_page(analyze(log().take(np.arange(requests))), "x", "kvsim trace x")
    assert f"{requests:,} request{'s' * (requests > 1)}" in page


def test_two_requests_a_nanosecond_apart_make_a_page():
    ones = np.ones(2, dtype=np.int64)
    page = build_page(analyze(Trace(np.array([0, 1]), ones, ones)), "x", "kvsim trace x")
    assert [figure["key"] for figure in figures_of(page)] == ["chart-lengths", "chart-joint"]


def test_a_page_is_known_as_one(page, tmp_path):
    (tmp_path / "page.html").write_text(page)
    (tmp_path / "other.html").write_text("<!doctype html><p>Mine</p>")
    assert is_page(tmp_path / "page.html")
    assert not is_page(tmp_path / "other.html")


@given(low=st.floats(1e-3, 1e6), factor=st.floats(1, 1e9), most=st.integers(2, 8))
def test_a_logarithmic_axis_has_few_labels_all_on_the_axis(low, factor, most):
    labels = log_ticks(low, low * factor, most)
    assert labels == sorted(set(labels))
    assert len(labels) <= most
    assert all(low <= label <= low * factor for label in labels)
    assert labels or factor < 2.5  # from one of 1, 2, 5 to the next


@pytest.mark.parametrize(
    ("value", "label"), [(0.5, "0.5"), (200, "200"), (1e3, "1 k"), (5e6, "5 M"), (2e10, "20 G")]
)
def test_labels_of_ticks_are_short(value, label):
    assert short_number(value) == label


def test_an_axis_over_gaps_of_nothing_is_drawn():
    assert log_axis("seconds", [0.0, 0.0])["tickvals"] == [1.0]
    assert log_axis("seconds", [0.0, 2.0, 3.0])["tickvals"] == [2.0]
