"""`kvsim compare` as it is typed: what it takes, what it prints, what it refuses."""

import json
import re

import pytest

from kvsim.compare.figures import against
from kvsim.compare.page import build_page
from kvsim.compare.sides import open_sides
from kvsim.names import short_name
from kvsim.report.configuration import ABSENT, as_diff, differing, flattened

HOSTILE = "</script><script>window.pwned=1</script>|`*x*`"


@pytest.fixture
def runs(bench):
    """Three runs on the same requests: as they are, later, and none finished."""
    requests = bench.requests_table(count=1100)
    made = bench.Made(slo=bench.SLO, scenario="chat")
    bench.write_run(
        bench.folder / "a",
        {"base": requests, "late": bench.later(requests, 40 * bench.MS)},
        made,
    )
    other = bench.replace(made, settings={"max_num_seqs": 16})
    bench.write_run(bench.folder / "b", {"base": bench.later(requests, 2 * bench.S)}, other)
    bench.write_run(bench.folder / "c", {"base": bench.failed(requests, slice(None))}, made)
    return bench


def test_the_answer_comes_first_and_fits(runs, command_line):
    done = command_line("compare", "a", "b", "a:late", "c")
    assert (done.returncode, done.stderr) == (0, "")
    first = done.stdout.split("\n\n")[0]
    assert first.startswith("b has ")
    assert "p99 TTFT of a" in first
    assert "paired on 1,100 requests" in " ".join(first.split())
    assert "c finished no request" in first
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "- engine.max_num_seqs: 64\n  + engine.max_num_seqs: 16" in done.stdout


def test_variants_are_named_behind_the_run(runs, command_line):
    done = command_line("compare", "a:late", "a")
    assert "A  a:late\nB  a\n" in done.stdout
    assert "+ kv_cache.kind: paged" in done.stdout


def test_six_runs_fit_the_terminal(runs, command_line):
    done = command_line("compare", "a", "b", "a:late", "c", "a", "b")
    assert done.returncode == 0
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_json_is_one_document(runs, command_line):
    document = json.loads(command_line("compare", "a", "b", "--json").stdout)
    assert document["base"]["name"] == "a"
    (other,) = document["others"]
    assert other["basis"] == "requests"
    assert other["figures"]["ttft_mean_s"]["difference"] == pytest.approx(2.0)
    assert other["figures"]["ttft_mean_s"]["standing"] == "sure"


def test_markdown_has_tables(runs, command_line):
    lines = command_line("compare", "a", "b", "--markdown").stdout.splitlines()
    assert lines[0].startswith("**b has")
    tables = [line for line in lines if line.startswith("|")]
    assert len(tables) > 10
    assert any("engine.max_num_seqs" in line for line in tables)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "name 2 to 6"),
        (["a"] * 7, "name 2 to 6"),
        (["a", "nowhere"], "is no run of kvsim"),
        (["a", "a:lat"], "has no variant 'lat'; did you mean late?"),
        (["a", "a:"], "has no variant ''"),
        (["a", "b", "--json", "--markdown"], "choose one"),
    ],
)
def test_bad_input_is_refused(runs, command_line, words, said):
    done = command_line("compare", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_all_mistakes_are_told_at_once(runs, command_line):
    done = command_line("compare", "nowhere", "a:lat", "elsewhere")
    assert len(done.stderr.splitlines()) == 3


def test_a_page_replaces_pages_only(runs, command_line):
    (runs.folder / "notes.txt").write_text("mine")
    done = command_line("compare", "a", "b", "--html", "notes.txt")
    assert done.returncode == 2
    assert (runs.folder / "notes.txt").read_text() == "mine"
    assert command_line("compare", "a", "b", "--html", "page.html").returncode == 0
    first = (runs.folder / "page.html").read_bytes()
    done = command_line("compare", "a", "b", "--html", "page.html")
    assert done.stdout.endswith("Page: page.html\n")
    assert (runs.folder / "page.html").read_bytes() == first


def test_a_page_may_not_replace_a_run(runs, command_line):
    done = command_line("compare", "a", "b", "--html", "a/manifest.json")
    assert done.returncode == 2


def page_of(bench, *words):
    base, *others = open_sides([str(bench.folder / word) for word in words])
    return build_page([against(base, other) for other in others], "kvsim compare …")


@pytest.mark.parametrize("name", ["report.html", "page.html", "sub/page.html"])
def test_a_page_has_no_place_in_the_folder_of_a_run(runs, command_line, name):
    """The next run would refuse to replace what is there beside a run, and its report is its own"""
    before = sorted(path.name for path in (runs.folder / "b").iterdir())
    done = command_line("compare", "a", "b", "--html", f"b/{name}", "--force")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"b/{name}: a run's folder holds the run and nothing else\n"
    assert sorted(path.name for path in (runs.folder / "b").iterdir()) == before


def test_the_page_shows_everything(runs):
    page = page_of(runs, "a", "b", "c", "a:late")
    for key in ("answer", "differences-1", "differences-3", "slo", "latency", "pairs", "trust"):
        assert f'id="{key}"' in page
    assert 'id="worst-1"' in page
    assert 'id="worst-2"' not in page  # nothing finished, nothing got slower
    assert "engine.max_num_seqs" in page
    keys = re.findall(r'class="plot" id="([^"]+)"', page)
    assert len(keys) == len(set(keys))
    assert {"chart-differences-1", "chart-pairs-e2e", "chart-tail-ttft"} <= set(keys)


def test_the_page_of_equal_runs_says_so(runs):
    page = page_of(runs, "a", "a")
    assert "don&#39;t differ: all" in page
    assert "Nothing: these are runs of the same configuration." in page


def test_a_page_without_requests(runs):
    requests = runs.requests_table(count=0)
    runs.write_run(runs.folder / "none", {"base": requests})
    assert "Neither" in page_of(runs, "none", "none")


def test_hostile_names_are_shown_as_they_are(runs, command_line):
    requests = runs.requests_table(count=60)
    requests["class"] = requests["request"] % 2
    name = HOSTILE.replace("/", "∕")  # no folder may have a slash in its name
    made = runs.Made(scenario=HOSTILE, class_names=(HOSTILE, "b"), settings={HOSTILE: HOSTILE})
    tables = {"base": requests, HOSTILE: runs.later(requests, runs.S)}
    runs.write_run(runs.folder / name, tables, made)
    page = page_of(runs, name, f"{name}:{HOSTILE}", "a")
    assert "<script>window" not in page
    assert page.count("</script>") == 3
    markdown = command_line("compare", name, f"{name}:{HOSTILE}", "--markdown").stdout
    assert re.search(r"(?<!\\)[<`*]", markdown.replace("**", "")) is None


def test_names_that_begin_alike_are_told_apart(runs):
    """Sentences cut long names: what is left must not be the same."""
    requests = runs.requests_table(count=30)
    words = []
    for end in ("on", "off"):
        runs.write_run(
            runs.folder / f"llama-70b-on-eight-h100-prefix-caching-{end}", {"base": requests}
        )
        words.append(str(runs.folder / f"llama-70b-on-eight-h100-prefix-caching-{end}"))
    sides = open_sides([*words, str(runs.folder / "a")])
    assert len({short_name(side.name) for side in sides}) == 3
    assert sides[2].name == "a"


def test_folders_of_one_name_are_told_apart(runs, monkeypatch):
    monkeypatch.chdir(runs.folder)
    requests = runs.requests_table(count=30)
    for parent in ("x", "y"):
        (runs.folder / parent).mkdir()
        runs.write_run(runs.folder / parent / "chat", {"base": requests})
    names = [side.name for side in open_sides(["x/chat", "y/chat", "a"])]
    assert names == ["x/chat", "y/chat", "a"]
    far = [f"{runs.folder}/x/chat", f"{runs.folder}/y/chat"]
    assert [side.name for side in open_sides(far)] == ["A: chat", "B: chat"]


def test_a_folder_may_have_a_colon(runs):
    runs.write_run(
        runs.folder / "d:e",
        {"base": runs.requests_table(count=30), "e": runs.requests_table(count=30)},
    )
    folder = str(runs.folder / "d:e")
    assert [side.variant for side in open_sides([folder, f"{folder}:e"])] == ["base", "e"]


# Settings


def test_only_lines_that_differ_are_shown():
    inputs = {
        "a": {"engine": {"n": 1, "same": 2}, "notes": ["x"], "only": {"here": True}},
        "b": {"engine": {"n": 3, "same": 2, "more": 0}, "notes": ["y"], "new": None},
    }
    table = differing(inputs)
    assert table.header == ["Parameter", "a", "b"]
    assert table.rows == [
        ["engine.n", "1", "3"],
        ["engine.more", ABSENT, "0"],
        ["only.here", "true", ABSENT],
        ["new", ABSENT, "null"],
    ]
    assert as_diff(table.rows, 1) == [
        "- engine.n: 1",
        "+ engine.n: 3",
        "+ engine.more: 0",
        "- only.here: true",
        "+ new: null",
    ]


def test_long_values_are_cut():
    ((path, value),) = flattened({"a": {"b": "x" * 1000}})
    assert (path, len(value)) == ("a.b", 300)


@pytest.mark.browser
def test_a_browser_draws_the_page_and_executes_nothing_of_a_name(runs):
    """Small and dark, where a long name has least room."""
    from playwright.sync_api import sync_playwright

    from tests import chromium

    name = HOSTILE.replace("/", "∕")
    made = runs.Made(scenario=HOSTILE)
    slower = runs.later(runs.requests_table(count=1100), 15 * runs.MS)
    runs.write_run(runs.folder / name, {"base": slower, "x" * 200: slower}, made)
    path = runs.folder / "page.html"
    path.write_text(page_of(runs, "a", name, f"{name}:{'x' * 200}", "c"), encoding="utf-8")
    complaints, asked = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.executable(), args=chromium.ARGUMENTS
        )
        phone = {"width": 400, "height": 800}
        page = browser.new_context(viewport=phone, color_scheme="dark", offline=True).new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-charts=drawn]", timeout=60_000)
        drawn = page.evaluate("document.querySelectorAll('.plot[data-drawn=true] svg').length")
        plots = page.evaluate("document.querySelectorAll('.plot').length")
        width = page.evaluate("document.documentElement.scrollWidth")
        executed = page.evaluate("window.pwned")
        browser.close()
    assert (complaints, asked) == ([], [path.as_uri()])
    assert drawn >= plots >= 6
    assert width <= 400
    assert executed is None
