"""The request table: what holds of every one, whoever makes it."""

from dataclasses import replace

import numpy as np
import pytest

from kvsim.errors import BrokenLawError
from kvsim.workload.requests import RequestTable, sums_before

ZEROS = np.zeros(2, dtype=np.int64)
ONES = np.ones(2, dtype=np.int64)
TABLE = RequestTable(ZEROS, ONES, ONES, ZEROS, np.arange(2), horizon_ns=1)


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"priority": np.zeros(3, dtype=np.int64)}, "every column"),
        ({"delay_ns": ZEROS}, "turns belong to sessions"),
        ({"gate": ZEROS}, "that of a gate"),
    ],
)
def test_columns_that_contradict_each_other_are_no_table(change, law):
    with pytest.raises(BrokenLawError, match=law):
        replace(TABLE, **change)


def test_further_turns_need_no_more_than_sessions():
    assert len(replace(TABLE, session=ZEROS, delay_ns=ZEROS)) == len(TABLE)


@pytest.mark.parametrize("counts", [[], [0], [3, 0, 2], [True, False, True]])
def test_sums_before_are_those_of_a_plain_loop(counts):
    kind = np.bool_ if counts and counts[0] is True else np.int64
    sums = sums_before(np.array(counts, dtype=kind))
    assert sums.dtype == np.int64
    assert sums.tolist() == [sum(counts[:place]) for place in range(len(counts) + 1)]
