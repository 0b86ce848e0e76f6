"""Clients as they were: stages, equal prompts, recorded prefixes, a semaphore."""

import numpy as np
import pytest

from kvsim.errors import InputError
from kvsim.units import NS_PER_S
from kvsim.validate.case import ClosedLoop, Lengths, LoadStage, OpenLoop, Prompts, Replay
from kvsim.validate.workloads import DRAIN_S, contents_of_slots, traffic_of

LENGTHS = (Lengths(1.0, 100, 7),)


def tokens_of(segments, request):
    """Write a prompt out, token by token: (seed, place in its stream)."""
    pairs, _ = segments.of(request)
    return [(seed, place) for seed, count in pairs for place in range(count)]


def shared(segments, a, b):
    equal = 0
    for x, y in zip(tokens_of(segments, a), tokens_of(segments, b), strict=False):
        if x != y:
            break
        equal += 1
    return equal


def test_stages_send_exactly_their_requests_with_a_pause_between():
    stages = (LoadStage(4, 10), LoadStage(8, 5))
    traffic = traffic_of(OpenLoop(stages, LENGTHS), seed=1)
    arrival_s = traffic.requests.arrival_ns / NS_PER_S
    assert (arrival_s < 10).sum() == 40
    assert (arrival_s >= 10 + DRAIN_S).sum() == 40
    assert traffic.stage_starts_ns.tolist() == [0, round((10 + DRAIN_S) * NS_PER_S)]
    assert set(traffic.requests.output_tokens) == {7}
    assert (traffic.requests.max_tokens == 7).all()


def test_gaps_of_a_stage_are_exponential():
    traffic = traffic_of(OpenLoop((LoadStage(100, 100),), LENGTHS), seed=2)
    gaps = np.diff(traffic.requests.arrival_ns)
    assert 0.95 < gaps.std() / gaps.mean() < 1.05


def test_prompts_come_round_robin_and_share_their_groups_beginning():
    prompts = Prompts(distinct=10, groups=5, system_tokens=32)
    client = OpenLoop((LoadStage(3, 10), LoadStage(3, 10)), LENGTHS, prompts)
    segments = traffic_of(client, seed=0).requests.segments
    assert shared(segments, 0, 10) == 100  # the same prompt again
    assert shared(segments, 0, 5) == 32  # its group
    assert shared(segments, 0, 1) == 0
    assert shared(segments, 3, 33) == 100  # another stage begins with the first prompt


def test_system_prompts_never_fill_a_whole_prompt():
    slots = np.array([0, 1, 0], dtype=np.int64)
    lengths = np.array([20, 20, 20], dtype=np.int64)
    segments = contents_of_slots(slots, lengths, Prompts(2, 1, 32))
    assert shared(segments, 0, 1) == 19
    assert shared(segments, 0, 2) == 20


def test_tenants_keep_their_shares():
    lengths = (Lengths(0.75, 10, 1), Lengths(0.25, 50, 1))
    requests = traffic_of(OpenLoop((LoadStage(50, 40),), lengths), seed=3).requests
    assert 0.7 < (requests.prompt_tokens == 10).mean() < 0.8
    assert set(requests.prompt_tokens) == {10, 50}


def test_a_semaphore_starts_with_all_places():
    requests = traffic_of(ClosedLoop(8, 1000, 100, 0.8, rounds=10), seed=0).requests
    assert len(requests) == 80
    assert len(requests.gates[0].opens_ns) == 8
    assert not requests.gates[0].opens_ns.any()
    assert requests.prompt_tokens.min() >= 800
    assert requests.prompt_tokens.max() <= 1000
    assert requests.output_tokens.min() >= 80


def test_exact_lengths_have_no_range():
    requests = traffic_of(ClosedLoop(2, 1000, 100, rounds=2), seed=0).requests
    assert set(requests.prompt_tokens) == {1000}
    assert set(requests.output_tokens) == {100}


def test_a_trace_of_slots_is_replayed(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text(
        "request,stage,arrival_s,prompt_slot,input_tokens,output_tokens_generated,failed\n"
        "0,0,0.0,0,40,5,0\n1,0,0.5,1,41,5,0\n2,0,0.7,0,40,,1\n3,1,9.0,0,40,6,0\n"
    )
    traffic = traffic_of(Replay(trace, Prompts(2, 1, 10)), seed=0)
    assert traffic.requests.arrival_ns.tolist() == [0, 500_000_000, 9_000_000_000]
    assert traffic.requests.output_tokens.tolist() == [5, 5, 6]
    assert traffic.stage_starts_ns.tolist() == [0, 9_000_000_000]
    assert shared(traffic.requests.segments, 0, 2) == 40
    assert shared(traffic.requests.segments, 0, 1) == 10


def test_recorded_prefixes_are_shared_and_rows_out_of_order_sorted(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text(
        "request,queued_s,input_tokens,output_tokens,shared_prefix_tokens,shared_prefix_with\n"
        "0,0.0,100,5,0,\n2,2.0,80,5,64,1\n1,1.0,90,5,48,0\n3,3.0,70,5,0,\n"
    )
    requests = traffic_of(Replay(trace), seed=0).requests
    assert requests.prompt_tokens.tolist() == [100, 90, 80, 70]
    segments = requests.segments
    assert [sum(n for _, n in segments.of(row)[0]) for row in range(4)] == [100, 90, 80, 70]
    assert shared(segments, 0, 1) == 48
    assert shared(segments, 1, 2) == 64
    assert shared(segments, 0, 2) == 48
    assert shared(segments, 0, 3) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        "arrival_s,input_tokens,output_tokens\nx,5,5\n",
        "arrival_s,prompt_slot,input_tokens,output_tokens\n0,x,5,5\n",
        "arrival_s,stage,input_tokens,output_tokens\n0,x,5,5\n",
    ],
)
def test_a_broken_trace_is_told_by_its_name(tmp_path, text):
    trace = tmp_path / "t.csv"
    trace.write_text(text)
    with pytest.raises(InputError, match=r"t\.csv"):
        traffic_of(Replay(trace), seed=0)


def test_the_same_seed_sends_the_same():
    client = OpenLoop((LoadStage(4, 10),), LENGTHS, Prompts(10, 2, 16))
    digests = {traffic_of(client, seed).requests.digest() for seed in (5, 5, 6)}
    assert len(digests) == 2
