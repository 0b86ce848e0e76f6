"""Asynchronous scheduling (R40 to R42), beyond what recordings show: ends that nobody foresees."""

from dataclasses import replace

import numpy as np
import pytest

from kvsim.conformance.compare import judge
from kvsim.engine.allocators._prefix_cache import PrefixCachingPool
from kvsim.engine.config import EngineConfig
from kvsim.engine.replica import Replica
from kvsim.engine.routers.shared_queue import SharedQueue
from kvsim.engine.schedulers.vllm import VllmScheduler
from kvsim.errors import BrokenLawError
from kvsim.tables import EVENT_KINDS, OUTCOMES
from tests.conformance.recorded import recorded
from tests.engine.harness import LinearCost, request_table, run

AHEAD = EngineConfig(
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_model_len=96,
    num_gpu_blocks=20,
    async_scheduling=True,
)
TEN_NS = LinearCost(10)
TIMED_OUT = OUTCOMES.index("timed_out")


def steps_of(rows, config=AHEAD, **changes):
    trace = run(replace(request_table(rows), **changes), config, TEN_NS)
    steps, requests = trace.tables["steps"], trace.tables["requests"]
    return steps, {name: column.tolist() for name, column in requests.items()}


def test_an_end_by_max_tokens_is_known_ahead():
    steps, requests = steps_of([(0, 8, 3, 3)])
    assert steps["start_ns"].tolist() == [0, 10, 20]
    assert steps["discarded_seqs"].tolist() == [0, 0, 0]
    assert (requests["first_token_ns"], requests["finish_ns"]) == ([10], [30])


def test_an_end_of_the_context_is_known_ahead():
    steps, requests = steps_of([(0, 93, 9, 0)], replace(AHEAD, max_num_batched_tokens=96))
    assert (steps["discarded_seqs"].tolist(), requests["finish_ns"]) == ([0, 0, 0], [30])


def test_an_end_of_sequence_costs_the_step_in_flight():
    """The answer is there as soon; whoever comes then waits for one more step."""
    rows = [(0, 8, 3, 9), (30, 8, 1, 1)]
    steps, requests = steps_of(rows)
    assert steps["start_ns"].tolist() == [0, 10, 20, 30, 40]
    assert steps["decode_seqs"].tolist() == [0, 1, 1, 1, 0]
    assert steps["discarded_seqs"].tolist() == [0, 0, 0, 1, 0]
    assert requests["output_tokens"] == [3, 1]
    assert requests["finish_ns"] == [30, 50]
    one_at_a_time = steps_of(rows, replace(AHEAD, async_scheduling=False))[0]
    assert one_at_a_time["start_ns"].tolist() == [0, 10, 20, 30]


def test_a_discarded_token_takes_a_block_too():
    """The 17th token would be the first of a second block."""
    steps, _ = steps_of([(0, 14, 3, 9)])
    taken = steps["kv_held_tokens"] + steps["kv_to_come_tokens"] + steps["kv_inside_tokens"]
    assert taken.tolist() == [16, 16, 16, 32]
    assert steps["kv_inside_tokens"].tolist() == [0, 0, 0, 15]


def test_a_first_token_that_ends_the_answer_is_no_exception():
    steps, requests = steps_of([(0, 8, 1, 9)])
    assert (steps["discarded_seqs"].tolist(), requests["finish_ns"]) == ([0, 1], [10])


@pytest.mark.parametrize("max_tokens", [6, 20])
def test_who_is_preempted_still_gets_its_token_and_may_end_so(max_tokens):
    """R42: the second one's last token is in flight when the first one needs its block."""
    config = replace(AHEAD, num_gpu_blocks=4)
    trace = run(request_table([(0, 27, 20, 20), (0, 11, 6, max_tokens)]), config, TEN_NS)
    requests = {name: column.tolist() for name, column in trace.tables["requests"].items()}
    assert requests["request"] == [1, 0]
    assert requests["preemptions"] == [1, 0]
    assert requests["finish_ns"][0] == 60
    assert requests["output_tokens"] == [6, 20]
    events = trace.tables["events"]
    assert [EVENT_KINDS[kind] for kind in events["event"]] == ["preempted"]
    assert (events["time_ns"].tolist(), events["step"].tolist()) == ([50], [6])


def test_who_gives_up_leaves_when_the_oldest_step_ends_and_its_token_is_discarded():
    steps, requests = steps_of([(0, 10, 50, 0)], timeout_ns=np.array([47]))
    assert (requests["outcome"], requests["output_tokens"]) == ([TIMED_OUT], [4])
    assert steps["start_ns"].tolist() == [0, 10, 20, 30, 40, 50]
    _, early = steps_of([(0, 10, 50, 0)], timeout_ns=np.array([7]))
    assert (early["output_tokens"], early["first_token_ns"]) == ([0], [-1])


@pytest.mark.parametrize("until_ns", range(5, 60, 5))
def test_a_cut_counts_the_tokens_of_steps_that_have_ended(until_ns):
    trace = run(request_table([(0, 10, 50, 0)]), AHEAD, TEN_NS, until_ns=until_ns)
    ended = (until_ns - 1) // 10
    assert trace.tables["requests"]["output_tokens"].tolist() == [ended]


@pytest.mark.parametrize("seed", range(20))
def test_replicas_with_one_queue_resume_nobody_whose_token_is_in_flight(seed):
    """The laws hold, and gaps between tokens are positive."""
    rng = np.random.default_rng(seed)
    rows = [(int(t), int(rng.integers(1, 60)), 30, 40) for t in np.sort(rng.integers(0, 900, 30))]
    config = replace(AHEAD, num_gpu_blocks=9, scheduler_reserve_full_isl=bool(seed % 2))
    cost = LinearCost(7, 1, 1)
    trace = run(request_table(rows), config, cost, replicas=3, routing=SharedQueue())
    requests, events = trace.tables["requests"], trace.tables["events"]
    assert (requests["output_tokens"] == 30).all()
    assert requests["preemptions"].sum() > 0
    assert (events["gap_ns"][events["event"] == EVENT_KINDS.index("resumed")] > 0).all()


def test_an_engine_that_forgets_whose_last_token_is_in_flight_breaks_a_law(monkeypatch):
    monkeypatch.setattr(VllmScheduler, "rest", lambda *_: None)
    with pytest.raises(BrokenLawError):
        steps_of([(0, 8, 3, 3), (0, 8, 30, 30)])


# Each rule, broken on purpose, is noticed by a recorded run


def broken_run(name):
    assert judge(recorded(name)).difference is not None


def test_r40_who_rests_goes_on(monkeypatch):
    monkeypatch.setattr(Replica, "_rest_ended", lambda replica: None)
    broken_run("09_never_fit/length_cap_at_max_model_len_async")


def test_r41_a_block_is_findable_before_its_last_token_is_known(monkeypatch):
    begin = VllmScheduler.__init__

    def begin_synchronous(scheduler, *arguments):
        begin(scheduler, *arguments)
        scheduler._known_new_tokens = 1

    monkeypatch.setattr(VllmScheduler, "__init__", begin_synchronous)
    broken_run("13_edge_cases/preempt_cache_async")


def test_r41_the_last_block_is_not_findable_when_the_last_token_comes(monkeypatch):
    finish = Replica._finish

    def finish_unpublished(replica, request):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PrefixCachingPool, "publish", lambda *_: None)
            finish(replica, request)

    monkeypatch.setattr(Replica, "_finish", finish_unpublished)
    broken_run("04_prefix_caching/heavy_pressure_async")


def test_r42_who_is_preempted_loses_its_token(monkeypatch):
    stop = Replica._stop_decoding

    def stop_without_token(replica, request):
        stop(replica, request)
        request.generated_tokens -= request.awaiting
        request.known_tokens -= request.awaiting

    monkeypatch.setattr(Replica, "_stop_decoding", stop_without_token)
    broken_run("02_preemption/cache_async")
