"""Arrivals of kind trace: thinned, scaled and redrawn; lengths of kind trace from any log."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from kvsim.errors import InputError
from kvsim.rng import stream
from kvsim.workload.arrivals.trace import TraceArrivals
from kvsim.workload.lengths.empirical import Empirical
from kvsim.workload.lengths.trace import TraceLengths
from kvsim.workload.requests import NO_LIMIT, RequestTable, Segments
from kvsim.workload.traces.own import write_trace

DATA = Path(__file__).parents[1] / "data" / "traces"
COLUMNS = {"arrival": "at", "prompt_tokens": "in", "output_tokens": "out", "session": "who"}


def replayed(base_dir: Path, seed=0, **parameters):
    data = {"kind": "trace", **parameters}
    process = TraceArrivals.model_validate(data, context={"base_dir": base_dir})
    return process.arrivals(None, None, stream(seed, "arrivals"))


def sessions_log(folder: Path, rows: int) -> dict:
    lines = [f"{i},{i + 1},{(i + 1) * 3},{i % 40 if i % 3 else ''}" for i in range(rows)]
    (folder / "log.csv").write_text("\n".join(["at,in,out,who", *lines]))
    return {"file": "log.csv", "columns": COLUMNS}


def ints(*values) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def own_log(folder: Path, **change) -> dict:
    columns = {
        "arrival_ns": ints(0, 0, 7), "prompt_tokens": ints(4, 4, 6), "output_tokens": ints(1, 2, 3),
        "max_tokens": ints(NO_LIMIT, 9, 3), "group": ints(0, 0, 1), "horizon_ns": 9,
    }  # fmt: skip
    write_trace(folder / "run.parquet", RequestTable(**columns | change))
    return {"file": "run.parquet"}


def test_thinning_keeps_whole_sessions(tmp_path):
    log = sessions_log(tmp_path, 600)
    whole = replayed(tmp_path, **log).recorded
    size = Counter(whole.session.tolist())
    for seed in range(5):
        drawn = replayed(tmp_path, seed, sample_fraction=0.5, **log)
        kept = Counter(drawn.recorded.session.tolist())
        assert all(count == size[session] for session, count in kept.items() if session >= 0)
        assert 0.3 < len(drawn.times_ns) / 600 < 0.7
        assert 60 < kept[-1] < 140  # 200 requests without a session, each for itself
        assert drawn.horizon_ns == 599 * 10**9 + 1
        again = replayed(tmp_path, seed, sample_fraction=0.5, **log)
        assert np.array_equal(drawn.times_ns, again.times_ns)


def test_thinning_keeps_whole_groups_of_samples(tmp_path):
    log = own_log(tmp_path)
    kept = set()
    for seed in range(12):
        try:
            kept.add(tuple(replayed(tmp_path, seed, sample_fraction=0.5, **log).recorded.group))
        except InputError:
            kept.add(())
    assert kept == {(), (0, 0), (1,), (0, 0, 1)}


def test_thinning_that_leaves_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match="leaves no request"):
        replayed(tmp_path, sample_fraction=1e-12, **sessions_log(tmp_path, 30))


@settings(max_examples=30)
@given(scale=st.floats(1e-6, 1e3), output_scale=st.floats(1e-6, 1e3))
def test_lengths_are_scaled_rounded_and_at_least_one(scale, output_scale):
    name = {"file": "azure_2023_conv.csv"}
    plain = replayed(DATA, **name).recorded
    scaled = replayed(DATA, prompt_scale=scale, output_scale=output_scale, **name).recorded
    assert np.array_equal(scaled.arrival_ns, plain.arrival_ns)
    for lengths, before, by in [
        (scaled.prompt_tokens, plain.prompt_tokens, scale),
        (scaled.output_tokens, plain.output_tokens, output_scale),
    ]:
        assert lengths.tolist() == [max(1, round(tokens * by)) for tokens in before.tolist()]


def test_limits_are_scaled_with_the_answers(tmp_path):
    drawn = replayed(tmp_path, output_scale=2.0, **own_log(tmp_path)).recorded
    assert drawn.output_tokens.tolist() == [2, 4, 6]
    assert drawn.max_tokens.tolist() == [NO_LIMIT, 18, 6]


def test_resampling_keeps_times_and_draws_rows_whole(tmp_path):
    log = sessions_log(tmp_path, 400)
    whole = replayed(tmp_path, **log)
    counts = np.zeros(400)
    for seed in range(20):
        drawn = replayed(tmp_path, seed, resample=True, **log)
        assert np.array_equal(drawn.times_ns, whole.times_ns)
        assert np.array_equal(drawn.recorded.session, whole.recorded.session)
        assert np.array_equal(drawn.recorded.output_tokens, drawn.recorded.prompt_tokens * 3)
        counts += np.bincount(drawn.recorded.prompt_tokens, minlength=401)[1:]
    assert stats.chisquare(counts).pvalue > 1e-4
    assert len(set(drawn.recorded.prompt_tokens.tolist())) == pytest.approx(400 * 0.632, rel=0.1)


def test_recorded_contents_can_not_contradict_other_lengths(tmp_path):
    mooncake = {"file": "mooncake_conversation.jsonl"}
    for change in ({"prompt_scale": 2.0}, {"resample": True}):
        with pytest.raises(InputError, match=next(iter(change))):
            replayed(DATA, **change, **mooncake)
    plain = replayed(DATA, **mooncake).recorded
    longer = replayed(DATA, output_scale=2.0, **mooncake).recorded
    assert np.array_equal(longer.output_tokens, plain.output_tokens * 2)
    assert np.array_equal(longer.segments.seed, plain.segments.seed)
    repeats = Segments(ints(0, 1, 2, 5), ints(5, 6, 6, 8, 7), ints(4, 4, 4, 1, 1), ints(7, 8, 9))
    log = own_log(tmp_path, segments=repeats)
    with pytest.raises(InputError, match=r"output_scale.*repeat earlier answers"):
        replayed(tmp_path, output_scale=2.0, **log)


def test_answers_can_be_scaled_unless_a_later_prompt_goes_on_where_they_began(tmp_path):
    """The first two requests ask 4 tokens of stream 5 each, and their answers continue it."""
    for third, repeats in ((4, False), (3, False), (5, True)):
        segments = Segments(
            ints(0, 1, 2, 4), ints(5, 5, 6, 5), ints(4, 4, 6 - third, third), ints(5, 5, 7)
        )
        log = own_log(tmp_path, segments=segments)
        if repeats:
            with pytest.raises(InputError, match=r"output_scale.*repeat earlier answers"):
                replayed(tmp_path, output_scale=2.0, **log)
        else:
            scaled = replayed(tmp_path, output_scale=2.0, **log).recorded
            assert scaled.output_tokens.tolist() == [2, 4, 6]


def test_samples_of_one_request_can_not_be_redrawn(tmp_path):
    with pytest.raises(InputError, match="resample"):
        replayed(tmp_path, resample=True, **own_log(tmp_path))


def test_a_cut_of_a_mooncake_trace_keeps_its_prompts_contents():
    mooncake = {"file": "mooncake_conversation.jsonl"}
    whole = replayed(DATA, **mooncake).recorded
    cut = replayed(DATA, start_s=1.0, **mooncake).recorded
    first = len(whole) - len(cut)
    assert 0 < first < len(whole)
    for number in range(len(cut)):
        assert cut.segments.of(number) == whole.segments.of(first + number)


def test_reading_options_reach_the_reader(tmp_path):
    lines = ["at,in,out,model", "0,1,1,a", "x,1,1,a", "1000,2,2,b", "3000,3,3,a"]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    options = {
        "file": "log.csv", "columns": {k: v for k, v in COLUMNS.items() if k != "session"},
        "time_unit": "ms", "skip_bad_rows": 1,
    }  # fmt: skip
    drawn = replayed(tmp_path, where={"model": ["a"]}, **options)
    assert drawn.times_ns.tolist() == [0, 3 * 10**9]
    assert drawn.recorded.notes == ("log.csv: 1 row can't be used, left out",)
    with pytest.raises(InputError, match="no trace format 'azur'"):
        replayed(tmp_path, file="log.csv", format="azur")
    for wrong in ({"skip_bad_rows": -1}, {"sample_fraction": 0.0}, {"time_unit": "h"}):
        with pytest.raises(ValidationError):
            replayed(tmp_path, **{**options, **wrong})


def test_lengths_of_kind_trace_are_drawn_from_any_log(tmp_path):
    rows = [{"in": i, "out": i * 2} for i in range(1, 30)]
    (tmp_path / "log").write_text("\n".join(map(json.dumps, rows)))
    columns = {"prompt_tokens": "in", "output_tokens": "out"}
    law = TraceLengths.model_validate(
        {"kind": "trace", "file": "log", "columns": columns}, context={"base_dir": tmp_path}
    )
    same = Empirical.model_validate(
        {"kind": "empirical", "file": "log", "prompt_column": "in", "output_column": "out"},
        context={"base_dir": tmp_path},
    )
    prompt, output = law.lengths_tokens(500, stream(3, "lengths"))
    assert np.array_equal(output, prompt * 2)
    assert set(prompt.tolist()) == set(range(1, 30))
    assert np.array_equal(same.lengths_tokens(500, stream(3, "lengths"))[0], prompt)
    arxiv = TraceLengths.model_validate(
        {"kind": "trace", "file": "vidur_arxiv.csv"}, context={"base_dir": DATA}
    )
    assert arxiv.lengths_tokens(9, stream(0, "lengths"))[0].min() > 100
