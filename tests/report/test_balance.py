"""Loads of replicas in parts of time, against every nanosecond counted."""

from itertools import pairwise

import numpy as np
import plotly.graph_objects as go
import pytest

from kvsim.report.balance import MOST_ROWS, balance, loads
from kvsim.report.inputs import Variant
from kvsim.report.time_axis import TABLE_ROWS, TimeAxis
from kvsim.table_files import StoredTable
from kvsim.tables import OUTCOMES, REQUESTS, STEPS

EDGES = np.arange(TABLE_ROWS + 1) * 50
TIME = TimeAxis(700, int(EDGES[-1]), "s", 1)


def tables(replicas: int, seed: int = 0):
    """Steps side by side on each replica with pauses, and requests that end at any time."""
    rng, rows = np.random.default_rng(seed), []
    for replica in range(replicas):
        now = 0
        while now < 700:
            now += int(rng.integers(0, 30))
            duration = int(rng.integers(1, 120))
            rows.append((replica, now, duration, int(rng.integers(1, 9))))
            now += duration
    rng.shuffle(rows)
    steps = {column.name: np.zeros(len(rows), dtype=np.int64) for column in STEPS}
    names = ("replica", "start_ns", "duration_ns", "running_seqs")
    steps |= zip(names, np.array(rows).T, strict=True)
    requests = {column.name: np.zeros(300, dtype=np.int64) for column in REQUESTS}
    requests["replica"] = rng.integers(-1, replicas, 300)
    requests["finish_ns"] = rng.integers(1, 700, 300)
    requests["outcome"] = rng.integers(0, len(OUTCOMES), 300)
    return requests, steps


def variant_of(requests, steps, name="base", **inputs) -> Variant:
    return Variant(name, {}, requests, steps, {}, inputs=inputs)


@pytest.mark.parametrize("seed", range(3))
def test_loads_are_those_of_every_instant(seed):
    requests, steps = tables(3, seed)
    found = loads(variant_of(requests, steps), EDGES)
    for replica in range(3):
        busy, running = np.zeros(700 + 200), np.zeros(700 + 200)
        for row in np.flatnonzero(steps["replica"] == replica):
            start = steps["start_ns"][row]
            inside = slice(start, start + steps["duration_ns"][row])
            busy[inside] += 1
            running[inside] += steps["running_seqs"][row]
        shape = (TABLE_ROWS, -1)
        assert found.busy[replica] == pytest.approx(busy[: EDGES[-1]].reshape(shape).mean(axis=1))
        means = running[: EDGES[-1]].reshape(shape).mean(axis=1)
        assert found.running[replica] == pytest.approx(means)
        mine = (requests["replica"] == replica) & (requests["outcome"] == 0)
        ends = requests["finish_ns"][mine]
        counts = [int(((ends > low) & (ends <= high)).sum())
                  for low, high in pairwise(EDGES)]  # fmt: skip
        assert found.finished[replica].tolist() == counts


def test_steps_may_come_in_any_chunks():
    requests, steps = tables(4)

    class Chunked(StoredTable):
        def __init__(self) -> None:
            """Hold nothing: chunks come from memory."""

        def chunks(self, names):
            yield {name: steps[name][:0] for name in names}
            for start in range(0, len(steps["replica"]), 7):
                yield {name: steps[name][start : start + 7] for name in names}

    whole = loads(variant_of(requests, steps), EDGES)
    parts = loads(variant_of(requests, Chunked()), EDGES)
    assert parts.busy == pytest.approx(whole.busy)
    assert parts.running == pytest.approx(whole.running)


def test_replicas_that_never_ran_are_there():
    requests, steps = tables(2)
    inputs = {"replicas": 3, "engine": {"data_parallel_size": 2}}
    found = loads(variant_of(requests, steps, **inputs), EDGES)
    assert found.busy.shape == (6, TABLE_ROWS)
    assert not found.busy[2:].any()


def test_the_chart_shows_means_and_ranges():
    requests, steps = tables(3)
    variant = variant_of(requests, steps)
    chart, found = balance([variant, variant_of(*tables(1), "one")], TIME), loads(variant, EDGES)
    finished, busy, running = chart.figure["data"][:3]
    assert busy["y"] == pytest.approx(100 * found.busy.mean(axis=1), abs=1e-4)
    highest = np.add(running["y"], running["error_y"]["array"])
    assert highest == pytest.approx(found.running.max(axis=1), abs=1e-4)
    lowest = np.subtract(running["y"], running["error_y"]["arrayminus"])
    assert lowest == pytest.approx(found.running.min(axis=1), abs=1e-4)
    served = found.finished.sum(axis=1)
    span_s = 50e-9
    assert finished["y"] == pytest.approx(served / TABLE_ROWS / span_s, rel=1e-4)
    assert f"Replicas of base finish {served.min()} to {served.max()} requests each" in chart.title
    assert "one has one replica" in chart.title
    assert [row[0] for row in chart.table.rows] == ["base, 0", "base, 1", "base, 2", "one, 0"]
    assert (
        chart.figure["data"][0]["marker"]["symbol"] != chart.figure["data"][3]["marker"]["symbol"]
    )
    go.Figure(data=chart.figure["data"], layout=chart.figure["layout"])


@pytest.mark.parametrize(("replicas", "every"), [(2, 1), (16, 1), (17, 2), (64, 4)])
def test_labels_of_replicas_are_whole_and_few(replicas, every):
    chart = balance([variant_of(*tables(replicas))], TIME)
    axis = chart.figure["layout"]["xaxis"]
    assert (axis["tick0"], axis["dtick"]) == (0, every)


def test_one_replica_has_no_balance():
    assert balance([variant_of(*tables(1))], TIME) is None


def test_a_run_of_an_instant_has_none_either():
    assert balance([variant_of(*tables(2))], TimeAxis(12, 3, "s", 1)) is None


def test_many_replicas_have_a_table_that_says_what_it_lacks():
    chart = balance([variant_of(*tables(2), replicas=200)], TIME)
    assert len(chart.table.rows) == MOST_ROWS
    assert f"{MOST_ROWS} of 200 replicas" in chart.note
    assert len(chart.figure["data"][0]["x"]) == 200
