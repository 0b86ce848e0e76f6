"""Tokens that come later than their step lasts, and the time that swapping takes."""

import numpy as np
import pytest

from kvsim.metrics.gaps import event_gaps, step_gaps
from kvsim.metrics.summary import summarize

MS = 1_000_000


@pytest.fixture
def paused(table):
    """Two decode, pause for a prompt and go on beside it; then one comes back from the host."""
    rows = [
        {"start_ns": 0, "duration_ns": 10 * MS, "decode_seqs": 2},
        {"start_ns": 10 * MS, "duration_ns": 30 * MS, "prefill_seqs": 1, "paused_seqs": 2},
        {"start_ns": 40 * MS, "duration_ns": 10 * MS, "decode_seqs": 3, "late_seqs": 2},
        {"start_ns": 50 * MS, "duration_ns": 20 * MS, "decode_seqs": 4, "late_seqs": 1,
         "swap_ns": 5 * MS},
    ]  # fmt: skip
    steps = [{**row, "step": number, "running_seqs": 3} for number, row in enumerate(rows)]
    events = [
        {"time_ns": 40 * MS - 1, "request": 9, "event": "swapped_out", "tokens": 100},
        {"time_ns": 50 * MS, "step": 2, "event": "delayed", "tokens": 2, "gap_ns": 40 * MS},
        {"time_ns": 70 * MS, "step": 3, "request": 9, "event": "swapped_in", "tokens": 100,
         "gap_ns": 60 * MS},
    ]  # fmt: skip
    return table("steps", steps), table("events", events)


def gaps_of(steps, events, warmup_ns=0):
    """Every gap by itself, in ms, sorted."""
    found = [step_gaps(steps, warmup_ns), event_gaps(events, warmup_ns)]
    return sorted(gap / MS for pair in found for gap in np.repeat(*pair).tolist())


def test_each_token_has_the_gap_before_it(paused):
    assert gaps_of(*paused) == [10, 10, 10, 20, 20, 20, 40, 40, 60]
    assert gaps_of(*paused, warmup_ns=60 * MS) == [60]


def test_the_summary_tells_late_tokens_and_swapping(paused, table, context):
    summary = summarize(table("requests", []), *paused, context(horizon_ns=70 * MS))
    figures = summary["figures"]
    assert figures["itl_mean_s"] == pytest.approx(0.230 / 9)
    assert figures["itl_max_s"] == 0.06
    assert figures["swapped_tokens"] == 100
    assert figures["swap_time_fraction"] == pytest.approx(5 / 70)


def test_a_step_that_is_cut_yields_no_late_token_and_a_part_of_its_copies(paused, table, context):
    requests = table("requests", [])
    for end_ms, copied_ms in ((52, 2), (60, 5)):
        cut = context(horizon_ns=end_ms * MS, end_ns=end_ms * MS)
        figures = summarize(requests, *paused, cut)["figures"]
        assert figures["itl_max_s"] == 0.04
        assert figures["itl_mean_s"] == pytest.approx(0.110 / 5)
        assert figures["swap_time_fraction"] == pytest.approx(copied_ms / end_ms)
