"""Replicas behind a router: what of them is given before a run, and what is told after it."""

from collections.abc import Callable
from dataclasses import dataclass

from kvsim.cost import StepCost
from kvsim.cost.front_end import FrontEnd
from kvsim.engine.allocators import KVAllocator
from kvsim.engine.config import EngineConfig
from kvsim.engine.request import RequestView
from kvsim.engine.routers import Router
from kvsim.engine.schedulers import Scheduler, WaitingQueue
from kvsim.engine.schedulers.vllm import VllmScheduler
from kvsim.tables import EVENT_KINDS, OUTCOMES

FINISHED = OUTCOMES.index("finished")
REJECTED = OUTCOMES.index("rejected")
UNFINISHED = OUTCOMES.index("unfinished")
TIMED_OUT = OUTCOMES.index("timed_out")
REJECTION = EVENT_KINDS.index("rejected")

Progress = Callable[[int, int], None]  # simulated ns, requests that have left
BuildScheduler = Callable[[EngineConfig, KVAllocator, WaitingQueue], Scheduler]
BuildAllocator = Callable[[Callable[[RequestView], int]], KVAllocator]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal replicas behind a router.

    `build_allocator` gets the oracle of true answer lengths. Each replica has a `front_end`, if
    there is any. Unless it `refuses_hopeless` requests those are let in that can never be served
    (R31); they may block the queue for ever (R32 to R34).
    """

    config: EngineConfig
    replicas: int
    router: Router
    build_allocator: BuildAllocator
    cost: StepCost
    copy_ns_per_token: float = 0.0
    build_scheduler: BuildScheduler = VllmScheduler
    front_end: FrontEnd | None = None
    refuses_hopeless: bool = True
    plans_ahead: bool = True  # else every step is an event, with the same results


@dataclass(frozen=True, slots=True)
class RunTotals:
    """What a run did, for benchmarks and laws: deterministic counts, and the end of the clock."""

    end_ns: int
    steps: int
    events: int  # put on SimPy's calendar
    retried_rows: tuple[int, ...]  # of the request table, of each request beyond its last row


def why_never(request: RequestView, config: EngineConfig, allocator: KVAllocator) -> str:
    """Say why a request can never be served, as vLLM's front end would refuse it (R31); else ''."""
    if not request.prompt_tokens:
        return "its prompt is empty"
    if request.prompt_tokens >= config.max_model_len:
        return (
            f"its prompt of {request.prompt_tokens} tokens leaves no room for an answer in "
            f"max_model_len {config.max_model_len}"
        )
    if not allocator.can_ever_fit(request):
        return (
            f"its prompt of {request.prompt_tokens} tokens with max_tokens {request.max_tokens} "
            f"can never fit the KV cache of {allocator.capacity_tokens} tokens"
        )
    return ""
