"""From result tables to figures: latency, goodput, utilization, what limits it, the verdict.

`summary.summarize` is the entry; every figure it returns is defined in `catalog.METRICS`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.tables import Columns

Figures = dict[str, float | int | None]  # by the name of the metric; None: there is no such value


def finite_or_none(value: float | None) -> float | None:
    """Return None for what is too large for a number, or undefined: JSON knows neither."""
    return value if value is not None and math.isfinite(value) else None


class CostPart(Protocol):
    """A part of the iteration time, as `kvsim.cost.Part` describes it."""

    @property
    def component(self) -> str:
        """What is computed, for example `gemm`."""
        ...

    @property
    def bound(self) -> str:
        """What limits its speed: `hbm`, `compute`, `communication`, `host`, or `unknown`."""
        ...

    @property
    def basis(self) -> str:
        """On what the price rests, for example `measured`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class StepCosts:
    """Where the time of each step went and how much work it did; arrays of shape (steps,).

    Work is per GPU: under tensor parallelism each GPU does its share.
    """

    parts_ns: Sequence[tuple[CostPart, NDArray[np.float64]]]
    model_flop: NDArray[np.float64]
    hbm_bytes: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class RunContext:
    """What the tables of a run don't say: the deployment, its targets, its price."""

    horizon_ns: int  # arrivals stop here; 0: all requests arrive at once
    kv_capacity_tokens: int  # KV slots of one replica
    kv_bytes_per_token: float  # on one GPU
    max_num_seqs: int  # of one replica
    replicas: int = 1
    num_gpus: int = 1  # of all replicas together
    end_ns: int | None = None  # the run is cut off here; None: it drained
    warmup_ns: int = 0
    slo: Mapping[str, float] | None = None  # `ttft_p99_s: 2.0`, `max_failed_fraction: 0.001`
    class_names: tuple[str, ...] = ()  # of the traffic; none: it is all alike
    class_slos: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by class
    price_usd_per_gpu_hour: float | None = None
    costs_of: Callable[[Columns], StepCosts] | None = None  # of some rows of the steps table
    peak_flop_per_s: float = 0.0  # of one GPU; 0: unknown
    peak_hbm_bytes_per_s: float = 0.0  # of one GPU; 0: unknown
