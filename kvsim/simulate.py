"""A resolved variant and its requests → rows of the result tables."""

from dataclasses import dataclass

from kvsim.engine.allocators.contiguous import Contiguous
from kvsim.engine.cluster import Cluster, Fleet, Progress, RunTotals
from kvsim.engine.ranks import to_ranks
from kvsim.engine.recorder import Sink
from kvsim.rng import stream
from kvsim.scenario.variant import ResolvedVariant
from kvsim.units import NS_PER_S, seconds_to_ns
from kvsim.workload.requests import RequestTable


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
) -> Simulated:
    """Run one variant on the requests; rows go to `sink(table, rows)` in chunks.

    Raises:
        BrokenLawError: kvsim contradicts itself.
    """
    scenario = variant.scenario
    fleet = Fleet(
        config=variant.engine,
        replicas=variant.num_engines,
        router=to_ranks(
            scenario.routing.build(stream(scenario.seed, "routing")),
            scenario.engine.data_parallel_size,
        ),
        build_allocator=variant.build_allocator,
        cost=variant.cost,
        copy_ns_per_token=_copy_ns_per_token(variant),
        build_scheduler=variant.build_scheduler,
        front_end=variant.profile.front_end if variant.profile else None,
    )
    cluster = Cluster(requests, fleet, sink, progress)
    until_s = scenario.max_simulated_s
    totals = cluster.run(None if until_s is None else seconds_to_ns(until_s))
    return Simulated(totals, cluster.kv_capacity_tokens)


def _copy_ns_per_token(variant: ResolvedVariant) -> float:
    """Return what compaction pays for each token that it moves: one read and one write."""
    layout = variant.scenario.kv_cache
    if not isinstance(layout, Contiguous) or not layout.compaction:
        return 0.0
    bytes_per_s = layout.compaction_bytes_per_s or variant.gpu.hbm_bytes_per_s / 2
    return variant.memory.kv_bytes_per_token / bytes_per_s * NS_PER_S
