import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from kvsim.metrics.catalog import METRICS, format_figure, percent
from kvsim.metrics.summary import compare
from kvsim.report.inputs import ReportInput
from kvsim.report.page import build_report
from kvsim.report.plotly_script import plotly_script

HOSTILE = (
    "</script><script>window.pwned=1</script>",
    "\"'><img src=x onerror=window.pwned=1>",
    "%{y}<b>&amp;</b> {{ 7*7 }} ${1}",
    "🚀\u202eمرحبا\u2028 עולם",
    "x" * 300,
)


class Page(HTMLParser):
    """Collects elements with their attributes, text by element, and scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.words: list[str] = []
        self._script: dict[str, str] | None = None
        self._style = False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        found = {name: value or "" for name, value in attributes}
        self.elements.append((tag, found))
        self._style = tag == "style"
        self._script = found if tag == "script" else None

    def handle_endtag(self, tag):
        self._script, self._style = None, False

    def handle_data(self, data):
        if self._script is not None:
            self.scripts.append((self._script, data))
        elif not self._style:
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    @property
    def figures(self) -> list[dict]:
        return json.loads(next(text for about, text in self.scripts if "type" in about))


@pytest.fixture(scope="module")
def run(synthetic) -> ReportInput:
    return synthetic.run(synthetic.Traffic(preempted=20))


@pytest.fixture(scope="module")
def html(run) -> str:
    return build_report(run)


@pytest.fixture(scope="module")
def page(html) -> Page:
    return Page(html)


def test_same_tables_same_bytes(synthetic, html):
    assert build_report(synthetic.run(synthetic.Traffic(preempted=20))) == html


def test_answer_comes_first_then_the_promised_order(run, page):
    text = page.text
    assert text.index(run.variants[0].summary["verdict"]["sentence"]) < text.index("Simulated")
    sections = [about["id"] for tag, about in page.elements if tag == "section"]
    promised = ["verdict", "variants", "time", "memory", "latency", "kv", "queue", "iterations"]
    promised += ["preemptions", "workload", "trust", "inputs"]
    assert [section for section in sections if section in promised] == promised
    links = [a["href"] for tag, a in page.elements if tag == "a"]
    assert links == ["#start", *(f"#{name}" for name in sections), "#variants"]


def test_the_comparison_shows_the_numbers_of_the_summary(run, html):
    """Of each variant: the value as formatted, then what sets it apart from the base."""
    table = html[html.index('<section id="variants"') :].partition("</section>")[0]
    rows = dict(re.findall(r'<tr><th scope="row"[^>]*>(.*?)</th>(.*?)</tr>', table))
    summaries = [json.loads(json.dumps(variant.summary)) for variant in run.variants]
    compared = compare({v.name: s for v, s in zip(run.variants, summaries, strict=True)})
    assert len(compared) > 15
    for row in compared:
        cells = re.findall(r"<td>(.*?)(?: <span.*?)?(?:<span.*?)?</td>", rows[row["label"]])
        shown = [format_figure(row["name"], s["figures"][row["name"]]) for s in summaries]
        assert cells == shown, row["name"]


def test_targets_show_the_numbers_of_the_summary(run, html):
    table = html[html.index('<table class="targets"') :].partition("</table>")[0]
    rows = re.findall(r'<tr><th scope="row"[^>]*>(.*?)</th>(.*?)</tr>', table)
    targets = run.variants[0].summary["verdict"]["targets"]
    assert len(rows) == len(targets) == 4
    for (label, cells), target in zip(rows, targets, strict=True):
        assert label == METRICS[target["figure"]].label
        text = re.sub(r"<[^>]+>", "|", cells)
        for amount in (target["value"], target["bound"]):
            assert f"|{format_figure(target['figure'], amount)}|" in text
        assert f"|{'met' if target['met'] else 'missed'}|" in text
        assert percent(abs(target["margin"])) in text or target["margin"] < -1


def test_a_long_run_keeps_to_the_budget_of_a_page(synthetic):
    """As many variants as there are looks, on a long run: it still has to be drawn at once."""
    names = ("base", *(f"contiguous {number}" for number in range(5)))
    run = synthetic.run(synthetic.Traffic(requests=3000, steps=20_000, preempted=2000), names)
    html = build_report(run)
    assert len(html.encode()) < 8_000_000
    figures = Page(html).figures
    lengths = [
        max(len(values) for values in trace.values() if isinstance(values, list))
        for figure in figures
        for trace in figure["data"]
        if any(isinstance(values, list) for values in trace.values())
    ]
    assert sum(lengths) < 150_000


def test_every_figure_of_the_summary_is_on_the_page(run, page):
    for variant in run.variants:
        for name, value in variant.summary["figures"].items():
            assert METRICS[name].label in page.text
            assert format_figure(name, value) in page.text


def test_targets_inputs_and_reproduction_are_told(page):
    for words in ("TTFT p99", "40 ms", "Speculative decoding", "kv_cache.kind", "paged"):
        assert words in page.text
    for words in ("kvsim run scenarios/chat.yaml", "0f0f0f", "weights", "interpolated"):
        assert words in page.text


def test_nothing_is_loaded(page):
    for tag, about in page.elements:
        assert tag not in {"iframe", "object", "embed", "img", "base", "form"}
        assert "src" not in about
        assert not [name for name in about if name.startswith("on")]
        if "href" in about:
            assert about["href"].startswith(("#", "data:,"))


def test_style_loads_nothing(html):
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_policy_allows_exactly_the_two_scripts(page):
    policy = next(a["content"] for tag, a in page.elements if "http-equiv" in a)
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    run_scripts = [text for about, text in page.scripts if not about]
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in run_scripts
    ]
    assert directives["script-src"].split() == hashes
    assert len(hashes) == 2
    assert directives["default-src"] == "'none'"
    assert "connect-src" not in directives
    assert "http" not in policy


def test_page_is_small_beside_plotly(html):
    assert html.count(plotly_script()) == 1
    assert len(html.encode()) - len(plotly_script().encode()) < 1_000_000


def test_ids_are_unique_and_every_figure_has_its_place(page):
    ids = [about["id"] for _, about in page.elements if "id" in about]
    assert len(ids) == len(set(ids))
    plots = [about for tag, about in page.elements if about.get("class") == "plot"]
    assert [about["id"] for about in plots] == [figure["key"] for figure in page.figures]
    assert all(about["aria-label"] for about in plots)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_and_do_nothing(synthetic, name):
    run = dataclasses.replace(
        synthetic.run(names=("base", name)), scenario=name, question=name, command=name
    )
    page = Page(build_report(run))
    assert [about for about, _ in page.scripts] == [
        {"type": "application/json", "id": "figures"},
        {},
        {},
    ]
    assert name in page.text
    assert not [tag for tag, _ in page.elements if tag == "img"]
    in_json = next(text for about, text in page.scripts if about)
    assert not set("<>&\u2028") & set(in_json)
    headings = json.dumps([figure["layout"].get("annotations") for figure in page.figures])
    assert "<script" not in headings
    assert "<img" not in headings


def test_figures_hold_plain_numbers(page):
    assert "NaN" not in json.dumps(page.figures)
    assert "Infinity" not in json.dumps(page.figures)


def test_nothing_ran(synthetic):
    html = build_report(synthetic.empty())
    assert len(html) < 200_000  # without charts there is no need of Plotly
    page = Page(html)
    assert "No request arrived" in page.text
    assert "No engine step ran" in page.text
    assert page.figures == []


def test_all_rejected(synthetic):
    page = Page(build_report(synthetic.rejected()))
    assert "No request finished: all 5 were rejected" in page.text
    assert page.figures == []


@pytest.mark.parametrize("slo", [None, {"ttft_mean_s": 1.0, "e2e_max_s": 5.0, "itl_p99_s": 0.1}])
def test_one_request(synthetic, slo):
    run = synthetic.run(synthetic.Traffic(requests=1, steps=3), slo=slo)
    page = Page(build_report(run))
    assert len(page.figures) >= 4
    assert run.variants[0].summary["verdict"]["sentence"] in page.text


def test_one_variant_is_compared_with_nothing(synthetic):
    page = Page(build_report(synthetic.run(names=("base",))))
    assert "ratios are to" not in page.text
    assert "Main figures" in page.text


def test_only_differing_inputs_of_variants_are_shown_side_by_side(html):
    row = re.search(r"<tr>[^\n]*kv_cache\.kind.*?</tr>", html)
    assert re.findall(r"<td>(.*?)</td>", row[0]) == ["paged", "contiguous"]
    row = re.search(r"<tr>[^\n]*engine\.max_num_seqs.*?</tr>", html)
    assert re.findall(r"<td>(.*?)</td>", row[0]) == ["256"]


def test_without_variants_there_is_no_report():
    with pytest.raises(ValueError, match="at least one variant"):
        build_report(ReportInput("x", "", []))
