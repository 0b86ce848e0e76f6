"""The summary for a pull request: short, right, and names in it are never markup."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from kvsim.metrics.catalog import format_figure
from kvsim.report.inputs import ReportInput
from kvsim.report.markdown import MOST_TARGETS, MOST_VARIANTS, as_markdown, code, escaped

HOSTILE = (
    '</script><img src=x onerror="alert(1)">',
    "a|b\\|c",
    "`code` ``two``",
    "`",
    "**bold** _it_ ~~gone~~ [link](http://x) ![i](y) <!-- &lt; $x$ #1",
    "two\nlines\n\n# heading",
    "\u202eright to left",
    "x" * 300,
    "@everybody",
    "😀",
)
RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
MARKUP = {"html_inline", "html_block", "image", "link_open", "em_open", "s_open", "hr"}


def tokens_of(text):
    found = []
    for token in RENDERER.parse(text):
        found += [token, *(token.children or ())]
    return found


def shown(text):
    """Return the text that a reader sees."""
    kinds = {"text", "code_inline", "fence"}
    return "".join(token.content for token in tokens_of(text) if token.type in kinds)


def tables(text):
    """Return the cells of each table, row by row."""
    found, is_inside = [], False
    for token in RENDERER.parse(text):
        if token.type == "table_open":
            found.append([])
        is_inside = token.type != "table_close" and (is_inside or token.type == "table_open")
        if token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and is_inside:
            found[-1][-1].append("".join(child.content for child in token.children))
    return found


@pytest.mark.parametrize("names", [("base",), ("base", "contiguous"), ("base", *"abcdefgh")])
def test_it_is_short_and_each_row_has_all_cells(synthetic, names):
    text = as_markdown(synthetic.run(names=names))
    assert len(text.splitlines()) < 60
    assert len(tables(text)) == 2
    for table in tables(text):
        assert len({len(row) for row in table}) == 1
    _, compared = tables(text)
    assert len(compared) <= 1 + 12
    assert compared[0] == ["", *names[:MOST_VARIANTS]]
    assert ("3 more variants" in text) is (len(names) == 9)


def test_it_has_many_targets_and_those_missed_come_first(synthetic):
    slo = {f"e2e_p{rank}_s": 1e9 for rank in range(30)} | {"ttft_p99_s": 1e-9}
    text = as_markdown(synthetic.run(slo=slo))
    assert len(text.splitlines()) < 60
    targets, _ = tables(text)
    assert len(targets) == 1 + MOST_TARGETS
    assert targets[1][0] == "TTFT p99"
    assert targets[1][-1].startswith("MISSED")
    assert "21 more targets: see the report." in text


def test_targets_of_a_class_name_it(synthetic):
    run = synthetic.run(names=("base",))
    base = run.variants[0]
    part = {"verdict": base.summary["verdict"]}
    summary = base.summary | {"classes": {"chat|x": part}}
    targets, _ = tables(as_markdown(replace(run, variants=[replace(base, summary=summary)])))
    labels = [row[0] for row in targets[1:]]
    of_all = labels[: len(labels) // 2]
    assert labels == [*of_all, *(f"chat|x: {label}" for label in of_all)]


def test_its_numbers_are_those_of_the_summary(synthetic):
    run = synthetic.run()
    base, other = (variant.summary for variant in run.variants)
    targets, compared = tables(as_markdown(run))
    rows = {row[0]: row[1:] for row in compared}
    for name, label in (("requests_per_s", "Throughput"), ("ttft_p99_s", "TTFT p99")):
        values = [format_figure(name, summary["figures"][name]) for summary in (base, other)]
        assert rows[label][0] == values[0]
        ratio = other["figures"][name] / base["figures"][name]
        assert rows[label][1] == f"{values[1]} ({ratio:.3g}\u00a0×)"
    assert [row[1] for row in targets[1:]] == [
        format_figure(target["figure"], target["value"]) for target in base["verdict"]["targets"]
    ]
    text = shown(as_markdown(run))
    assert base["verdict"]["sentence"] in text
    assert base["limits"]["sentence"] in text
    assert "per million output tokens" in text
    assert run.command in text
    assert "measured" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_shown_and_are_no_markup(synthetic, name):
    base, other = synthetic.run().variants
    plain = " ".join(name.split())[:39]
    text = as_markdown(
        replace(
            synthetic.run(),
            scenario=name,
            variants=[replace(base, notes=(f"Of {name}.",)), replace(other, name=name)],
            command=f"kvsim run '{name.split()[0]}'",
        )
    )
    usual = {token.type for token in tokens_of(as_markdown(synthetic.run()))}
    assert not MARKUP & usual
    assert {token.type for token in tokens_of(text)} <= usual
    assert len(text.splitlines()) < 60
    for table in tables(text):
        assert len({len(row) for row in table}) == 1
    assert shown(text).replace("\u2060", "").count(plain) >= 3


@pytest.mark.parametrize("what", ["rejected", "empty"])
def test_runs_without_answers(synthetic, what):
    text = as_markdown(getattr(synthetic, what)())
    assert len(text.splitlines()) < 60
    assert text.startswith("## ")


def test_a_run_needs_a_variant():
    with pytest.raises(ValueError, match="at least one variant"):
        as_markdown(ReportInput("x", "", []))


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1)
ASCII = st.text(st.sampled_from("ab `|\\*_[]<>&$~!#@(){}"), min_size=1)


@settings(max_examples=60)
@given(TEXTS | ASCII)
@example("__init__")
@example("a__b_c")
def test_any_text_is_shown_as_it_is(text):
    """In a sentence and in a cell, escaped and as code."""
    plain = " ".join(text.split())
    for made in (f"Of {escaped(text)}.", f"Of {code(text)}."):
        seen = shown(made).replace("\u2060", "")
        assert seen == f"Of {plain}." or not plain
    cell = tables(f"| {escaped('x ' + text)} | b |\n| -- | -- |\n")[0][0]
    assert [each.replace("\u2060", "") for each in cell] == [f"x {plain}".strip(), "b"]
