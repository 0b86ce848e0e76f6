import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.report.series import (
    MAX_POINTS,
    Timeline,
    envelope,
    extent_ns,
    joined,
    reduced,
    tail,
    time_means,
    timeline,
)
from kvsim.table_files import StoredTable, TableWriter
from kvsim.tables import STEPS

STEP = st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(0, 9))  # idle, duration, level
REPLICAS = st.lists(st.lists(STEP, max_size=8), min_size=1, max_size=3)


def steps_of(replicas) -> dict[str, np.ndarray]:
    rows = []
    for replica, steps in enumerate(replicas):
        now = 0
        for idle, duration, level in steps:
            rows.append((replica, now + idle, duration, level))
            now += idle + duration
    rows.sort(key=lambda row: row[1])  # as a recorder of several replicas may write them
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return dict(zip(("replica", "start_ns", "duration_ns", "level"), table.T, strict=True))


def level_at(steps, instant: int) -> int:
    on = (steps["start_ns"] <= instant) & (instant < steps["start_ns"] + steps["duration_ns"])
    return int(steps["level"][on].sum())


@given(REPLICAS)
def test_timeline_is_the_sum_of_the_replicas_at_every_instant(replicas):
    steps = steps_of(replicas)
    line = joined(timeline(steps, ["level"]))
    end = int((steps["start_ns"] + steps["duration_ns"]).max(initial=0))
    assert (np.diff(line.times_ns) > 0).all()
    for instant in range(end + 2):
        row = np.searchsorted(line.times_ns, instant, side="right") - 1
        assert (line.levels[row, 0] if row >= 0 else 0) == level_at(steps, instant)


@given(REPLICAS)
def test_a_lasting_level_holds_until_the_next_step(replicas):
    steps = steps_of(replicas)
    line = joined(timeline(steps, ["level", "level"], lasting=["level"]))
    end = int((steps["start_ns"] + steps["duration_ns"]).max(initial=0))
    for instant in range(end + 2):
        expected = 0
        for replica in np.unique(steps["replica"]):
            begun = (steps["replica"] == replica) & (steps["start_ns"] <= instant)
            expected += int(steps["level"][begun][-1]) if begun.any() else 0
        row = np.searchsorted(line.times_ns, instant, side="right") - 1
        assert (line.levels[row, 0] if row >= 0 else 0) == expected


@given(REPLICAS, st.integers(1, 7))
def test_time_means_average_every_instant(replicas, parts):
    steps = steps_of(replicas)
    edges = np.arange(parts + 1) * 6
    means = time_means(joined(timeline(steps, ["level"])), edges)[:, 0]
    instants = [level_at(steps, instant) for instant in range(edges[-1])]
    assert means == pytest.approx(np.reshape(instants, (parts, 6)).mean(axis=1))


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=200),
    st.integers(4, 40),
    st.randoms(use_true_random=False),
)
def test_envelope_keeps_ends_and_the_extremes_of_every_span(gaps, max_points, random):
    times = np.cumsum(gaps)
    values = np.array([random.randrange(100) for _ in gaps])
    kept = envelope(times, values, max_points)
    assert len(kept) <= max(max_points, 0)
    assert (np.diff(kept) > 0).all()
    assert {0, len(times) - 1} <= set(kept.tolist())
    assert values[kept].max() == values.max()
    assert values[kept].min() == values.min()
    if len(kept) < len(times):
        spans = (max_points - 2) // 2
        of_row = (times - times[0]) // ((times[-1] - times[0]) // spans + 1)
        for span in np.unique(of_row):
            inside = values[kept[of_row[kept] == span]]
            assert inside.min() == values[of_row == span].min()
            assert inside.max() == values[of_row == span].max()


def test_short_series_are_drawn_whole():
    assert envelope(np.arange(10), np.zeros(10, dtype=np.int64), 10).tolist() == list(range(10))


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=300), st.integers(20, 100))
def test_tail_is_the_share_at_or_above_each_value(values, max_points):
    sample = np.array(values)
    at, shares = tail(sample, max_points)
    assert len(at) <= max_points
    assert at[0] == sample.min()
    assert at[-1] == sample.max()
    assert shares[0] == 1
    assert shares[-1] == 1 / len(sample)
    for value, share in zip(at, shares, strict=True):
        # Among equal values each rank has its own point; the vertical stretch starts at the top.
        assert (sample > value).mean() < share + 1e-12 <= (sample >= value).mean() + 2e-12


def test_picked_rows_stay_together():
    line = Timeline(np.array([1, 2, 3]), np.array([[1, 9], [2, 8], [3, 7]]))
    picked = line.pick(np.array([0, 2]))
    assert picked.times_ns.tolist() == [1, 3]
    assert picked.levels.tolist() == [[1, 9], [3, 7]]


def stored(path, replicas, steps, chunk_ns) -> tuple[StoredTable, dict[str, np.ndarray]]:
    """Write the steps of replicas as a recorder does, that of a span of time for one after another.

    Return the table on disk, and the same in memory.
    """
    rng = np.random.default_rng(steps)
    place = {column.name: index for index, column in enumerate(STEPS)}
    rows = np.zeros((replicas * steps, len(STEPS)), dtype=np.int64)
    rows[:, place["replica"]] = np.repeat(np.arange(replicas), steps)
    lengths = rng.integers(1, 9, (replicas, steps))
    idle = rng.integers(0, 4, (replicas, steps)) * (rng.random((replicas, steps)) < 0.3)
    starts = np.cumsum(lengths + idle, axis=1) - lengths
    rows[:, place["start_ns"]], rows[:, place["duration_ns"]] = starts.ravel(), lengths.ravel()
    for name in ("running_seqs", "waiting_seqs", "kv_reusable_tokens"):
        rows[:, place[name]] = rng.integers(0, 1000, len(rows))
    writer = TableWriter(path, STEPS)
    for begin in range(0, int(starts.max(initial=0)) + 1, chunk_ns):
        chunk = rows[:, place["start_ns"]] // chunk_ns == begin // chunk_ns
        writer.write("base", rows[chunk])
    writer.close()
    return StoredTable(path, STEPS, "base"), {name: rows[:, at] for name, at in place.items()}


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("steps", [0, 10, 4_000])
def test_a_table_read_by_chunks_is_drawn_as_one_in_memory(tmp_path, replicas, steps):
    names = ("running_seqs", "waiting_seqs", "kv_reusable_tokens")
    table, memory = stored(tmp_path / "steps.parquet", replicas, steps, chunk_ns=997)
    parts = list(timeline(table, names, lasting=names[2:]))
    assert len(parts) > 5 or steps < 4_000
    whole = joined(timeline(memory, names, lasting=names[2:]))
    np.testing.assert_array_equal(joined(parts).times_ns, whole.times_ns)
    np.testing.assert_array_equal(joined(parts).levels, whole.levels)

    edges = np.linspace(0, 40_000, 14).astype(np.int64)
    found = reduced(parts, extent_ns(table), [0, 2], [edges])
    assert found.states == len(whole)
    assert (found.states > MAX_POINTS) == (steps == 4_000)
    for drawn, measure in zip(found.drawn, (0, 2), strict=True):
        kept = whole.pick(envelope(whole.times_ns, whole.levels[:, measure]))
        np.testing.assert_array_equal(drawn.times_ns, kept.times_ns)
        np.testing.assert_array_equal(drawn.levels, kept.levels)
    np.testing.assert_allclose(found.means[0], time_means(whole, edges), rtol=1e-9)
    assert found.peaks.tolist() == whole.levels.max(axis=0, initial=0).tolist()
