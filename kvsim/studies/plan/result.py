"""A plan: the cheapest fleet, what it was compared with, and what was left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvsim.scenario.change import OF_ONE_LAYOUT
from kvsim.scenario.load import ScenarioFile
from kvsim.studies.plan.candidates import Candidate, Options
from kvsim.studies.plan.fleet import Fleet

WhyNot = Literal["dearer", "budget", "refused", "killed"]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A candidate of which no fleet was simulated.

    Attributes:
        candidate: What it is.
        why: `dearer`: it is proven to cost no less than the winner; `budget`: time was up;
            `refused`: it would not start, or can't serve these requests; `killed`: it took more
            memory than there is.
        usd_per_hour: Proven least cost, spare replicas included; None if it would not start.
        message: What refused it.
    """

    candidate: Candidate
    why: WhyNot
    usd_per_hour: float | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The cheapest fleet, and what it was compared with.

    Attributes:
        file: The scenario.
        options: What was asked.
        random: Whether replications differ.
        winner: The cheapest fleet that meets the SLO; None if none was found.
        fleets: All candidates of which fleets were simulated, the winner first, then by cost.
        skipped: The others.
        demands: Factors of the demand → the winner's fleet there.
        proven: Whether no candidate can be cheaper than the winner: none was left out for want of
            time or memory.
    """

    file: ScenarioFile
    options: Options
    random: bool
    winner: Fleet | None
    fleets: Sequence[Fleet]
    skipped: Sequence[Skipped]
    demands: Sequence[tuple[float, Fleet]]
    proven: bool

    def usd_per_hour(self, fleet: Fleet, replicas: int) -> float:
        """Return what a fleet costs whose load needs so many replicas; the spare ones count."""
        return fleet.least.usd_per_hour(replicas + self.options.spare)

    @property
    def has_measured_kv_cache(self) -> bool:
        """Whether the scenario gives a KV cache size that only its own layout can have."""
        return any(
            path in fleet.least.candidate.changes for fleet in self.fleets for path in OF_ONE_LAYOUT
        )
