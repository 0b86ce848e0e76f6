"""The figures of a simulated run, as the clients of the measured ones took them."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvsim.cost import Basis, StepCost, StepShape
from kvsim.tables import OUTCOMES, REQUESTS, STEPS
from kvsim.units import NS_PER_MS, NS_PER_S
from kvsim.validate.case import OVERALL

_CLIENT_PAUSE_S = 2.0  # between the last answer of a stage and the next stage
# From the strongest to the weakest; what is given are constants of the engine's version.
_WEAKER = ("measured", "interpolated", "given", "extrapolated", "physical")
_CARRIES = 0.1  # part of the time that makes a component count for the basis
_REQUEST = {column.name: place for place, column in enumerate(REQUESTS)}
_STEP = {column.name: place for place, column in enumerate(STEPS)}
_SHAPE = tuple(StepShape.__dataclass_fields__)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(slots=True)
class Observed:
    """Takes the rows of a run as they come; of steps only sums are kept."""

    cost: StepCost
    requests: list[Ints] = field(default_factory=list)
    by_basis_ns: dict[tuple[str, Basis], float] = field(default_factory=dict)

    def __call__(self, table: str, rows: Ints) -> None:
        """Take rows of a table; see `kvsim.engine.recorder.Sink`."""
        if table == "requests":
            self.requests.append(rows.copy())
        elif table == "steps":
            shape = StepShape(**{name: rows[:, _STEP[name]] for name in _SHAPE})
            for part, ns in self.cost.parts_ns(shape).items():
                key = part.component, part.basis
                self.by_basis_ns[key] = self.by_basis_ns.get(key, 0.0) + float(np.sum(ns))

    def basis(self) -> str:
        """Return the weakest basis of a component that carries a tenth of the time or more."""
        total_ns = sum(self.by_basis_ns.values())
        carrying = [
            basis for (_, basis), ns in self.by_basis_ns.items() if ns >= _CARRIES * total_ns
        ]
        return max(carrying, key=_WEAKER.index, default="measured")

    def figures(self, stage_starts_ns: Ints, warm_up: int = 0) -> dict[int, dict[str, float]]:
        """Return the figures of each stage and of the whole run, by metric; see `case.METRICS`.

        The first `warm_up` requests don't count.
        """
        rows = np.concatenate(self.requests)
        rows = rows[rows[:, _REQUEST["outcome"]] == OUTCOMES.index("finished")]
        rows = rows[rows[:, _REQUEST["request"]] >= warm_up]
        arrival_ns = rows[:, _REQUEST["arrival_ns"]]
        stage = np.searchsorted(stage_starts_ns, arrival_ns, side="right") - 1
        stages = {
            number: _figures(rows[stage == number], start_ns)
            for number, start_ns in enumerate(stage_starts_ns.tolist())
            if (stage == number).any()
        }
        overall = _figures(rows, int(rows[:, _REQUEST["arrival_ns"]].min()) if warm_up else 0)
        if len(stages) > 1:
            spans_s = [
                (stage == number).sum() / figures["throughput"]
                for number, figures in stages.items()
            ]
            pauses_s = _CLIENT_PAUSE_S * (len(stages) - 1)
            overall["throughput"] = len(rows) / (sum(spans_s) + pauses_s)
        return {OVERALL: overall, **stages}

    def lost(self) -> int:
        """Return how many requests did not finish."""
        rows = np.concatenate(self.requests)
        finished = rows[:, _REQUEST["outcome"]] == OUTCOMES.index("finished")
        return int((~finished).sum())


def _figures(rows: Ints, start_ns: int) -> dict[str, float]:
    """Return the figures of finished requests that were sent from `start_ns` on."""
    arrival_ns, first_ns, end_ns, tokens = (
        rows[:, _REQUEST[name]]
        for name in ("arrival_ns", "first_token_ns", "finish_ns", "output_tokens")
    )
    e2e_ms, ttft_ms = (end_ns - arrival_ns) / NS_PER_MS, (first_ns - arrival_ns) / NS_PER_MS
    several = tokens > 1
    gaps = tokens[several] - 1
    figures: dict[str, float] = {}
    for name, values in (("e2e", e2e_ms), ("ttft", ttft_ms)):
        figures[f"{name}_mean"] = float(values.mean())
        figures[f"{name}_p90"], figures[f"{name}_p99"] = (
            float(value) for value in np.percentile(values, (90, 99))
        )
    if several.any():
        decoding_ms = (e2e_ms - ttft_ms)[several]
        figures["tpot_mean"] = float((decoding_ms / gaps).mean())
        # As the peers were scored: difference of the means over the mean number of gaps.
        figures["itl_mean_reported"] = float(decoding_ms.mean() / gaps.mean())
    figures["throughput"] = len(rows) * NS_PER_S / float(end_ns.max() - start_ns)
    return figures
