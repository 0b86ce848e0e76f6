"""The algebra behind a calibration, against scipy and against draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from kvsim.calibrate.least_squares import LeastSquares, half_widths, student_t


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(0, 6))
def test_bounded_finds_the_minimum(seed, constants, more):
    draw = np.random.default_rng(seed)
    effects = draw.normal(size=(constants + more, constants))
    wanted = 3 * draw.normal(size=constants + more)
    least, most = -draw.random(constants), draw.random(constants)
    ours = LeastSquares(effects, wanted, least, most).solved()
    theirs = optimize.lsq_linear(effects, wanted, (least, most), tol=1e-12).x
    squares = [float(np.sum((effects @ x - wanted) ** 2)) for x in (ours, theirs)]
    assert squares[0] <= squares[1] * (1 + 1e-6) + 1e-9
    assert ((least <= ours) & (ours <= most)).all()


@pytest.mark.parametrize("spare", [1, 2, 3, 4, 5, 8, 20, 200])
def test_student_t(spare):
    assert student_t(spare) == pytest.approx(stats.t.ppf(0.975, spare), rel=0.01)


def test_intervals_cover_the_truth_as_often_as_they_say():
    draw = np.random.default_rng(1)
    effects = draw.normal(size=(8, 3))
    truth, hits = np.array([0.2, -1.0, 3.0]), 0
    for _ in range(1000):
        wanted = effects @ truth + 0.1 * draw.normal(size=8)
        found = np.linalg.lstsq(effects, wanted, rcond=None)[0]
        hits += int((np.abs(found - truth) < half_widths(effects, effects @ found - wanted)).sum())
    assert hits / 3000 == pytest.approx(0.95, abs=0.015)


def test_as_many_constants_as_figures_have_no_interval():
    assert np.isinf(half_widths(np.eye(2), np.zeros(2))).all()


def told_apart(effects, names, wanted=None, at_most=9):
    ones = np.ones(len(names))
    wanted = np.zeros(len(effects)) if wanted is None else np.array(wanted)
    return LeastSquares(effects, wanted, -ones, ones).told_apart(names, at_most)


def test_constants_that_act_alike_are_told():
    effects = np.array([[1.0, 0.1, 0.0, 0.0], [1.0, 0.1, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    kept, why = told_apart(effects, ["fixed", "seq", "request", "skew"])
    assert kept == [0, 2]
    assert why == {
        1: "can't be told apart from fixed by these runs",
        3: "has no effect in these runs",
    }


def test_two_nearly_alike_do_not_take_a_third_away():
    effects = np.array([[0.7, 0.0, 0.0], [0.1, 1.2, 1.1]])
    kept, _ = told_apart(effects, ["fixed", "request", "token"])
    assert kept == [0, 1]


def test_of_those_alike_the_one_that_explains_more_is_kept():
    effects = np.array([[1.0, 1.1], [1.0, 1.1], [1.0, 0.9]])
    assert told_apart(effects, ["a", "b"], [1.0, 1.0, 1.0])[0] == [0]
    assert told_apart(effects, ["a", "b"], [1.1, 1.1, 0.9])[0] == [1]


def test_few_results_tell_few_constants():
    kept, why = told_apart(np.eye(3), ["a", "b", "c"], [0.1, 0.9, 0.5], at_most=2)
    assert (kept, why) == ([1, 2], {0: "is one more than so few results can tell"})


def test_a_combination_may_stand_in_too():
    effects = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5], [0.0, 0.0, 0.0]])
    kept, why = told_apart(effects, ["a", "b", "c"])
    assert kept == [0, 1]
    assert why == {2: "can't be told apart from a and b by these runs"}


def test_what_differs_is_kept():
    concurrency = np.array([1.0, 8.0, 32.0, 64.0])
    effects = np.column_stack([np.ones(4), concurrency / 100])
    assert told_apart(effects, ["fixed", "seq"]) == ([0, 1], {})
