from types import SimpleNamespace

import numpy as np
import pytest

from kvsim.metrics import StepCosts
from kvsim.metrics.bottleneck import limits, waiting_fraction, waiting_share
from kvsim.metrics.step_sums import sum_up
from kvsim.tables import HEAD_LACKS


def step(duration_ns, waiting=0, lacks="nothing"):
    return {"duration_ns": duration_ns, "waiting_seqs": waiting, "head_lacks": lacks}


def costs_of(*parts):
    rows = [
        (SimpleNamespace(component=component, bound=bound, basis=basis), np.array(times_ns))
        for component, bound, basis, times_ns in parts
    ]
    return StepCosts(rows, np.zeros(2), np.zeros(2))


def found_limits(context, requests, steps, events, costs=None):
    run = context(costs_of=None if costs is None else lambda _: costs)
    return limits(requests, sum_up(steps, run, 10)[0], events)


COSTS = costs_of(
    ("gemm", "hbm", "measured", [40.0, 20.0]),
    ("gemm", "compute", "measured", [0.0, 20.0]),
    ("attention_decode", "hbm", "interpolated", [10.0, 0.0]),
    ("host", "host", "physical", [5.0, 5.0]),
)


def test_shares_are_weighted_by_time_and_only_over_waiting(table, context):
    steps = table(
        "steps",
        [
            step(50, 0, "nothing"),
            step(30, 2, "kv_blocks"),
            step(5, 9, "kv_blocks"),
            step(15, 1, "token_budget"),
        ],
    )
    sums, _ = sum_up(steps, context(), 10)
    assert waiting_fraction(sums) == 0.5
    shares = waiting_share(sums)
    assert list(shares) == list(HEAD_LACKS)
    assert {name: share for name, share in shares.items() if share} == {
        "kv_blocks": 0.7,
        "token_budget": 0.3,
    }


def test_busy_time_by_bound_component_and_basis(table, context):
    steps = table("steps", [step(55), step(45)])
    found = found_limits(context, table("requests", []), steps, table("events", []), COSTS)
    assert found["bound_share"] == pytest.approx({"hbm": 0.7, "compute": 0.2, "host": 0.1})
    assert found["component_share"] == pytest.approx(
        {"gemm": 0.8, "attention_decode": 0.1, "host": 0.1}
    )
    assert found["basis_share"] == pytest.approx(
        {"measured": 0.8, "interpolated": 0.1, "physical": 0.1}
    )
    assert found["sentence"] == "Nothing queues; steps are 70 % HBM-bound."


def test_copies_of_a_compaction_are_a_part_of_their_own(table, context):
    events = table(
        "events", [{"event": "compacted", "gap_ns": 100}, {"event": "resumed", "gap_ns": 9}]
    )
    steps = table("steps", [step(155), step(45)])
    found = found_limits(context, table("requests", []), steps, events, COSTS)
    assert found["component_share"]["compaction"] == 0.5
    assert found["bound_share"]["hbm"] == pytest.approx((70 + 100) / 200)


@pytest.mark.parametrize(
    ("cause", "start"),
    [
        ("kv_blocks", "KV cache space: the head of the queue lacked free KV slots"),
        ("hole", "Fragmentation: "),
        ("sequence_slot", "max_num_seqs: "),
        ("token_budget", "max_num_batched_tokens: "),
        ("preempting", "Preemptions: "),
        ("watermark", "watermark: "),
        ("active_sequence_slot", "max_num_active_seqs: "),
        ("scheduled_token_budget", "max_num_scheduled_tokens: "),
        ("prefill_step", "prefill_schedule_interval: "),
        ("nothing", "Scheduling order: "),
    ],
)
def test_the_sentence_names_the_largest_share(table, context, cause, start):
    steps = table("steps", [step(97, 3, cause), step(1, 1, "token_budget"), step(2, 1, "hole")])
    found = found_limits(context, table("requests", []), steps, table("events", []))
    sentence = found["sentence"]
    assert sentence.startswith(start)
    assert " % of the time in which requests waited." in sentence


def test_waiting_that_hardly_happens_is_no_queue(table, context):
    steps = table("steps", [step(9910), step(90, 1, "token_budget")])
    found = found_limits(context, table("requests", []), steps, table("events", []))
    sentence = found["sentence"]
    assert sentence == "Requests hardly wait (0.9 % of the busy time)."


def test_nothing_ran(table, context):
    found = found_limits(context, *(table(name, []) for name in ("requests", "steps", "events")))
    assert found.pop("sentence") == "Nothing ran."
    assert set(found) == {"waiting_share", "bound_share", "component_share", "basis_share"}
    assert not any(found.values())


def test_requests_that_wait_for_the_front_end_are_told(table, context):
    slow = [{"arrival_ns": 0, "queued_ns": 300_000_000}, {"arrival_ns": 0, "queued_ns": -1}]
    quick = [{"arrival_ns": 0, "queued_ns": 30_000_000}]
    nothing = table("steps", []), table("events", [])
    told = found_limits(context, table("requests", slow), *nothing)["sentence"]
    assert told.startswith("Front end: requests are 300 ms in the API server")
    told = found_limits(context, table("requests", quick), *nothing)["sentence"]
    assert told == "Nothing ran."
