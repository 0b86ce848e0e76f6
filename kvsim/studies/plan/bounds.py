"""How many replicas a load needs at least: bounds that no simulation of it can go below.

What a request must have of an engine's steps is known before any of it is simulated, and so is by
when, if it is to be within the SLO. Steps are never faster than the roofline of their own price.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.catalog import latency_and_statistic
from kvsim.scenario.variant import ResolvedVariant
from kvsim.statistics import CONFIDENCE, t_quantile
from kvsim.studies.plan.step_floor import StepFloor, step_floors
from kvsim.units import NS_PER_S
from kvsim.workload.requests import NO_LIMIT, RequestTable

Floats = NDArray[np.float64]

_FINEST_WINDOWS = 32  # parts of the horizon that are looked at on their own
_DUE_QUANTILES = (0.5, 0.9, 1.0)  # where windows end, among the deadlines of what comes in them


@dataclass(frozen=True, slots=True)
class Demand:
    """What requests must have of steps at least, arrays of shape (requests,).

    Attributes:
        tokens: Tokens that are computed: of a prompt one where the rest may be found in the cache.
        answer_tokens: Tokens that are sampled; each takes a sequence's place in a step.
        context_tokens: Sum of the contexts that the second and later tokens of an answer read.
    """

    tokens: Floats
    answer_tokens: Floats
    context_tokens: Floats


def demand_of(requests: RequestTable, max_model_len: int) -> Demand:
    """Return what requests need; those that can't be served need nothing.

    An answer ends at the client's limit, or where the context is full.
    """
    prompts = requests.prompt_tokens.astype(np.float64)
    limits = np.where(requests.max_tokens == NO_LIMIT, np.iinfo(np.int64).max, requests.max_tokens)
    answers = np.minimum(requests.output_tokens, np.minimum(limits, max_model_len - prompts))
    served = answers >= 1
    answers = np.where(served, answers, 0.0)
    computed = prompts if _are_alone(requests) else np.ones(len(prompts))
    more = np.maximum(answers - 1, 0.0)
    return Demand(
        tokens=np.where(served, computed + more, 0.0),
        answer_tokens=answers,
        context_tokens=more * prompts + more * (more + 1) / 2,
    )


def work_s(
    variant: ResolvedVariant, requests: RequestTable, demand: Demand, floors: Sequence[StepFloor]
) -> Floats:
    """Return the engine's time in seconds that each request takes at least, shape (requests,).

    The sum over any of the requests is below the sum of all steps of all engines, however they are
    batched: of all planes below the price, the one that says most of these requests is taken.
    """
    engine = variant.engine
    fewest_steps = [demand.answer_tokens / engine.max_num_seqs]
    if _are_alone(requests) and not engine.kv_groups:  # each context has KV slots of its own
        fewest_steps.append(demand.context_tokens / (engine.num_gpu_blocks * engine.block_size))
    more = np.maximum(demand.answer_tokens - 1, 0.0)
    best_ns = np.zeros(len(more))
    for floor in floors:
        for steps in fewest_steps:
            work_ns = floor.step_ns * steps + floor.token_ns * demand.tokens
            work_ns += floor.seq_ns * demand.answer_tokens
            work_ns += floor.context_ns * demand.context_tokens - floor.start_ns * more
            if work_ns.sum() > best_ns.sum():
                best_ns = work_ns
    return best_ns / NS_PER_S


def _are_alone(requests: RequestTable) -> bool:
    """Tell whether no two requests can share blocks of the KV cache."""
    return requests.segments is None and len(np.unique(requests.group)) == len(requests)


# From work to replicas


@dataclass(frozen=True, slots=True)
class _Deadline:
    """By when most requests must have had some of their work: all of it, or that of the prompt."""

    seconds: Floats  # after the arrival
    share_late: float
    prompts_alone: bool = False


def least_replicas(variant: ResolvedVariant, requests: RequestTable, replications: int) -> int:
    """Return how many replicas there must be, so that the SLO of all traffic can be met.

    Between the arrival and the deadline of requests the engines must have done their work. As many
    requests as the targets allow may be late; those of the most work are taken to be. 1 where the
    SLO sets no deadline, or where clients wait for answers before they send more.

    Args:
        variant: Of any number of replicas.
        requests: As one replication has them.
        replications: Over how many the SLO is judged by intervals.
    """
    waits = bool(requests.gates) or requests.delay_ns is not None
    if waits or not variant.scenario.slo:
        return 1
    demand = demand_of(requests, variant.engine.max_model_len)
    mean_context = demand.context_tokens.sum() / max(demand.answer_tokens.sum(), 1.0)
    floors = list(step_floors(variant, float(mean_context)))
    whole_s, prompts_s = work_s(variant, requests, demand, floors), _prompts_s(demand, floors)
    arrival_s = requests.arrival_ns / NS_PER_S
    judged = arrival_s >= variant.scenario.warmup_s
    engines = 1.0
    slack = judging_slack(replications)
    for deadline in _deadlines(variant.scenario.slo, demand.answer_tokens, slack):
        some_s = prompts_s if deadline.prompts_alone else whole_s
        due_s = arrival_s + deadline.seconds
        found = _densest(some_s[judged], arrival_s[judged], due_s[judged], deadline.share_late)
        engines = max(engines, found)
    return math.ceil(engines / variant.scenario.engine.data_parallel_size - 1e-9)


def judging_slack(replications: int) -> float:
    """Return how many times a bound no replication can exceed if the interval is below it.

    None of n values is further above their mean than (n − 1)/√n of their standard deviations
    (Samuelson 1968), and the interval's upper end is t/√n of them above.
    """
    if replications < 2:
        return 1.0
    return max(1.0, (replications - 1) / t_quantile(CONFIDENCE, replications - 1))


def _prompts_s(demand: Demand, floors: Sequence[StepFloor]) -> Floats:
    """Return the engine's time that each prompt takes at least, in the best of all batches."""
    prompts = np.maximum(demand.tokens - np.maximum(demand.answer_tokens - 1, 0.0), 0.0)
    token_ns = max((floor.token_ns for floor in floors if floor.step_ns == 0), default=0.0)
    return prompts * (token_ns / NS_PER_S)


def _deadlines(
    slo: Mapping[str, float], answer_tokens: Floats, slack: float
) -> Iterator[_Deadline]:
    """Yield what percentile targets say of when requests must be done."""
    failed = slo.get("max_failed_fraction", 0.0)
    bounds: dict[str, list[tuple[float, float]]] = {}
    for name, bound_s in slo.items():
        latency, statistic = latency_and_statistic(name) or ("", "mean")
        if statistic != "mean":
            late = 0.0 if statistic == "max" else 1 - float(statistic[1:]) / 100
            bounds.setdefault(latency, []).append((late, bound_s))
    ones = np.ones(len(answer_tokens))
    for late, bound_s in bounds.get("e2e", ()):
        yield _Deadline(ones * bound_s * slack, (late + failed) * slack)
    for late, bound_s in bounds.get("normalized", ()):
        yield _Deadline(answer_tokens * bound_s * slack, (late + failed) * slack)
    for late, first_s in bounds.get("ttft", ()):
        yield _Deadline(ones * first_s * slack, (late + failed) * slack, prompts_alone=True)
        for also_late, each_s in bounds.get("tpot", ()):
            total_s = first_s + each_s * np.maximum(answer_tokens - 1, 0.0)
            yield _Deadline(total_s * slack, (late + also_late + failed) * slack)


def _densest(work_s: Floats, arrival_s: Floats, due_s: Floats, share_late: float) -> float:
    """Return the work of a window over its length, in the window where that is most.

    A window counts the requests that come and are due in it, but for so many as may be late of all.
    """
    if not len(work_s):
        return 0.0
    spare = math.ceil(share_late * len(work_s)) + 1
    start, end = float(arrival_s.min()), float(arrival_s.max())
    found, parts = 0.0, 1
    while parts <= _FINEST_WINDOWS:
        for part in range(parts):
            since = start + (end - start) * part / parts
            until = start + (end - start) * (part + 1) / parts
            inside = (arrival_s >= since) & (arrival_s <= until)
            found = max(found, _density(work_s[inside], due_s[inside] - since, spare))
        parts *= 2
    return found


def _density(work_s: Floats, due_s: Floats, spare: int) -> float:
    """Return the engines that this work takes, each part of it due so long after the start."""
    found = 0.0
    for until_s in np.quantile(due_s, _DUE_QUANTILES, method="higher") if len(due_s) else ():
        within_s = np.sort(work_s[due_s <= until_s])
        found = max(found, float(within_s[: max(len(within_s) - spare, 0)].sum() / until_s))
    return found
