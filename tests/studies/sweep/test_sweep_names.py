"""Names in text: as short as they stay apart."""

import pytest

from kvsim.studies.sweep.names import axis_label, point_text, short_names, value_text
from kvsim.studies.sweep.schema import Sweep
from kvsim.study.point import Point


def sweep(*paths: str, **parts) -> Sweep:
    return Sweep.model_validate({"scenario": "x", "axes": {path: [1] for path in paths}, **parts})


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["engine.max_num_seqs", "seed"], ["max_num_seqs", "seed"]),
        (["a.b.kind", "a.c.kind"], ["b.kind", "c.kind"]),
        (["kind", "a.kind"], ["kind", "a.kind"]),
        (["x_kind", "a.kind"], ["x_kind", "kind"]),
    ],
)
def test_short_names_tell_paths_apart(paths, expected):
    names = short_names(sweep(*paths))
    assert list(names.values()) == expected
    assert list(names) == paths


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (16, "16"),
        (1000000, "1000000"),
        (0.1 + 0.2, "0.3"),
        (True, "true"),
        (None, "null"),
        ("paged", "paged"),
        ({"kind": "paged"}, "paged"),
        ({"kind": "contiguous", "reservation": "max_model_len"},
         "contiguous (reservation max_model_len)"),
        ({"kernels": "x.csv"}, "kernels x.csv"),
        ([1, 2], "[1, 2]"),
    ],
)  # fmt: skip
def test_values_are_shown_as_in_the_file(value, text):
    assert value_text(value) == text


def test_a_point_is_told_by_what_varies():
    point = Point({"engine.max_num_seqs": 4, "set": 1, "seed": 2}, "other")
    several = sweep("engine.max_num_seqs", "seed", variants=["base", "other"])
    assert point_text(several, point) == "max_num_seqs 4, seed 2, other"
    assert point_text(several, point, ("seed", "variant")) == "max_num_seqs 4"
    assert point_text(sweep(), Point()) == "base"
    names = short_names(several)
    assert axis_label(names, "engine.max_num_seqs") == "max_num_seqs (engine)"
    assert axis_label(names, "seed") == "seed"
