"""The memory map on the page: its words, its figures, and what the script gets to draw."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from kvsim.metrics.catalog import percent
from kvsim.report.memory_map import LETTERS, memory_map
from kvsim.report.page import build_report
from kvsim.tables import (
    FREE,
    HELD,
    HOLES,
    INSIDE,
    MEMORY_LOOKS,
    MEMORY_MAP,
    REUSABLE,
    TO_COME,
)

S = 1_000_000_000
FULL = [(600, HELD, 7), (400, INSIDE, 7), (900, HELD, 8), (100, TO_COME, 8), (48, HOLES, -1)]
HALF = [(500, HELD, 7), (500, INSIDE, 7), (1048, FREE, -1)]
PAGED = [(1024, HELD, -1), (16, HELD, 40), (8, REUSABLE, -1), (1000, FREE, -1)]


def tables_of(looks):
    """Return the two tables of looks, each the runs (length, use, request) of an instant."""
    sums, rows = [], []
    for place, runs in enumerate(looks):
        time_ns, start = place * S + S // 2, 0
        of_use = [sum(length for length, use, _ in runs if use == each) for each in range(7)]
        free = [length for length, use, _ in runs if use >= HOLES]
        sums.append([time_ns, *of_use, len(free), max(free, default=0)])
        for length, use, request in runs:
            rows.append([time_ns, start, length, use, request])
            start += length
    return [
        dict(zip([column.name for column in columns], np.array(values).T, strict=True))
        for columns, values in ((MEMORY_LOOKS, sums), (MEMORY_MAP, rows))
    ]


def looked_at(variant, looks):
    sums, rows = tables_of(looks)
    return replace(variant, memory_looks=sums, memory_map=rows)


@pytest.fixture
def run(synthetic):
    run = synthetic.run()
    base, contiguous = run.variants
    variants = [looked_at(base, [PAGED] * 3), looked_at(contiguous, [HALF, FULL, FULL])]
    return replace(run, variants=variants)


@pytest.fixture
def shown(run):
    return memory_map(run.variants)[0].memory_map


def decoded(variant):
    return [
        [
            (int(size, 36) * variant["slots"], LETTERS.index(use), int(request or "-1", 36))
            for size, use, request in re.findall("([0-9a-z]+)([A-G])([0-9a-z]*)", look)
        ]
        for look in variant["looks"]
    ]


def test_a_run_that_nobody_looked_at_has_no_map(synthetic):
    run = synthetic.run()
    assert memory_map(run.variants) == []
    assert "memory-map-data" not in build_report(run)


def test_the_title_is_the_mean_of_what_is_empty_or_lost(shown):
    lost = percent((500 + 548 + 548) / 3 / 2048)
    assert shown.title.endswith(f": {percent(0.0)} in base, {lost} in contiguous")


def test_the_script_gets_what_the_tables_hold(shown):
    data = json.loads(shown.data)
    assert [decoded(variant) for variant in data["variants"]] == [[PAGED] * 3, [HALF, FULL, FULL]]
    assert data["times"] == ["0.5 s", "1.5 s", "2.5 s"]
    assert [variant["capacity"] for variant in data["variants"]] == [2048, 2048]
    assert data["variants"][0]["slots"] == 8
    assert shown.last == 2
    assert shown.chosen == 1  # where most is held


def test_a_sentence_says_what_an_instant_shows(shown):
    paged, contiguous = (variant["words"] for variant in json.loads(shown.data)["variants"])
    assert paged[0] == (
        f"{percent(1040 / 2048)} of the slots hold tokens. Free: {percent(1008 / 2048)} "
        f"({percent(8 / 2048)} with a reusable prefix); a new block may be any of it."
    )
    assert contiguous[0].endswith(f"Free: {percent(1048 / 2048)}, in 1 hole, of 1,048 tokens.")
    assert contiguous[1] == (
        f"{percent(1500 / 2048)} of the slots hold tokens, {percent(100 / 2048)} are reserved for "
        f"tokens to come, {percent(400 / 2048)} are wasted inside reservations. "
        f"Free: {percent(48 / 2048)}, in 1 hole, of 48 tokens: too small for the reservation that "
        "was asked for last."
    )


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([(2048, HELD, 1)], "None is free."),
        ([(10, HOLES, -1), (2028, HELD, 1), (10, HOLES, -1)], "2 holes, the largest of 10 tokens"),
    ],
)
def test_a_full_cache_and_several_holes_have_their_words(runs, words, run):
    variant = looked_at(run.variants[1], [runs])
    data = json.loads(memory_map([variant])[0].memory_map.data)
    assert words in data["variants"][0]["words"][0]


def test_the_definition_says_which_part_of_the_run_is_shown(shown, run):
    whole_s = max(variant.summary["figures"]["makespan_s"] for variant in run.variants)
    assert f"its first 3 s of {whole_s:.3g} s." in shown.definition
    whole = [
        replace(v, summary={**v.summary, "figures": {**v.summary["figures"], "makespan_s": 3.0}})
        for v in run.variants
    ]
    assert "the whole run." in memory_map(whole)[0].memory_map.definition


def test_the_table_has_the_shares_of_some_instants(shown):
    assert len(shown.table.rows) == 6
    assert all(len(row) == len(shown.table.header) for row in shown.table.rows)
    assert shown.table.rows[-1][:3] == ["contiguous", "2.5 s", percent(1500 / 2048)]
    assert shown.table.rows[-1][-1] == "1 (48)"
    assert "lost to rounding up" not in shown.table.header


def test_axes_begin_at_0_and_end_before_the_end(shown):
    assert [tick.words for tick in shown.panels[0].ticks] == ["0", "500", "1,000", "1,500", "2,000"]
    assert [tick.place for tick in shown.ticks] == [0, 33.333, 66.667, 100]
    assert shown.time_unit == "s"


def test_hostile_names_stay_text(run):
    name = "</script><img src=x onerror=alert(1)>"
    base, other = run.variants
    page = build_report(replace(run, variants=[base, replace(other, name=name)]))
    assert "memory-map-data" in page
    assert "<img" not in page


def test_the_same_map_gives_the_same_page_of_bounded_size(run):
    rng = np.random.default_rng(0)
    scattered = [(16, HELD, int(request)) for request in rng.integers(0, 3000, 200)]
    variant = looked_at(run.variants[0], [scattered] * 100)
    data = memory_map([variant, variant, variant])[0].memory_map.data
    assert len(data) < 400_000
    assert build_report(run) == build_report(run)
