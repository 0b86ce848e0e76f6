import json
import math

import numpy as np
import pytest

from kvsim.metrics.catalog import METRICS, SHARE_METRICS
from kvsim.metrics.summary import COMPARED, compare, summarize
from kvsim.tables import TABLES

SECOND = 1_000_000_000


def random_tables(seed):
    """Tables whose values are arbitrary but possible, with all outcomes and kinds of events."""
    rng = np.random.default_rng(seed)
    tables = {}
    for name, columns in TABLES.items():
        rows = int(rng.integers(0, 40))
        tables[name] = {
            column.name: rng.integers(0, len(column.codes) or 50, rows) for column in columns
        }
    steps, requests = tables["steps"], tables["requests"]
    rows = len(steps["step"])
    steps["replica"], steps["step"] = np.zeros(rows, dtype=np.int64), np.arange(rows)
    steps["duration_ns"] += 1
    steps["start_ns"] = np.cumsum(steps["duration_ns"]) - steps["duration_ns"]
    for late in ("admitted_ns", "first_token_ns", "finish_ns"):
        never = (requests["outcome"] != 0) & (rng.random(len(requests["outcome"])) < 0.7)
        requests[late] = np.where(never, -1, requests["arrival_ns"] + rng.integers(0, 50))
    events = tables["events"]
    events["step"], events["replica"] = events["step"] % max(rows, 1), events["replica"] * 0
    if not rows:
        events = {name: column[:0] for name, column in events.items()}
    return requests, steps, events


def python_values(value):
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in python_values(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in python_values(item)]
    return [value]


@pytest.mark.parametrize("seed", range(30))
def test_summaries_are_plain_finite_and_repeatable(seed, context):
    tables = random_tables(seed)
    run = context(
        horizon_ns=seed % 3 * 40,
        warmup_ns=seed % 2 * 20,
        slo={"ttft_p99_s": 1e-8, "itl_p50_s": 1.0, "max_failed_fraction": 0.0},
        price_usd_per_gpu_hour=2.0,
    )
    summary = summarize(*tables, run)
    text = json.dumps(summary, allow_nan=False)
    assert json.loads(text) == summary
    assert {type(leaf) for leaf in python_values(summary)} <= {int, float, str, bool, type(None)}
    assert all(math.isfinite(x) for x in python_values(summary) if isinstance(x, float))
    assert json.dumps(summarize(*tables, run), allow_nan=False) == text


def test_every_figure_is_in_the_catalog_and_the_other_way_round(small_run, context):
    summary = summarize(*small_run, context())
    assert list(summary["figures"]) == list(METRICS)
    assert set(summary["limits"]) - {"sentence"} == set(SHARE_METRICS)
    assert set(COMPARED) <= set(METRICS)


def test_figures_and_tables_agree(small_run, context):
    run = context(horizon_ns=10 * SECOND, slo={"ttft_p99_s": 2.5})
    summary = summarize(*small_run, run)
    figures = summary["figures"]
    assert figures["requests_per_s"] == 0.2
    assert figures["goodput_requests_per_s"] == 0.2
    assert figures["waiting_fraction"] == pytest.approx(7 / 8)
    assert summary["verdict"]["targets"][0]["value"] == figures["ttft_p99_s"]
    assert summary["limits"]["waiting_share"]["sequence_slot"] == pytest.approx(4 / 7)
    assert figures["preemptions_total"] == 1


def test_an_empty_run_has_nulls(table, context):
    empty = (table("requests", []), table("steps", []), table("events", []))
    for horizon_ns in (0, SECOND):
        figures = summarize(*empty, context(horizon_ns=horizon_ns))["figures"]
        assert figures["ttft_p99_s"] is figures["failed_fraction"] is figures["step_mean_s"] is None
    assert figures["requests_per_s"] == 0
    assert figures["kv_utilization_mean"] == 0


def test_variants_side_by_side(small_run, context):
    requests, steps, events = small_run
    base = summarize(requests, steps, events, context(horizon_ns=10 * SECOND))
    first_ns = requests["first_token_ns"]
    slower = {**requests, "first_token_ns": np.where(first_ns < 0, -1, first_ns + SECOND)}
    other = summarize(slower, steps, events, context(horizon_ns=10 * SECOND))
    rows = {row["name"]: row for row in compare({"base": base, "slow": other})}
    never = {"prefix_hit_fraction", "requests_timed_out", "retries_total", "swapped_tokens"}
    assert list(rows) == [name for name in COMPARED if name not in never]
    assert rows["ttft_p50_s"]["values"] == {"base": 2.5, "slow": 3.5}
    assert rows["ttft_p50_s"]["ratios"] == {"base": 1.0, "slow": 1.4}
    assert rows["ttft_p50_s"]["better"] == "lower"
    assert rows["goodput_requests_per_s"]["ratios"] == {"base": None, "slow": None}
    assert json.dumps(list(rows.values()), allow_nan=False)
    assert compare({})[0]["values"] == {}
