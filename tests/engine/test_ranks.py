from dataclasses import dataclass

import numpy as np

from kvsim.engine.ranks import to_ranks
from kvsim.engine.routers.least_requests import LeastRequests
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.engine.routers.shared_queue import SharedQueue

RNG = np.random.default_rng(0)


@dataclass
class Load:
    requests: int
    prompt_tokens: int = 0

    def cached_tokens(self, request):
        return 0


def test_a_replica_is_chosen_first_then_its_least_loaded_rank():
    loads = [Load(5), Load(4), Load(0), Load(9), Load(1), Load(1)]
    in_turn = to_ranks(RoundRobin().build(RNG), 2)
    assert [in_turn.choose(None, loads) for _ in range(3)] == [1, 2, 4]
    least = to_ranks(LeastRequests().build(RNG), 3)
    assert least.choose(None, loads) == 2  # 9 requests on ranks 0 to 2, 11 on 3 to 5


def test_delays_and_shared_queues_are_those_of_the_router():
    assert to_ranks(LeastRequests(view_delay_s=2.0).build(RNG), 4).view_delay_ns == 2_000_000_000
    shared = SharedQueue().build(RNG)
    assert to_ranks(shared, 4) is shared
