"""The search on curves that are known, without any simulation."""

import time
from dataclasses import replace

import numpy as np
import pytest

from kvsim.rng import stream
from kvsim.studies.capacity.bounds import Bound
from kvsim.studies.capacity.knob import Knob, knob_at
from kvsim.studies.capacity.limit import Search, Terms
from kvsim.studies.capacity.observe import Observed, Series

TTFT = Bound("ttft_p99_s", "beyond", 0.01, "ttft", 2.0)
REQUESTS = 1_000
LOAD = Knob("load", "requests/s", 1.0, 1e-6, 1e6, False, True, lambda x: {"load": x})


def observed(shares, growth=0.0):
    """Return a run of which each bound's mean is given."""
    steps = np.arange(REQUESTS, dtype=np.float64)
    ones = np.ones(REQUESTS)
    series = {name: Series(np.full(REQUESTS, share), ones) for name, share in shares.items()}
    return Observed(steps, growth * steps, ones, series, {}, ones > 0, 0, REQUESTS)


def searched(share_at, knob=LOAD, bounds=(TTFT,), terms=None):
    """Search where `share_at(value, replication)` of the first bound reaches what is allowed."""

    def simulate(asks):
        return [observed({bounds[0].name: share_at(one.value, one.replication)}) for one in asks]

    terms = terms or Terms(confidence=None)
    search = Search(knob, bounds, terms, simulate)
    return search, search.run()


def power(limit, exponent=8.0):
    return lambda value, _: min(0.01 * (value / limit) ** exponent, 1.0)


@pytest.mark.parametrize("limit", [0.003, 0.9, 1.0, 7.3, 40_000.0])
def test_without_randomness_the_limit_lies_in_a_range_as_narrow_as_asked(limit):
    search, found = searched(power(limit))
    assert found.stopped == "resolution"
    low, high = (LOAD.value(place) for place in (found.easy, found.hard))
    assert low * (1 - 1e-9) <= limit < high <= low * 1.05 * (1 + 1e-9)
    assert found.bound is TTFT
    assert len(search.observed) < 40


def noisy(limit, spread=0.3, exponent=8.0):
    """A curve of which each replication has a factor of its own, of mean one."""

    def share_at(value, replication):
        factor = stream(0, "noise", replication).gamma(1 / spread**2, spread**2)
        return min(0.01 * factor * (value / limit) ** exponent, 1.0)

    return share_at


def test_a_random_curve_has_an_interval_that_is_as_narrow_as_asked():
    _, found = searched(noisy(5.0), terms=Terms(max_replications=500))
    low, place, high = (LOAD.value(each) for each in (found.easy, found.place, found.hard))
    assert found.stopped == "precise"
    assert low < place < high < low * 1.05
    assert low < 5.0 < high


def test_too_few_replications_are_said():
    _, found = searched(noisy(5.0, spread=2.0), terms=Terms(max_replications=20))
    assert found.stopped == "replications"


def test_a_budget_of_time_ends_the_search():
    _, found = searched(noisy(5.0), terms=Terms(deadline=time.monotonic() - 1))
    assert found.stopped == "budget"


def test_a_curve_above_the_bound_everywhere_has_no_limit():
    _, found = searched(lambda *_: 0.02)
    assert (found.stopped, found.easy, found.place) == ("never", None, None)


def test_a_range_that_meets_it_everywhere_is_said():
    few = replace(LOAD, most=8.0)
    _, found = searched(lambda *_: 0.001, knob=few)
    assert found.stopped == "range"
    assert few.value(found.easy) == pytest.approx(8.0)
    assert found.hard is None


@pytest.mark.parametrize("limit", [1.0, 5.0, 17.0, 63.0])
def test_whole_numbers_are_told_exactly(limit):
    users = knob_at("users", 4, 1, 64, False)
    _, found = searched(power(limit + 0.5, 3.0), knob=users)
    assert users.value(found.easy) == pytest.approx(limit)
    assert users.value(found.hard) == pytest.approx(limit + 1)


def test_the_smallest_value_that_meets_it():
    share = knob_at("engine.gpu_memory_utilization", 0.9, 0.1, 1.0, True)
    _, found = searched(lambda value, _: min(0.01 * (0.42 / value) ** 8, 1.0), knob=share)
    low, high = share.value(found.hard), share.value(found.easy)
    assert low < 0.42 <= high
    assert high / low < 1.05


def test_a_queue_that_grows_is_unstable_and_not_feasible():
    growth = Bound("steady queue", "growth", 0.01)

    def simulate(asks):
        return [observed({TTFT.name: 0.0}, max(1 - 3 / one.value, 0)) for one in asks]

    search = Search(LOAD, (TTFT, growth), Terms(confidence=None), simulate)
    found = search.run()
    assert found.bound is growth
    assert LOAD.value(found.easy) == pytest.approx(3.0, rel=0.05)
    statuses = {value: search.estimate(value, None, None).status for value, _ in search.observed}
    assert {status for value, status in statuses.items() if value > 3.1} == {"unstable"}
    assert {status for value, status in statuses.items() if value < 3.0} == {"met"}


def test_a_load_is_met_only_with_the_worse_end_of_its_interval():
    search, _ = searched(noisy(5.0, 0.5), terms=Terms(max_replications=64))
    estimates = [search.estimate(*asked, None) for asked in search.observed]
    assert {one.status for one in estimates} == {"met", "undecided", "missed"}
    for one in estimates:
        mean, low, high = one.excess(0)
        assert low <= mean <= high
        assert (one.status == "met") == (high <= 1)
        assert (one.status == "missed") == (low > 1)


def test_a_server_that_does_not_start_is_refused():
    length = knob_at("engine.max_model_len", 1000, 1000, 9000, False)

    def simulate(asks):
        return [
            Observed.refused("too long") if one.value > 5000 else observed({TTFT.name: 0.0})
            for one in asks
        ]

    search = Search(length, (TTFT,), Terms(confidence=None), simulate)
    found = search.run()
    assert length.value(found.easy) <= 5000 < length.value(found.hard)
    status = {value: search.estimate(value, None, None).status for value, _ in search.observed}
    assert {status[value] for value in status if value > 5000} == {"refused"}


@pytest.mark.parametrize("limit", [0.2, 1.7, 25.0])
def test_a_queue_that_grows_beyond_the_limit_alone_is_told_with_a_coarse_precision(limit):
    """Its curve has a corner, and a straight line between distant values is far from it."""
    growth = Bound("steady queue", "growth", 0.01)

    def simulate(asks):
        return [
            observed({TTFT.name: 0.0}, max(1 - limit / one.value, 0) + noise(one.replication))
            for one in asks
        ]

    def noise(replication):
        return 0.002 * stream(0, "growth", replication).standard_normal()

    found = Search(LOAD, (TTFT, growth), Terms(precision=0.2), simulate).run()
    assert found.bound is growth
    low, high = (LOAD.value(place) for place in (found.easy, found.hard))
    assert low <= limit / 0.99 * 1.03
    assert high >= limit * 0.97
