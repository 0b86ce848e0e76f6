"""Steps that are drawn, and their medians, against all of them looked at one by one."""

import numpy as np
import plotly.graph_objects as go
import pytest

from kvsim.report.inputs import Variant
from kvsim.report.iterations import KINDS, MOST_POINTS, iterations, read_steps
from kvsim.table_files import StoredTable, TableWriter
from kvsim.tables import STEPS


def steps_of(count: int, seed: int = 0, replicas: int = 1) -> dict[str, np.ndarray]:
    """Steps of all kinds, long where they have prompts."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(3, count, p=[0.8, 0.15, 0.05])
    decode = np.where(kind < 2, rng.integers(1, 200, count), 0)
    prefill = np.where(kind > 0, np.exp(rng.uniform(0, 9, count)).astype(np.int64) + 1, 0)
    steps = {column.name: np.zeros(count, dtype=np.int64) for column in STEPS}
    return steps | {
        "replica": rng.integers(0, replicas, count),
        "step": np.arange(count),
        "decode_seqs": decode,
        "prefill_tokens": prefill,
        "duration_ns": 5_000_000 + 20_000 * (decode + prefill) + rng.integers(0, 2_000_000, count),
    }


def kinds_of(steps) -> np.ndarray:
    return np.where(steps["prefill_tokens"] == 0, 0, np.where(steps["decode_seqs"] > 0, 1, 2))


def variant_of(steps, name="base") -> Variant:
    return Variant(name, {}, {}, steps, {})


def half_octave(tokens: np.ndarray) -> np.ndarray:
    octave = np.floor(np.log2(tokens))
    return 2 * octave + (tokens >= 1.5 * 2**octave)


def test_few_steps_are_all_drawn():
    steps = steps_of(500)
    found = read_steps(steps, 500)
    kinds = kinds_of(steps)
    tokens = steps["prefill_tokens"] + steps["decode_seqs"]
    for kind, (x, y) in enumerate(found.drawn):
        mine = kinds == kind
        expected = sorted(zip(tokens[mine], steps["duration_ns"][mine], strict=True))
        assert sorted(zip(x, y, strict=True)) == expected
    chart = iterations([variant_of(steps)])
    assert chart.note == ""
    go.Figure(data=chart.figure["data"], layout=chart.figure["layout"])


@pytest.mark.parametrize("most", [333, 2000])
def test_many_steps_are_thinned_and_keep_the_extremes_of_each_bin(most):
    steps = steps_of(60_000)
    found = read_steps(steps, most)
    assert 0.4 * most < sum(len(x) for x, _ in found.drawn) <= most
    kinds, tokens = kinds_of(steps), steps["prefill_tokens"] + steps["decode_seqs"]
    bins = half_octave(tokens)
    for kind, (x, y) in enumerate(found.drawn):
        drawn_bins = half_octave(x)
        for each in np.unique(bins[kinds == kind]):
            durations = steps["duration_ns"][(kinds == kind) & (bins == each)]
            drawn = y[drawn_bins == each]
            assert (drawn.min(), drawn.max()) == (durations.min(), durations.max())
            assert np.isin(drawn, durations).all()


def test_others_are_spread_over_the_run():
    steps = steps_of(60_000)
    steps["duration_ns"] = 1_000_000 + np.arange(60_000)  # tells which step it is
    _, y = read_steps(steps, 2000).drawn[0]
    quarter = (y - 1_000_000) // 15_000
    # Evenly: no further off than two standard deviations of picks by chance.
    by_chance = (len(y) * 0.25 * 0.75) ** 0.5
    assert np.bincount(quarter, minlength=4) == pytest.approx(len(y) / 4, abs=2 * by_chance)


def test_medians_and_counts_are_those_of_all_steps():
    steps = steps_of(30_000)
    found = read_steps(steps, 100)
    kinds, bins = kinds_of(steps), half_octave(steps["prefill_tokens"] + steps["decode_seqs"])
    for each in range(found.counts.shape[1]):
        inside = bins == each
        assert found.counts[:, each].tolist() == [
            int((inside & (kinds == kind)).sum()) for kind in range(len(KINDS))
        ]
        if inside.any():
            exact_ms = np.percentile(steps["duration_ns"][inside], 50, method="lower") / 1e6
            assert found.medians_ms[each] == pytest.approx(exact_ms, rel=0.004)
        else:
            assert np.isnan(found.medians_ms[each])
    alone_ms = np.median(steps["duration_ns"][kinds == 0]) / 1e6
    assert found.alone_ms == pytest.approx(alone_ms, rel=0.004)
    mixed_ms = np.median(steps["duration_ns"][kinds > 0]) / 1e6
    assert found.mixed_ms == pytest.approx(mixed_ms, rel=0.004)


@pytest.mark.parametrize("rows_in_a_chunk", [37, 5_000])
def test_what_is_drawn_does_not_depend_on_the_chunks(tmp_path, rows_in_a_chunk):
    steps = steps_of(20_000, replicas=3)
    writer = TableWriter(tmp_path / "steps.parquet", STEPS)
    rows = np.stack([steps[column.name] for column in STEPS], axis=1)
    for start in range(0, len(rows) if rows_in_a_chunk > 100 else 4_000, rows_in_a_chunk):
        writer.write("base", rows[start : start + rows_in_a_chunk])
    writer.close()
    stored = StoredTable(tmp_path / "steps.parquet", STEPS, "base")
    memory = {name: column[: stored.rows] for name, column in steps.items()}
    for one, other in zip(
        read_steps(stored, 300).drawn, read_steps(memory, 300).drawn, strict=True
    ):
        assert sorted(zip(*one, strict=True)) == sorted(zip(*other, strict=True))


def test_titles_and_tables_tell_the_medians():
    steps = steps_of(30_000)
    only = {name: column[kinds_of(steps) == 0] for name, column in steps.items()}
    chart = iterations([variant_of(steps), variant_of(only, "quiet")])
    found = read_steps(steps, 10)
    assert f"Steps of base take {found.alone_ms:.3g} ms (median)" in chart.title
    assert f"and {found.mixed_ms / found.alone_ms:.3g} × that with prompts" in chart.title
    assert f"steps of quiet only decode, in {found.alone_ms:.3g} ms" in chart.title
    assert sum(int(row[1].replace(",", "")) for row in chart.table.rows) == 30_000
    assert sum(int(row[2].replace(",", "")) for row in chart.table.rows) == found.counts[1:].sum()
    assert "0.4 %" in chart.note
    drawn = sum(len(trace["x"]) for trace in chart.figure["data"] if trace["mode"] == "markers")
    assert drawn <= MOST_POINTS


def test_a_variant_without_steps_has_an_empty_panel():
    none = {column.name: np.zeros(0, dtype=np.int64) for column in STEPS}
    chart = iterations([variant_of(steps_of(10)), variant_of(none, "idle")])
    assert "idle has no steps" in chart.title
    go.Figure(data=chart.figure["data"], layout=chart.figure["layout"])
