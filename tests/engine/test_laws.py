"""Each law can fail: an engine that is broken on purpose is found out, in that law's words."""

import re

import numpy as np
import pytest

from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.clock import Instant
from kvsim.engine.cluster import Cluster
from kvsim.engine.config import EngineConfig
from kvsim.engine.fleet import FINISHED
from kvsim.engine.laws import Population, StepLaws
from kvsim.engine.replica import Replica
from kvsim.engine.schedulers.vllm import VllmScheduler
from kvsim.errors import BrokenLawError
from kvsim.tables import STEPS
from tests.engine.harness import LinearCost, request_table, run

ROOMY = EngineConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=96, num_gpu_blocks=99)
TIGHT = EngineConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=96, num_gpu_blocks=9)
REQUESTS = request_table([(0, 20, 10, 0), (3, 70, 5, 0), (4, 10, 30, 0), (500, 5, 40, 0)])
CROWD = request_table([(number, 30, 40, 0) for number in range(8)])


def fails(law, requests=REQUESTS, config=ROOMY, cost=None, kind=BrokenLawError):
    with pytest.raises(kind, match=re.escape(law)):
        run(requests, config, cost or LinearCost(5, 1))


def instead(monkeypatch, owner, name):
    """Let a test replace a method: it gets the old one before the method's own arguments."""

    def decorate(broken):
        usual = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *arguments: broken(usual, *arguments))

    return decorate


def test_an_engine_that_is_whole_breaks_no_law():
    assert (run(REQUESTS, ROOMY, LinearCost(5, 1)).tables["requests"]["outcome"] == FINISHED).all()
    assert run(CROWD, TIGHT, LinearCost(5, 1)).tables["requests"]["preemptions"].sum() > 0


# Blocks


def test_a_block_that_is_lost(monkeypatch):
    @instead(monkeypatch, PagedPool, "free")
    def _(free, pool, seq):
        free(pool, seq)
        if seq == 0:
            pool._free_blocks.pop()

    fails("a block is lost, or both owned and free", kind=AssertionError)


def test_a_block_that_is_owned_twice(monkeypatch):
    @instead(monkeypatch, PagedPool, "free")
    def _(free, pool, seq):
        free(pool, seq)
        if seq == 3:
            pool._free_blocks[0] = pool._free_blocks[1]

    fails("a block is lost, or both owned and free", kind=AssertionError)


def test_blocks_that_never_come_back(monkeypatch):
    @instead(monkeypatch, PagedPool, "free")
    def _(free, pool, seq):
        if seq != 1:
            free(pool, seq)

    fails("all KV slots come back")


def test_a_pool_that_counts_slots_twice(monkeypatch):
    @instead(monkeypatch, PagedPool, "_take")
    def _(take, pool, blocks):
        pool.free_tokens -= 1
        return take(pool, blocks)

    fails("the parts of the KV pool add up to its capacity in every step")


def test_a_part_of_the_pool_that_is_negative(monkeypatch):
    @instead(monkeypatch, PagedPool, "__init__")
    def _(build, pool, *arguments):
        build(pool, *arguments)
        pool.holes_tokens -= 16
        pool.free_tokens += 16

    fails("no part of the KV pool is negative")


def test_more_tokens_held_than_there_are_slots(monkeypatch):
    """Slots to come are what is taken and not held: a token counted twice makes them negative."""

    @instead(monkeypatch, Replica, "_begin")
    def _(begin, replica, plan, now_ns):
        replica.held_tokens += 1
        return begin(replica, plan, now_ns)

    fails("no part of the KV pool is negative")


def test_slots_that_stay_held_when_their_request_has_left(monkeypatch):
    @instead(monkeypatch, Replica, "_disown")
    def _(disown, replica, request):
        if request.number != 3:  # the last one: no further step would show it
            disown(replica, request)

    fails("no KV slot is held for a request that has left")


# Tokens


def test_a_token_that_is_counted_twice(monkeypatch):
    @instead(monkeypatch, Population, "note_tokens")
    def _(note, population, request):
        request.lost_tokens += request.generated_tokens == 30
        note(population, request)

    fails("tokens computed in steps = tokens computed for requests")


def test_a_recomputation_that_is_not_counted(monkeypatch):
    @instead(monkeypatch, VllmScheduler, "_preempt")
    def _(preempt, scheduler, step, plan, needing):
        preempt(scheduler, step, plan, needing)
        plan.preempted[-1].lost_tokens = 0

    fails("tokens computed in steps = tokens computed for requests", CROWD, TIGHT)


def test_a_resumed_answer_that_is_not_recorded(monkeypatch):
    """Its gap would be missing from the latencies between tokens."""

    @instead(monkeypatch, Replica, "_event")
    def _(event, *arguments):
        """Record nothing."""

    fails("tokens decoded in steps = tokens generated", CROWD, TIGHT)


# Requests


def test_a_request_that_is_dropped(monkeypatch):
    @instead(monkeypatch, VllmScheduler, "enqueue")
    def _(enqueue, scheduler, request):
        if request.number != 2:
            enqueue(scheduler, request)

    fails("a run that is not cut leaves no request unfinished")


def test_a_request_that_finishes_and_stays(monkeypatch):
    @instead(monkeypatch, Cluster, "finished")
    def _(finish, cluster, request):
        if request.number != 2:
            finish(cluster, request)

    fails("a run that is not cut leaves no request unfinished")


def test_a_first_token_before_its_request_arrived(monkeypatch):
    @instead(monkeypatch, Replica, "_note_token")
    def _(note_token, replica, request, *rest):
        note_token(replica, request, *rest)
        request.first_token_ns = 0

    fails("a request arrives, waits, is admitted, gets its first token and finishes")


def test_an_arrival_that_is_moved(monkeypatch):
    """What requests wait in sum is no longer the area under their number."""

    @instead(monkeypatch, VllmScheduler, "enqueue")
    def _(enqueue, scheduler, request):
        request.arrival_ns -= request.number == 3
        enqueue(scheduler, request)

    fails("area under the number in system = sojourns")


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        ({"arrived": 2}, "every request has one outcome"),
        ({"outcomes": [1, 1, 0, 0]}, "every request has one outcome"),
        ({"in_system": 1}, "nobody stays behind"),
    ],
)
def test_a_population_that_is_counted_wrong(wrong, law):
    population = Population()
    population.arrive(3)
    population.leave(3, 8, FINISHED)
    population.check()
    for name, value in wrong.items():
        setattr(population, name, value)
    with pytest.raises(BrokenLawError, match=law):
        population.check()


# Time


def test_arrivals_that_are_not_in_order():
    fails(
        "requests arrive when their clients send them", request_table([(9, 5, 5, 0), (4, 5, 5, 0)])
    )


def test_an_arrival_that_is_delivered_late(monkeypatch):
    @instead(monkeypatch, Instant, "__init__")
    def _(build, instant, clock, delay_ns):
        build(instant, clock, delay_ns + 1)

    fails("requests arrive when their clients send them")


def test_a_clock_that_runs_backwards():
    population = Population()
    population.arrive(3)
    with pytest.raises(BrokenLawError, match="time doesn't run backwards"):
        population.leave(3, 2, FINISHED)


def test_steps_that_overlap(monkeypatch):
    @instead(monkeypatch, Replica, "_begin")
    def _(begin, replica, plan, now_ns):
        replica._free_at_ns = 0
        return begin(replica, plan, now_ns - (replica.step > 0))

    fails("steps don't overlap")


@pytest.mark.parametrize("seam", [1, 2])
def test_steps_that_overlap_across_chunks_and_replicas(seam):
    """Where one chunk of rows ends and the next begins, the law holds on; replicas are apart."""
    rows = np.zeros((3, len(STEPS)), dtype=np.int64)
    column = {item.name: index for index, item in enumerate(STEPS)}
    rows[:, column["kv_free_tokens"]] = 10
    rows[:, column["duration_ns"]] = 5
    rows[:, column["start_ns"]] = [0, 2, 5]
    rows[:, column["replica"]] = [0, 1, 0]
    laws = StepLaws(10, 2)
    laws.check(rows[:seam])
    laws.check(rows[seam:])
    rows[2, column["start_ns"]] = 4
    laws = StepLaws(10, 2)
    laws.check(rows[:seam])
    with pytest.raises(BrokenLawError, match="steps don't overlap"):
        laws.check(rows[seam:])


def test_a_step_that_takes_no_time():
    class Free(LinearCost):
        def step_ns(self, tokens, seqs, decode_seqs, decode_kv_tokens, chunks_ns):
            return 0 if seqs == decode_seqs else 1

    fails("a step takes time", cost=Free())


def test_an_engine_that_does_nothing(monkeypatch):
    @instead(monkeypatch, VllmScheduler, "_admit")
    def _(admit, scheduler, plan):
        """Admit nobody."""

    fails("a replica with work makes progress")


def test_rows_are_checked_before_they_are_written(monkeypatch):
    written = []

    def refuse(*_):
        raise BrokenLawError("refused")

    def build(requests, fleet, sink):
        return Cluster(requests, fleet, lambda table, rows: written.append(table))

    monkeypatch.setattr(StepLaws, "check", refuse)
    monkeypatch.setattr("tests.engine.harness.Cluster", build)
    fails("refused")
    assert "steps" not in written
