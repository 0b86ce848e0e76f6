"""The search for the limit: bracket it with short runs, narrow, then replicate until it is precise.

Which values are tried depends on results alone, so the same scenario gives the same answer on any
machine, unless a budget of time ends the search.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.statistics import CONFIDENCE
from kvsim.studies.capacity.answer import Reason
from kvsim.studies.capacity.bounds import Bound
from kvsim.studies.capacity.estimate import Crossing, Estimate, crossing
from kvsim.studies.capacity.knob import Knob
from kvsim.studies.capacity.observe import Observed
from kvsim.studies.capacity.simulation import Ask, Simulate

PILOT_REPLICATIONS = 4
LEAST_REPLICATIONS = 16  # behind an answer: with fewer, the spread of the means is hardly known
_LEAST_A_USER = 20  # requests of a pilot, of each user of a closed loop
_LEAST_BEYOND = 20.0  # requests that a pilot at its bound has beyond it
_PILOT_REQUESTS = 1_000, 5_000  # at least, at most
_LEAST_LONGER, _LONGER = 2, 8  # times the pilot: runs behind an answer
_WIDEST = 3.0  # precisions, where the width isn't known
_WARM_UPS = 5  # a run is at least so many times as long as the warm-up of a pilot
_STEP = 2.0  # factor from load to load, in search of a bracket
_EASIER = (1, 2, 4, 8)  # steps down, before a search for a feasible load is given up
_HARDER = 40  # steps up
_SAFETY = 1.5  # so many times the requests that the spread asks for
_APART = 2  # precisions, of the pair at first
_FURTHEST_APART = 0.1  # on the axis: curves are interpolated in the pair, and bend beyond that
_MOVES = 4  # of the pair of values between which the limit is told
_TOO_WIDE = 2.5  # times the width that is needed: such a pair is drawn together
_MORE = 1.25, 4.0  # times the replications that there are: at least, at most
_SETTING_STEPS = 4  # to either end of a setting's range, in search of a bracket
_EDGE = 0.1  # of a bracket: what is tried in it is so far from its ends at least


@dataclass(frozen=True, slots=True)
class Terms:
    """How hard to search.

    Attributes:
        precision: Width of the interval, as a share of the value, at which the search ends.
        max_replications: Most replications at one value.
        confidence: Of the interval; None: nothing is random, one replication tells all.
        deadline: By `time.monotonic`; None: no limit.
        requests: Length of a pilot run; None: the scenario's own, for all runs.
        step: Factor from load to load, upwards, until one misses the bounds: a small one spares
            simulations of long queues.
        longer: Runs behind the answer are so many times as long as pilots; None: a rehearsal tells
            how long they have to be.
    """

    precision: float = 0.05
    max_replications: int = 64
    confidence: float | None = CONFIDENCE
    deadline: float | None = None
    requests: int | None = None
    step: float = _STEP
    longer: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """How a search ended: the interval on the knob's axis, the limiting bound, and the reason.

    An end is None where no value that may be tried is as good, or as bad.
    """

    easy: float | None
    place: float | None
    hard: float | None
    bound: Bound | None
    stopped: Reason


def pilot_requests(bounds: Sequence[Bound], users: int = 0) -> int:
    """Return how long pilot runs are: so that at a bound some requests are beyond it."""
    shares = [bound.allowed for bound in bounds if bound.kind in {"beyond", "not_good"}]
    wanted = _LEAST_BEYOND / max(min(shares, default=1.0), 1e-9)
    low, high = _PILOT_REQUESTS
    return round(max(min(max(wanted, low), high), _LEAST_A_USER * users))


class Search:
    """Simulations so far, and what they tell."""

    def __init__(
        self, knob: Knob, bounds: Sequence[Bound], terms: Terms, simulate: Simulate
    ) -> None:
        self.knob = knob
        self.bounds = bounds
        self.terms = terms
        self._simulate = simulate
        self.observed: dict[tuple[float, int | None], list[Observed]] = {}
        self._pilots = PILOT_REPLICATIONS if terms.confidence else 1
        self._pilots = min(self._pilots, terms.max_replications)

    def run(self) -> Found:
        """Search."""
        ends = self._bracket()
        if isinstance(ends, Found):
            return ends
        easy, hard = self._narrow(*ends)
        if self.terms.confidence is None or self._late:
            stopped: Reason = "budget" if self._late else "resolution"
            at_easy, at_hard = self.pilot(easy), self.pilot(hard)
            bound = self.bounds[at_hard.worst]
            exact = at_easy.confidence is None
            return Found(
                easy if exact or at_easy.status == "met" else None, easy, hard, bound, stopped
            )
        return self._replicate(easy, hard)

    # Looking at values

    def look(
        self, places: Sequence[float], replications: int, requests: int | None
    ) -> Sequence[Estimate]:
        """Return estimates at places; only replications that are missing are simulated."""
        values = [self.knob.tried(place) for place in places]
        asks = [
            Ask(value, number, requests)
            for value in dict.fromkeys(values)
            for number in range(len(self.observed.get((value, requests), [])), replications)
        ]
        for ask, one in zip(asks, self._simulate(asks), strict=True):
            self.observed.setdefault((ask.value, requests), []).append(one)
        return [self.estimate(value, requests, replications) for value in values]

    def estimate(self, value: float, requests: int | None, replications: int | None) -> Estimate:
        """Return what some or all replications at a value tell."""
        observed = self.observed[value, requests][:replications]
        return Estimate.of(value, self.bounds, observed, self.terms.confidence)

    def pilot(self, place: float) -> Estimate:
        """Return what a few short runs tell."""
        return self.look([place], self._pilots, self.terms.requests)[0]

    @property
    def _late(self) -> bool:
        return self.terms.deadline is not None and time.monotonic() > self.terms.deadline

    # Bracket and narrow

    def _bracket(self) -> tuple[float, float] | Found:
        """Return places of which only the first meets the bounds, or how that failed."""
        place = self.knob.place(self.knob.first)
        easiest, hardest = self.knob.ends
        step, up = math.log(_STEP), math.log(self.terms.step)
        if self.knob.is_setting:
            step = up = (hardest - easiest) / _SETTING_STEPS
        if self.pilot(place).distance <= 0:
            return self._upwards(place, hardest, up)
        for steps in _EASIER:
            if place == easiest or self._late:
                break
            hard, place = place, max(place - steps * step, easiest)
            if self.pilot(place).distance <= 0:
                return self.knob.snapped(place), self.knob.snapped(hard)
        bound = self.bounds[self.pilot(place).worst]
        if self.knob.is_setting and place == easiest and not self._late:
            self.pilot(hardest)  # whether larger values are harder is up to who asks
        return Found(None, None, place, bound, "budget" if self._late else "never")

    def _upwards(self, place: float, hardest: float, step: float) -> tuple[float, float] | Found:
        places = [place]
        for _ in range(_HARDER):
            if place == hardest or self._late:
                break
            easy, place = place, min(place + step, hardest)
            if self.pilot(place).distance > 0:
                return self.knob.snapped(easy), self.knob.snapped(place)
            places.append(place)
        if self._late:
            return Found(self._surely_met(places), None, None, None, "budget")
        if self.pilot(place).status == "undecided":
            self.look([place], self._enough_replications, self.terms.requests)
        return Found(self._surely_met(places), None, None, None, "range")

    def _surely_met(self, places: Sequence[float]) -> float | None:
        """Return the hardest of some places at which all replications say that the bounds hold."""
        for place in reversed(places):
            value = self.knob.tried(place)
            if self.estimate(value, self.terms.requests, None).status == "met":
                return place
        return None

    def _narrow(self, easy: float, hard: float) -> tuple[float, float]:
        """Close in on the limit by regula falsi, with bisection where that gains too little."""
        wanted = self._precision_at(easy) * (2 if self.terms.confidence else 1)
        bisect = False
        while hard - easy > wanted and not self._late:
            place = (easy + hard) / 2 if bisect else self._between(easy, hard)
            value = self.knob.tried(place)
            if value in (self.knob.tried(easy), self.knob.tried(hard)):
                if not self.knob.whole or abs(self.knob.tried(hard) - self.knob.tried(easy)) <= 1:
                    break
                value = self.knob.tried((easy + hard) / 2)
            place, before = self.knob.place(value), hard - easy
            if self.pilot(place).distance <= 0:
                easy = place
            else:
                hard = place
            bisect = hard - easy > before / 2
        return easy, hard

    def _between(self, easy: float, hard: float) -> float:
        """Return where the worst bound is crossed, told by its logarithm; not next to an end."""
        below, above = self.pilot(easy).distance, self.pilot(hard).distance
        return easy + (hard - easy) * min(max(-below / (above - below), _EDGE), 1 - _EDGE)

    def _precision_at(self, place: float) -> float:
        """Return the width on the axis that the precision is."""
        if self.knob.logarithmic:
            return math.log1p(self.terms.precision)
        return self.terms.precision

    def _apart(self, place: float) -> float:
        """Return how far the two values between which the limit is told are apart at first."""
        return min(_APART * self._precision_at(place), _FURTHEST_APART)

    # Replicate

    def _replicate(self, easy: float, hard: float) -> Found:
        """Add replications at a pair of values until the limit between them is precise."""
        pair = self._pair(self._between(easy, hard), self._apart(easy))
        replications, requests = self._enough_replications, self.terms.requests
        if requests is not None and self.terms.longer is not None:
            requests *= self.terms.longer
        elif requests is not None:
            pair, requests = self._rehearse(pair)
        moves = 0
        while True:
            first, second = self.look(pair, replications, requests)
            places = self.knob.place(first.value), self.knob.place(second.value)
            found = crossing((places[0], first), (places[1], second))
            stopped = self._enough(found, replications)
            moved = self._moved(found, places)
            if moved and moves < _MOVES and not self._late:
                pair, moves = moved, moves + 1
            elif stopped:
                return self._found(found, places, stopped)
            else:
                wider = found.width / self._precision_at(found.place)
                more = replications * min(
                    max((wider / _share(replications)) ** 2, _MORE[0]), _MORE[1]
                )
                replications = min(int(np.ceil(more)), self.terms.max_replications)

    def _rehearse(self, pair: tuple[float, float]) -> tuple[tuple[float, float], int]:
        """Return a better pair, and how long runs have to be, by as many short runs as needed.

        These runs tell the spread; those that give the answer are others, longer ones: the same
        runs would have stopped the search where they underestimate it.
        """
        pilot = self.terms.requests
        assert pilot is not None, "only where the length may be chosen"
        first, second = self.look(pair, self._enough_replications, pilot)
        places = self.knob.place(first.value), self.knob.place(second.value)
        found = crossing((places[0], first), (places[1], second))
        wider = found.width / self._precision_at(places[0])
        wider = wider if np.isfinite(wider) else _WIDEST
        length = max(
            _SAFETY * wider**2 * pilot,
            _LEAST_LONGER * pilot,
            _WARM_UPS * max(first.warmup, second.warmup),
        )
        return self._moved(found, places) or pair, round(min(length, _LONGER * pilot))

    @property
    def _enough_replications(self) -> int:
        return min(LEAST_REPLICATIONS, self.terms.max_replications)

    def _pair(self, middle: float, width: float) -> tuple[float, float]:
        """Return two places around one, of which the values differ, within what may be tried."""
        easiest, hardest = self.knob.ends
        easy, hard = max(middle - width / 2, easiest), min(middle + width / 2, hardest)
        if self.knob.tried(easy) == self.knob.tried(hard):
            value = self.knob.value(middle)
            around = sorted(map(self.knob.place, (np.floor(value), np.floor(value) + 1)))
            easy, hard = max(around[0], easiest), min(around[1], hardest)
        return easy, hard

    def _enough(self, found: Crossing, replications: int) -> Reason | None:
        """Say why no more replications are needed, or may be made."""
        wanted = _share(replications) * self._precision_at(found.place)
        if found.width <= wanted or self._told(found):
            return "precise"
        if self._late:
            return "budget"
        return "replications" if replications >= self.terms.max_replications else None

    def _told(self, found: Crossing) -> bool:
        """Tell whether both ends of an interval are one whole number."""
        if not self.knob.whole or not np.isfinite([found.low, found.high]).all():
            return False
        values = [self.knob.value(place) for place in (found.low, found.high)]
        return self.knob.inwards(values[0]) == self.knob.inwards(values[1])

    def _moved(self, found: Crossing, places: tuple[float, float]) -> tuple[float, float] | None:
        """Return a better pair if the limit is not between the two, or they are far apart."""
        width = places[1] - places[0]
        easiest, hardest = self.knob.ends
        if found.place == np.inf:
            return None if places[1] >= hardest else self._pair(places[1] + width / 2, 2 * width)
        if found.place == -np.inf:
            return None if places[0] <= easiest else self._pair(places[0] - width / 2, 2 * width)
        if not places[0] - 1e-9 <= found.place <= places[1] + 1e-9:
            return self._pair(
                found.place, max(width, min(self._precision_at(found.place), _FURTHEST_APART))
            )
        least = min(self._precision_at(found.place), _FURTHEST_APART)
        if width > _TOO_WIDE * max(least, min(found.width, _FURTHEST_APART)):
            return self._pair(found.place, max(min(found.width, _FURTHEST_APART), least))
        return None

    def _found(self, found: Crossing, places: tuple[float, float], stopped: Reason) -> Found:
        bound = self.bounds[found.bound]
        if found.low == np.inf:
            return Found(places[1], None, None, bound, "range")
        if found.high == -np.inf:
            return Found(None, None, places[0], bound, "never")
        easy, middle, hard = map(_finite, (found.low, found.place, found.high))
        return Found(easy, middle, hard, bound, stopped)


def _finite(place: float) -> float | None:
    return place if np.isfinite(place) else None


def _share(replications: int) -> float:
    """Return which share of the precision an interval of so many replications must have.

    Its width is random, too: a search that stops when it is narrow stops where the spread was
    underestimated, and that is where the tail was. The relative error of a standard deviation is
    less than 1 / √n, about 1 / √2n.
    """
    return 1 - 1 / math.sqrt(replications)
