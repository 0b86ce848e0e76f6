"""What to change next, as the page and the terminal show it: from the rows of the table alone."""

from dataclasses import replace

import pytest

from kvsim.report.advice import advice_section, finding, left_out
from kvsim.report.markdown import as_markdown
from kvsim.report.page import build_report
from kvsim.table_files import read_facts, write_facts
from kvsim.tables import ADVICE

HOSTILE = "</script><b>\u202eclass"


def row(key, change, **known):
    nothing = {column.name: "" if column.unit == "text" else None for column in ADVICE}
    usual = {"outcome": "found", "unit": "requests/s", "confidence": 0.95, "gpus": 1.0}
    usual |= {"simulations": 28.0}
    return {**nothing, **usual, "key": key, "change": change, **known}


def seen(key, change, ratio, off=0.1, base=4.0, **known):
    ends = {"ratio_low": ratio * (1 - off), "ratio_high": ratio * (1 + off)}
    ends |= {"capacity_low": base * ratio * (1 - off), "capacity_high": base * ratio * (1 + off)}
    return row(key, change, ratio=ratio, capacity=base * ratio, **{**ends, **known})


BASE = seen("base", "as it is", 1.0, ratio_low=1.0, ratio_high=1.0, limited_by="ttft_p99_s")
GPU = seen("gpu", "GPU h200_sxm", 1.9, usd_per_hour=4.5, basis="measured 80 %")
REPLICA = seen("replica", "2 replicas", 2.1, gpus=2.0, limited_by=f"{HOSTILE}: tpot_p99_s")
FP8 = seen("fp8_kv_cache", "KV cache in fp8", 1.05, caveat="Answers change slightly.")
LATE = row("slots", "max_num_seqs 512", outcome="late", why="the time (60 s) was up", gpus=None)
DECLINED = row("prefix_caching", "prefix caching on", outcome="declined", why="it is on")
ROWS = [BASE, REPLICA, GPU, FP8, LATE, DECLINED]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            ROWS,
            "2 replicas: 2.1 times the load fits, 8.4 requests/s instead of 4; "
            "without more GPUs, GPU h200_sxm: 1.9 times.",
        ),
        (
            [BASE, GPU, FP8],
            "GPU h200_sxm: 1.9 times the load fits, 7.6 requests/s instead of 4.",
        ),
        (
            [BASE, REPLICA, FP8],
            "2 replicas: 2.1 times the load fits, 8.4 requests/s instead of 4; "
            "nothing surely helps without more GPUs.",
        ),
        ([BASE, FP8], "No change that was tried surely lets more load fit."),
        (
            [BASE, LATE],
            "As it is, 4 requests/s fit; nothing was compared: the time (60 s) was up; "
            "--advise-budget-s gives more.",
        ),
        ([BASE, DECLINED], "There is nothing to compare: no change can be tried."),
        (
            [row("base", "as it is", outcome="at_least", capacity=9.0), DECLINED],
            "There is nothing to change: no load that was tried misses the SLO.",
        ),
        (
            [row("base", "as it is", outcome="late", why="the time (1 s) was up before"), LATE],
            "Nothing was compared: the time (1 s) was up before.",
        ),
        (
            [row("base", "as it is", outcome="never"), {**GPU, "ratio": None}],
            "No load that was tried meets the SLO as it is; GPU h200_sxm: 7.6 requests/s.",
        ),
        (
            [row("base", "as it is", outcome="never"), row("gpu", "GPU x", outcome="never")],
            "No load that was tried meets the SLO as it is, nor with any change that was tried.",
        ),
    ],
)
def test_the_finding_is_what_the_rows_say(rows, said):
    assert finding(rows) == said


def test_a_change_whose_interval_holds_one_is_no_gain():
    doubtful = seen("gpu", "GPU h200_sxm", 1.4, off=0.4)
    assert finding([BASE, doubtful]) == "No change that was tried surely lets more load fit."


def test_what_has_no_numbers_is_named_with_its_reason():
    assert left_out(ROWS) == (
        "Not looked at, since the time (60 s) was up: max_num_seqs 512. "
        "Not tried: prefix caching on (it is on)."
    )
    assert left_out([BASE, GPU]) == ""


def test_the_chart_draws_what_the_rows_hold():
    (section,) = advice_section(ROWS)
    (chart,) = section.charts
    assert chart.title == finding(ROWS).removesuffix(".")
    drawn = {
        name: (x, x - minus, x + plus)
        for trace in chart.figure["data"]
        for name, x, minus, plus in zip(
            trace["y"],
            trace["x"],
            trace["error_x"]["arrayminus"],
            trace["error_x"]["array"],
            strict=True,
        )
    }
    assert set(drawn) == {one["change"] for one in (REPLICA, GPU, FP8)}
    for one in (REPLICA, GPU, FP8):
        expected = (one["ratio"], one["ratio_low"], one["ratio_high"])
        assert drawn[one["change"]] == pytest.approx(expected)
    symbols = {trace["marker"]["symbol"]: list(trace["y"]) for trace in chart.figure["data"]}
    assert symbols["diamond"] == ["2 replicas"]  # takes more GPUs, and is told without color


def test_every_change_with_numbers_has_its_row_and_caveat():
    (section,) = advice_section(ROWS)
    rows = {cells[0]: cells for cells in section.table.rows}
    assert list(rows) == ["as it is", "2 replicas", "GPU h200_sxm", "KV cache in fp8"]
    assert "Answers change slightly." in rows["KV cache in fp8"][-1]
    assert "ttft_p99_s" in rows["as it is"][-1]
    assert "$4.50/h" in rows["GPU h200_sxm"]
    assert "–" in rows["2 replicas"]  # no price is known
    assert all(len(cells) == len(section.table.header) for cells in section.table.rows)


def test_users_are_whole():
    users = [{**BASE, "unit": "users", "capacity": 64.0, "capacity_high": 70.0}]
    (section,) = advice_section([*users, {**GPU, "unit": "users", "capacity": 120.0}])
    assert section.table.rows[0][3] == "64 users"


@pytest.mark.parametrize("end", ["ratio_low", "ratio_high"])
def test_an_end_that_is_not_known_is_not_drawn_and_told_so(end):
    (section,) = advice_section([BASE, {**GPU, end: None}])
    assert ("or more" if end == "ratio_high" else "at most") in section.table.rows[1][2]


def test_without_a_base_nothing_is_drawn():
    base = row("base", "as it is", outcome="late", why="the time (1 s) was up before", gpus=None)
    (section,) = advice_section([base, LATE, DECLINED])
    assert not section.charts
    assert section.table is None
    assert "the time (1 s) was up before" in section.sentence
    assert "max_num_seqs 512" in section.sentence


def test_the_page_has_the_advice_below_its_verdict(synthetic):
    run = replace(synthetic.run(), advice=ROWS)
    page = build_report(run)
    places = [page.index(f'<section id="{key}"') for key in ("verdict", "advice", "variants")]
    assert places == sorted(places)
    assert '<a href="#advice">' in page
    verdict = page[page.index('<section id="verdict"') : page.index('<section id="advice"')]
    assert "2 replicas: 2.1 times the load fits" in verdict
    assert HOSTILE not in page
    assert build_report(run) == page


def test_the_markdown_tells_it_after_what_limits_the_run(synthetic):
    text = as_markdown(replace(synthetic.run(), advice=ROWS))
    said = f"**What to change next.** {finding(ROWS)}"
    assert text.index("**Limit.**") < text.index(said)
    assert "What to change next" not in as_markdown(synthetic.run())


def test_a_run_that_nobody_asked_for_advice_has_no_such_part(synthetic):
    assert advice_section([]) == []
    assert 'id="advice"' not in build_report(synthetic.run())


def test_rows_come_back_from_the_disk_as_they_were(tmp_path):
    write_facts(tmp_path / "advice.parquet", ADVICE, ROWS)
    assert read_facts(tmp_path / "advice.parquet", ADVICE) == ROWS
