"""A resolved variant and its requests → rows of the result tables."""

import gc
from dataclasses import dataclass

from kvsim.cost import StepShape
from kvsim.engine import compiled
from kvsim.engine.fleet import Fleet, Progress, RunTotals
from kvsim.engine.ranks import to_ranks
from kvsim.engine.recorder import Sink
from kvsim.metrics import RunContext, StepCosts
from kvsim.rng import stream
from kvsim.scenario.variant import ResolvedVariant
from kvsim.tables import Columns
from kvsim.units import NS_PER_S, seconds_to_ns
from kvsim.workload.requests import RequestTable

# Objects of a cluster refer to each other: so large a one is taken apart at once, lest the next one
# of a sweep comes to stand beside it. It takes a hundredth of the run.
_MANY_REQUESTS = 4_000


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a finished simulation leaves beside its tables."""

    totals: RunTotals
    kv_capacity_tokens: int  # of one engine


def simulate(
    variant: ResolvedVariant,
    requests: RequestTable,
    sink: Sink,
    progress: Progress | None = None,
    replication: int = 0,
) -> Simulated:
    """Run one variant on the requests; rows go to `sink(table, rows)` in chunks.

    Args:
        variant: What serves.
        requests: What is sent; see `kvsim.scenario.requests.draw_requests`.
        sink: Takes the rows.
        progress: Is told how far the run has come.
        replication: Number of the repetition: what the router draws is independent in each.

    Raises:
        BrokenLawError: kvsim contradicts itself.
    """
    fleet, until_s = fleet_of(variant, replication), variant.scenario.max_simulated_s
    if until_s is None and compiled.pays(len(requests)):
        from kvsim.engine.compiled.machine_code import load
        from kvsim.engine.compiled.run import is_plain, run_compiled  # not all need it

        if is_plain(requests, fleet) and (loop := load()) is not None:
            if (ran := run_compiled(requests, fleet, loop, sink, progress)) is not None:
                return Simulated(*ran)
            fleet = fleet_of(variant, replication)  # its router has drawn
    from kvsim.engine.cluster import Cluster  # brings SimPy

    cluster = Cluster(requests, fleet, sink, progress)
    totals = cluster.run(None if until_s is None else seconds_to_ns(until_s))
    simulated = Simulated(totals, cluster.kv_capacity_tokens)
    if len(requests) >= _MANY_REQUESTS:
        del cluster, fleet
        gc.collect()
    return simulated


def fleet_of(variant: ResolvedVariant, replication: int = 0) -> Fleet:
    """Return the replicas of a variant, and what routes requests to them."""
    scenario = variant.scenario
    return Fleet(
        config=variant.engine,
        replicas=variant.num_engines,
        router=to_ranks(
            scenario.routing.build(stream(scenario.seed, "routing", replication)),
            scenario.engine.data_parallel_size,
        ),
        build_allocator=variant.build_allocator,
        cost=variant.cost,
        copy_ns_per_token=_copy_ns_per_token(variant),
        build_scheduler=variant.build_scheduler,
        front_end=variant.profile.front_end if variant.profile else None,
    )


def _copy_ns_per_token(variant: ResolvedVariant) -> float:
    """Return what compaction pays for each token that it moves: one read and one write."""
    bytes_per_s = variant.scenario.kv_cache.copy_bytes_per_s(variant.gpu.hbm_bytes_per_s)
    if bytes_per_s is None:
        return 0.0
    return variant.memory.kv_bytes_per_token / bytes_per_s * NS_PER_S


def step_shape(steps: Columns) -> StepShape:
    """Return what the cost of recorded steps depends on."""
    names = (field for field in StepShape.__dataclass_fields__)
    return StepShape(**{name: steps[name] for name in names})


def run_context(
    variant: ResolvedVariant, requests: RequestTable, simulated: Simulated
) -> RunContext:
    """Return what the metrics must know of a run beside its tables."""
    scenario, cost = variant.scenario, variant.cost
    end_s = scenario.max_simulated_s
    peak_flop_per_s, peak_hbm_bytes_per_s = cost.peaks()

    def costs_of(steps: Columns) -> StepCosts:
        shape = step_shape(steps)
        return StepCosts(tuple(cost.parts_ns(shape).items()), *cost.work(shape))

    return RunContext(
        horizon_ns=requests.horizon_ns,
        end_ns=None if end_s is None else seconds_to_ns(end_s),
        kv_capacity_tokens=simulated.kv_capacity_tokens,
        kv_bytes_per_token=variant.kv_slot_bytes,
        max_num_seqs=variant.engine.max_num_seqs,
        replicas=variant.num_engines,
        num_gpus=variant.num_gpus,
        warmup_ns=seconds_to_ns(scenario.warmup_s),
        slo=scenario.slo,
        class_names=requests.class_names,
        class_slos=scenario.class_slos,
        price_usd_per_gpu_hour=variant.price.usd_per_gpu_hour if variant.price else None,
        costs_of=costs_of,
        peak_flop_per_s=peak_flop_per_s,
        peak_hbm_bytes_per_s=peak_hbm_bytes_per_s,
    )
