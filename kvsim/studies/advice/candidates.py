"""Changes worth a look: each is a rule that reads what the scenario as it is tells.

A rule says what is changed and how promising that is, or why it isn't tried. The promise only
decides the order, and what is left out because nothing hints at it: what a change brings is
simulated.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.cost.tables import measured_gpus
from kvsim.engine.allocators.paged import Paged
from kvsim.gpu import GpuSpec, gpu_names, load_gpu
from kvsim.metrics.summary import Summary
from kvsim.scenario.change import without_measured_layout
from kvsim.scenario.schema import AffineStepCost
from kvsim.scenario.variant import ResolvedVariant
from kvsim.workload.requests import RequestTable

LEAST_PROMISE = 0.01  # a share of the time below it is no hint
_CAP = 0.8  # of the sequences that ran at most
_LACKS_KV = ("kv_blocks", "hole", "watermark", "preempting", "swapped")
_OF_BUSY_STEPS = ("tpot", "itl", "e2e", "normalized")  # latencies that large batches lengthen
_COMPUTED_KV = "Its KV cache is computed: the size that the scenario gives is of another layout."
_FP8_QUALITY = "Answers change slightly with fp8 keys and values; their quality is not simulated."
_GIVEN_STEPS = "the scenario gives the time of a step as a law, which knows no other GPUs"


@dataclass(frozen=True, slots=True)
class Change:
    """A change that may be simulated.

    Attributes:
        key: Short name, the same in all runs.
        words: What is changed: `KV cache in fp8`.
        changes: Dotted path of a value → the new one, as in `kvsim.scenario.change`.
        promise: How promising, from 0 to 1.
        caveat: What no simulation of it tells.
    """

    key: str
    words: str
    changes: Mapping[str, Any]
    promise: float = 1.0
    caveat: str = ""


@dataclass(frozen=True, slots=True)
class Declined:
    """A change that is not tried, and why."""

    key: str
    words: str
    why: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the scenario as it is.

    Attributes:
        variant: As resolved.
        requests: What it faces.
        summary: Figures of a run, at its capacity if that is known.
        limited_by: The target that sets the capacity, with its class before it; empty if unknown.
    """

    variant: ResolvedVariant
    requests: RequestTable
    summary: Summary
    limited_by: str = ""

    def figure(self, name: str) -> float:
        """Return a figure, 0 where there is none."""
        return float(self.summary["figures"][name] or 0)

    def waits_for(self, *lacks: str) -> float:
        """Return the share of the busy time in which the head of the queue lacks one of these."""
        shares = self.summary["limits"]["waiting_share"]
        return self.figure("waiting_fraction") * float(sum(shares.get(one, 0.0) for one in lacks))

    def share(self, kind: str, *names: str) -> float:
        """Return the share of the busy time of some bounds or components."""
        shares = self.summary["limits"][f"{kind}_share"]
        return float(sum(shares.get(name, 0.0) for name in names))

    @property
    def kv(self) -> float:
        """How full the KV cache is, or how long requests wait for it."""
        return max(self.waits_for(*_LACKS_KV), self.figure("kv_usage_mean"))

    @property
    def gpu_work(self) -> float:
        """Share of the busy time that a faster GPU shortens."""
        return self.share("bound", "hbm", "compute")


Found = Change | Declined | None
Rule = Callable[[Evidence], Found]


def candidates_of(evidence: Evidence) -> tuple[list[Change], list[Declined]]:
    """Return the changes that are worth a simulation, the most promising first, and the others."""
    found = [rule(evidence) for rule in RULES]
    changes = [one for one in found if isinstance(one, Change)]
    declined = [one for one in found if isinstance(one, Declined)]
    return sorted(changes, key=lambda change: -change.promise), declined


# The rules


def _paged(evidence: Evidence) -> Found:
    scenario = evidence.variant.scenario
    if isinstance(scenario.kv_cache, Paged):
        return None
    changes: dict[str, Any] = {"kv_cache": {"kind": "paged"}}
    return Change("paged", "paged KV cache", changes | without_measured_layout(scenario))


def _prefix_caching(evidence: Evidence) -> Found:
    key, words = "prefix_caching", "prefix caching on"
    variant = evidence.variant
    if not isinstance(variant.scenario.kv_cache, Paged):
        return Declined(key, words, "only a paged KV cache can be searched for prefixes")
    if variant.engine.enable_prefix_caching:
        return Declined(key, words, "it is on")
    if not _begin_alike(evidence.requests):
        return Declined(key, words, "no two prompts of this workload are known to begin alike")
    return Change(key, words, {"engine.enable_prefix_caching": True}, promise=0.95)


def _begin_alike(requests: RequestTable) -> bool:
    """Tell whether any two prompts begin with the same tokens."""
    if len(np.unique(requests.group)) < len(requests):
        return True
    segments = requests.segments
    if segments is None:
        return False
    firsts = segments.seed[segments.first[:-1][segments.first[1:] > segments.first[:-1]]]
    return len(np.unique(firsts)) < len(firsts)


def _fp8_kv_cache(evidence: Evidence) -> Found:
    key, words = "fp8_kv_cache", "KV cache in fp8"
    variant = evidence.variant
    if variant.model.kv_cache_dtype(variant.memory.flags.kv_cache_dtype).startswith("fp8"):
        return Declined(key, words, "it is in fp8")
    promise = max(evidence.kv, evidence.share("component", "attention_decode"))
    return _if_promising(
        Change(
            key,
            words,
            {"engine.kv_cache_dtype": "fp8", **without_measured_layout(variant.scenario)},
            promise,
            f"{_FP8_QUALITY} {_of_layout(variant)}".rstrip(),
        ),
        "neither the size of the KV cache nor reading it is what takes time",
    )


def _tensor_parallel(evidence: Evidence) -> Found:
    variant = evidence.variant
    size = 2 * variant.scenario.engine.tensor_parallel_size
    key, words = "tensor_parallel", f"tensor parallelism {size}"
    if isinstance(variant.scenario.cost, AffineStepCost):
        return Declined(key, words, _GIVEN_STEPS)
    return _if_promising(
        Change(
            key,
            words,
            {
                "engine.tensor_parallel_size": size,
                **without_measured_layout(variant.scenario),
            },
            max(evidence.kv, evidence.gpu_work),
            _of_layout(variant),
        ),
        "neither GPU work nor KV space is what takes time",
    )


def _max_num_seqs(evidence: Evidence) -> Found:
    return _doubled(
        evidence,
        {"max_num_seqs": "sequence_slot", "max_num_active_seqs": "active_sequence_slot"},
        "at the load that fits no request waited for a sequence slot",
    )


def _token_budget(evidence: Evidence) -> Found:
    return _doubled(
        evidence,
        {
            "max_num_batched_tokens": "token_budget",
            "max_num_scheduled_tokens": "scheduled_token_budget",
        },
        "at the load that fits hardly a request waited for token budget",
    )


def _doubled(evidence: Evidence, lack_of: Mapping[str, str], why_not: str) -> Found:
    """Return twice the setting of which requests lacked most, of two that limit the same."""
    usual = next(iter(lack_of))
    name = max(lack_of, key=lambda each: evidence.waits_for(lack_of[each]))
    value = 2 * (getattr(evidence.variant.engine, name) or 0)
    promise = evidence.waits_for(lack_of[name])
    return _if_promising(
        Change(usual, f"{name} {value}", {f"engine.{name}": value}, promise), why_not
    )


def _concurrency_cap(evidence: Evidence) -> Found:
    seqs = max(math.floor(_CAP * evidence.figure("running_seqs_max")), 1)
    change = Change(
        "concurrency_cap", f"at most {seqs} sequences", {"engine.max_num_seqs": seqs}, promise=0.2
    )
    if seqs >= evidence.variant.engine.max_num_seqs:
        return Declined(change.key, change.words, "no more can run now")
    latency = evidence.limited_by.rpartition(": ")[2].partition("_")[0]
    if evidence.figure("preemptions_total") or latency in _OF_BUSY_STEPS:
        return change
    why = "it makes requests wait, and neither preemptions nor large batches are the limit"
    return Declined(change.key, change.words, why)


def _another_replica(evidence: Evidence) -> Found:
    replicas = evidence.variant.scenario.replicas
    words = f"{replicas + 1} replicas"
    return Change("replica", words, {"replicas": replicas + 1}, promise=0.5 / replicas)


def _next_gpu(evidence: Evidence) -> Found:
    scenario, gpu = evidence.variant.scenario, evidence.variant.gpu
    following = next_gpu(gpu)
    if following is None:
        why = f"no GPU with measured kernels is faster than {gpu.name}, and as large"
        return Declined("gpu", "the next GPU", why)
    words = f"GPU {following.name}"
    if isinstance(scenario.cost, AffineStepCost):
        return Declined("gpu", words, _GIVEN_STEPS)
    changes: dict[str, Any] = {"gpu": following.name, **without_measured_layout(scenario)}
    if scenario.price_usd_per_gpu_hour is not None:
        changes["price_usd_per_gpu_hour"] = None
    promise = max(evidence.kv, evidence.gpu_work)
    return _if_promising(
        Change("gpu", words, changes, promise, _of_layout(evidence.variant)),
        "neither GPU work nor KV space is what takes time",
    )


def next_gpu(gpu: GpuSpec) -> GpuSpec | None:
    """Return the least of the measured GPUs that read memory faster, and lack nothing beside."""
    better = [
        other
        for other in map(load_gpu, gpu_names())
        if other.name in measured_gpus()
        and other.hbm_bytes_per_s > gpu.hbm_bytes_per_s
        and other.hbm_bytes >= gpu.hbm_bytes
        and other.bf16_flop_per_s >= gpu.bf16_flop_per_s
    ]
    return min(better, key=lambda other: other.hbm_bytes_per_s, default=None)


def _if_promising(change: Change, why_not: str) -> Found:
    if change.promise >= LEAST_PROMISE:
        return change
    return Declined(change.key, change.words, why_not)


def _of_layout(variant: ResolvedVariant) -> str:
    return _COMPUTED_KV if without_measured_layout(variant.scenario) else ""


RULES: tuple[Rule, ...] = (
    _paged,
    _prefix_caching,
    _fp8_kv_cache,
    _tensor_parallel,
    _max_num_seqs,
    _token_budget,
    _concurrency_cap,
    _another_replica,
    _next_gpu,
)


def settings_of(changes: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is set, as `engine.kv_cache_dtype: fp8`; what goes back to nothing is left out."""
    for path, value in changes.items():
        if value is not None:
            shown = value["kind"] if isinstance(value, dict) else value
            yield f"{path}: {str(shown).lower() if isinstance(shown, bool) else shown}"
