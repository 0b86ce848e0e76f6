"""Axes become points: what any sweep spans, whatever its axes are."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.studies.sweep.axes import directions_of, largest_size
from kvsim.studies.sweep.expand import points_of
from kvsim.studies.sweep.schema import Sweep

ROW_COUNT = st.integers(1, 4)


def sweep(**parts) -> Sweep:
    return Sweep.model_validate({"scenario": "x.yaml", **parts})


def values(written) -> list:
    (direction,) = directions_of(sweep(axes={"a": written}))
    return [row["a"] for row in direction.rows]


@st.composite
def sweeps(draw) -> Sweep:
    axes = {
        f"a.x{place}": draw(st.lists(st.integers(), min_size=1, max_size=4, unique=True))
        for place in range(draw(st.integers(1, 3)))
    }
    rows = draw(ROW_COUNT)
    zipped = {"pair": [{"b.y": place, "c": -place} for place in range(rows)]}
    return sweep(
        axes=axes,
        zipped=zipped if draw(st.booleans()) else {},
        variants=draw(st.sampled_from([["base"], ["base", "other"]])),
        replications=draw(st.integers(1, 3)),
        set={"d": 1},
    )


@given(sweeps())
def test_points_are_all_combinations_once(given_sweep):
    points = points_of(given_sweep)
    assert len(points) == largest_size(given_sweep)
    seen = {(tuple(p.changes.items()), p.variant, p.replication) for p in points}
    assert len(seen) == len(points)
    for point in points:
        assert point.changes["d"] == 1
        assert all(point.changes[path] in axis for path, axis in given_sweep.axes.items())
        if given_sweep.zipped:
            assert point.changes["c"] == -point.changes["b.y"]


@given(sweeps(), st.integers(-3, 3))
def test_conditions_leave_exactly_what_passes(given_sweep, bound):
    everything = points_of(given_sweep)
    condition = {"left": "a.x0", "op": "<=", "right": bound}
    limited = given_sweep.model_copy(
        update={"where": sweep(where=[condition]).where},
    )
    expected = [point for point in everything if point.changes["a.x0"] <= bound]
    if expected:
        assert points_of(limited) == expected
    else:
        with pytest.raises(InputError, match="no point passes"):
            points_of(limited)


@given(sweeps())
def test_replications_of_a_point_lie_side_by_side(given_sweep):
    points, count = points_of(given_sweep), given_sweep.replications
    for first in range(0, len(points), count):
        group = points[first : first + count]
        assert [point.replication for point in group] == list(range(count))
        assert all(point.changes == group[0].changes for point in group)


# Ranges


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"from": 1.0, "to": 1.5, "step": 0.1}, [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]),
        ({"from": 1, "to": 6, "step": 2}, [1, 3, 5]),
        ({"from": 16, "to": 64, "count": 4}, [16, 32, 48, 64]),
        ({"from": 1, "to": 2, "count": 3}, [1, 1.5, 2]),
        ({"from": 1, "to": 1000, "count": 4, "scale": "log"}, [1, 10, 100, 1000]),
        ({"from": 1, "to": 4, "count": 13, "scale": "log", "whole": True}, [1, 2, 3, 4]),
        ({"from": 1, "to": 4, "count": 3, "whole": True}, [1, 2, 4]),
    ],
)
def test_ranges_are_as_written(written, expected):
    found = values(written)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@given(
    st.floats(1e-3, 1e3),
    st.floats(1.01, 1e3),
    st.integers(2, 50),
    st.sampled_from(["linear", "log"]),
)
def test_ranges_rise_evenly_from_bound_to_bound(lowest, factor, count, scale):
    highest = lowest * factor
    found = values({"from": lowest, "to": highest, "count": count, "scale": scale})
    assert len(found) == count
    assert found[0] == pytest.approx(lowest)
    assert found[-1] == pytest.approx(highest)
    assert min(found) >= lowest
    assert max(found) <= highest
    gaps = [b / a if scale == "log" else b - a for a, b in pairwise(found)]
    slack = 1e-7 * highest if scale == "linear" else None  # differences of rounded numbers
    assert gaps == pytest.approx([gaps[0]] * len(gaps), rel=1e-6, abs=slack)


def test_a_million_million_points_are_counted_without_being_made():
    wide = {"from": 0, "to": 1.0, "count": 10**6}
    assert largest_size(sweep(axes={"a": wide, "b": wide}, replications=3)) == 3 * 10**12


# Samples


def sampled(kind: str, count: int, seed: int = 0, **axes) -> list[dict]:
    samples = {"kind": kind, "count": count, "seed": seed}
    return list(directions_of(sweep(axes=axes, samples=samples))[-1].rows)


WIDE = {"a": {"from": 1.0, "to": 3.0}, "b": {"from": 1.0, "to": 100.0, "scale": "log"}}


@pytest.mark.parametrize("kind", ["sobol", "latin_hypercube"])
def test_samples_hit_each_part_of_each_range_once(kind):
    rows = sampled(kind, 64, **WIDE)
    shares = {
        "a": [(row["a"] - 1) / 2 for row in rows],
        "b": [math.log(row["b"]) / math.log(100) for row in rows],
    }
    for each in shares.values():
        assert sorted(int(share * 64) for share in each) == list(range(64))


@pytest.mark.parametrize("kind", ["sobol", "latin_hypercube"])
def test_samples_depend_on_their_seed_alone(kind):
    assert sampled(kind, 8, **WIDE) == sampled(kind, 8, **WIDE)
    assert sampled(kind, 8, **WIDE) != sampled(kind, 8, seed=1, **WIDE)


def test_whole_samples_are_whole_and_taken_once():
    rows = sampled("sobol", 64, a={"from": 1, "to": 5, "whole": True})
    assert sorted(row["a"] for row in rows) == [1, 2, 3, 4, 5]


def test_a_list_is_crossed_with_samples():
    parts = {"c": [1, 2, 3], **WIDE}
    points = points_of(sweep(axes=parts, samples={"count": 8}))
    assert len(points) == 24
    first = [(p.changes["a"], p.changes["b"]) for p in points if p.changes["c"] == 1]
    assert first == [(p.changes["a"], p.changes["b"]) for p in points if p.changes["c"] == 3]


# Conditions


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"left": "a", "op": "<", "right": "b"}, {(1, 2), (1, 4), (2, 4)}),
        ({"left": ["a", "b"], "op": "==", "right": 4}, {(1, 4), (2, 2)}),
        ({"left": "b", "op": ">=", "right": ["a", "a"]}, {(1, 2), (1, 4), (2, 4)}),
        ({"left": "variant", "op": "==", "right": "base"}, {(1, 2), (1, 4), (2, 2), (2, 4)}),
    ],
)
def test_conditions_compare_values_paths_and_products(condition, expected):
    points = points_of(sweep(axes={"a": [1, 2], "b": [2, 4]}, where=[condition]))
    assert {(point.changes["a"], point.changes["b"]) for point in points} == expected


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ({"left": "aa", "op": "<", "right": 3}, "'aa' is nothing that this sweep sets"),
        ({"left": ["a", "nope"], "op": "<", "right": 3}, "'nope' is nothing"),
        ({"left": "t", "op": "<", "right": 3}, "'x' is no number"),
        ({"left": "a", "op": "<", "right": "bb"}, "'bb' is nothing that this sweep sets"),
    ],
)
def test_conditions_that_cannot_be_judged_are_told(condition, message):
    written = sweep(axes={"a": [1], "b": [2], "t": ["x"]}, where=[condition])
    with pytest.raises(InputError, match=message):
        points_of(written)
