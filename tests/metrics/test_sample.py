import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.metrics.sample import Sample

weighted_values = st.lists(
    st.tuples(
        st.floats(0, 1e6, allow_subnormal=False) | st.sampled_from([0.0, 0.1, 1.0]),
        st.integers(0, 9),
    ),
    max_size=30,
)
percents = st.floats(0, 100) | st.sampled_from([0.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0])


@given(weighted_values, percents)
def test_percentile_is_bit_for_bit_that_of_the_expanded_multiset(pairs, percent):
    values = np.array([value for value, _ in pairs], dtype=np.float64)
    counts = np.array([count for _, count in pairs], dtype=np.int64)
    expanded = np.repeat(values, counts)
    sample = Sample.of(values, counts)
    assert len(sample) == len(expanded)
    if len(expanded):
        assert sample.percentile(percent) == np.percentile(expanded, percent)
    else:
        assert sample.statistic("p50") is None


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50), percents)
def test_values_without_counts_occur_once(values, percent):
    sample = Sample.of(np.array(values))
    assert sample.percentile(percent) == np.percentile(values, percent)
    assert sample.statistic("max") == max(values)
    assert sample.statistic("mean") == pytest.approx(np.mean(values), rel=1e-9, abs=1e-3)


def test_counts_that_could_never_be_expanded():
    sample = Sample.of(np.array([2.0, 1.0]), np.array([10**15, 10**15]))
    assert len(sample) == 2 * 10**15
    assert [sample.percentile(percent) for percent in (10, 49.9, 50.1, 99)] == [1, 1, 2, 2]
    assert sample.statistic("mean") == 1.5


def test_a_fractional_percentile_by_its_name():
    assert Sample.of(np.arange(1001.0)).statistic("p99.9") == pytest.approx(999.0)
