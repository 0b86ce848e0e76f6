"""Loads as routers see them: at once, or exactly as they were some time ago."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.clock import Clock
from kvsim.engine.config import EngineConfig
from kvsim.engine.loads import load_of
from kvsim.engine.request import Request
from kvsim.engine.routers.least_requests import LeastRequests
from kvsim.rng import stream
from tests.engine.harness import LinearCost, request_table, run

SMALL = EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=96, num_gpu_blocks=20)


class Cache:
    """A KV cache that holds half of any prompt."""

    def lookup(self, request):
        return request.prompt_tokens // 2


def request_of(number, prompt_tokens=10):
    return Request(number, number, 0, prompt_tokens, 10)


# Time since the step before (ns), prompt of a request that comes; None: the oldest one leaves.
steps = st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(1, 99)), max_size=80)


@given(steps=steps, delay_ns=st.integers(0, 12), looks=st.sets(st.integers(0, 79)))
def test_a_view_is_the_state_at_that_time(steps, delay_ns, looks):
    """Recomputed from the whole history; the view doesn't depend on when somebody looked."""
    clock, history, present = Clock(), [], []
    load = load_of(Cache(), clock, delay_ns)
    for index, (pause_ns, prompt) in enumerate(steps):
        if pause_ns:
            clock.run(until=clock.now + pause_ns)
        if prompt is not None:
            present.append(request_of(index, prompt))
            load.add(present[-1])
            history.append((clock.now, 1, prompt))
        elif present:
            leaving = present.pop(0)
            load.remove(leaving)
            history.append((clock.now, -1, -leaving.prompt_tokens))
        if index in looks:
            seen = [change[1:] for change in history if change[0] <= clock.now - delay_ns]
            expected = np.sum(seen, axis=0).tolist() if seen else [0, 0]
            assert [load.requests, load.prompt_tokens] == expected


def test_nothing_is_kept_without_a_delay_and_only_what_is_unseen_with_one():
    for delay_ns, kept in ((0, 0), (50, 50)):
        clock = Clock()
        load = load_of(Cache(), clock, delay_ns)
        for number in range(1_000):
            clock.run(until=clock.now + 1)
            load.add(request_of(number))
            assert len(getattr(load, "_unseen", ())) <= kept


def test_the_prefix_cache_is_seen_as_it_is():
    assert load_of(Cache(), Clock(), 10**9).cached_tokens(request_of(0, 30)) == 15


def test_the_engine_shows_loads_that_are_as_old_as_the_router_asks():
    """Against the run's own tables: what had arrived, and what had left, a delay ago."""
    rng = stream(0, "late loads")
    arrivals_ns = np.sort(rng.integers(0, 20_000, 150)).tolist()
    rows = [(at_ns, int(rng.integers(1, 60)), int(rng.integers(1, 30)), 0) for at_ns in arrivals_ns]
    requests = request_table(rows)
    for delay_ns in (0, 777):
        seen = {}
        found = run(
            requests, SMALL, LinearCost(7, 1, 1), replicas=3, routing=Noting(delay_ns, seen)
        )
        table = found.tables["requests"]
        order = np.argsort(table["request"])
        replica, finish_ns, prompt = (
            table[name][order] for name in ("replica", "finish_ns", "prompt_tokens")
        )
        for number, views in seen.items():
            then_ns = arrivals_ns[number] - delay_ns
            sent = (np.array(arrivals_ns) <= then_ns) & (np.arange(150) < number)
            # Who arrives when a step ends comes before its end.
            there = sent & (finish_ns > then_ns if delay_ns else finish_ns >= then_ns)
            for index, view in enumerate(views):
                mine = there & (replica == index)
                assert view == (mine.sum(), prompt[mine].sum()), number


class Noting:
    """Builds `least_requests`, and notes the loads that each request is shown."""

    shares_queue = False

    def __init__(self, delay_ns, seen):
        self.view_delay_ns = delay_ns
        self.seen = seen

    def build(self, rng):
        self.router = LeastRequests().build(rng)
        return self

    def choose(self, request, replicas):
        loads = [(replica.requests, replica.prompt_tokens) for replica in replicas]
        self.seen[request.number] = loads
        return self.router.choose(request, replicas)
