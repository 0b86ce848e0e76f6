import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

import kvsim.workload.lengths
from kvsim.errors import InputError
from kvsim.policy import policies_in
from kvsim.rng import stream
from kvsim.workload.lengths.empirical import Empirical
from kvsim.workload.lengths.fixed import Fixed
from kvsim.workload.lengths.lognormal import Lognormal
from kvsim.workload.lengths.trace import TraceLengths
from kvsim.workload.lengths.uniform import Uniform
from kvsim.workload.traces.azure import HEADER


def rng(seed=0):
    return stream(seed, "lengths")


def lognormal(mean, cv, cap=None):
    return Lognormal(
        prompt_mean_tokens=mean,
        prompt_cv=cv,
        prompt_max_tokens=cap,
        output_mean_tokens=mean,
        output_cv=cv,
        output_max_tokens=cap,
    )


def empirical(folder: Path, text: str, **parameters) -> Empirical:
    (folder / "l.csv").write_text(text)
    data = {"kind": "empirical", "file": "l.csv", **parameters}
    return Empirical.model_validate(data, context={"base_dir": folder})


def test_these_are_all_the_laws():
    kinds = [policy.model_fields["kind"].default for policy in policies_in(kvsim.workload.lengths)]
    assert kinds == ["empirical", "fixed", "lognormal", "trace", "uniform"]


@given(
    law=st.one_of(
        st.builds(Fixed, prompt_tokens=st.integers(1, 10**6), output_tokens=st.integers(1, 10**6)),
        st.builds(lognormal, st.floats(0.1, 1e5), st.floats(0, 3), st.none() | st.integers(1, 99)),
        st.tuples(st.integers(1, 500), st.integers(0, 500)).map(
            lambda ends: Uniform(
                prompt_min_tokens=ends[0],
                prompt_max_tokens=sum(ends),
                output_min_tokens=ends[0],
                output_max_tokens=sum(ends),
            )
        ),
    ),
    count=st.integers(0, 300),
    seed=st.integers(0, 2**32),
)
def test_lengths_are_whole_positive_and_repeatable(law, count, seed):
    prompt, output = law.lengths_tokens(count, rng(seed))
    for lengths in (prompt, output):
        assert lengths.shape == (count,)
        assert lengths.dtype == np.int64
        assert (lengths >= 1).all()
    again = law.lengths_tokens(count, rng(seed))
    assert np.array_equal(prompt, again[0])
    assert np.array_equal(output, again[1])


def test_uniform_lengths_reach_both_ends_evenly():
    law = Uniform(
        prompt_min_tokens=3, prompt_max_tokens=7, output_min_tokens=10, output_max_tokens=19
    )
    prompt, output = law.lengths_tokens(20_000, rng())
    assert stats.chisquare(np.bincount(prompt, minlength=8)[3:]).pvalue > 1e-4
    assert stats.chisquare(np.bincount(output, minlength=20)[10:]).pvalue > 1e-4
    assert abs(stats.pearsonr(prompt, output).statistic) < 0.03


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.5])
def test_lognormal_lengths_have_their_mean_and_spread_on_twenty_seeds(cv):
    mean, count = 1000.0, 20_000
    sigma = math.sqrt(math.log(1 + cv**2))
    for seed in range(20):
        prompt, _ = lognormal(mean, cv).lengths_tokens(count, rng(seed))
        standard_error = mean * cv / math.sqrt(count) + 0.01
        assert abs(prompt.mean() - mean) < 5 * standard_error
        assert np.log(prompt).std() == pytest.approx(sigma, rel=0.03, abs=1e-6)


def test_lognormal_lengths_are_cut_at_their_cap():
    prompt, output = lognormal(100.0, 1.0, cap=150).lengths_tokens(1000, rng())
    assert prompt.max() == output.max() == 150


def test_empty_ranges_are_refused():
    with pytest.raises(ValidationError, match="prompt_min_tokens is above"):
        Uniform(prompt_min_tokens=5, prompt_max_tokens=4, output_min_tokens=1, output_max_tokens=1)


def test_empirical_rows_stay_together(tmp_path):
    law = empirical(
        tmp_path,
        "id,in,out\n1,10,100\n2,20,200\n3,30,300\n",
        prompt_column="in",
        output_column="out",
    )
    prompt, output = law.lengths_tokens(3000, rng())
    assert np.array_equal(output, prompt * 10)
    assert stats.chisquare(np.bincount(prompt)[10::10]).pvalue > 1e-4


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("prompt_tokens,output_tokens\n1,2\n1,x\n", 3, "whole numbers"),
        ("prompt_tokens,output_tokens\n0,2\n", 2, "from 1 to"),
        (f"prompt_tokens,output_tokens\n1,{'1' * 23}\n", 2, "from 1 to 100000000"),
        (f"prompt_tokens,output_tokens\n1,{'1' * 5000}\n", 2, "whole numbers"),
        ("prompt_tokens,output_tokens\n1,100000001\n", 2, "whole numbers"),
        ("prompt_tokens,output_tokens\n1,٣\n", 2, "whole numbers"),
        (f'prompt_tokens,output_tokens\n1,"{"1" * 200_000}"\n', 2, "whole numbers"),
        ("prompt_tokens,output_tokens\n5\n", 2, "bad row '5'"),
        ("prompt_tokens,answer\n5,5\n", 1, "no column 'output_tokens'; columns: prompt_tokens"),
        ("prompt_tokens,output_tokens\n", None, "holds no request"),
    ],
)
def test_a_bad_length_file_is_told_with_its_line(tmp_path, text, line, complaint):
    with pytest.raises(InputError, match=complaint) as caught:
        empirical(tmp_path, text).lengths_tokens(1, rng())
    assert caught.value.problems[0].line == line
    assert caught.value.problems[0].file == str(tmp_path / "l.csv")


def test_lengths_of_another_trace_are_drawn_as_rows(tmp_path):
    rows = [f"2023-11-16 18:15:{i:02}.0,{i + 1},{(i + 1) * 7}" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join([HEADER, *rows]))
    data = {"kind": "trace", "file": "t.csv"}
    law = TraceLengths.model_validate(data, context={"base_dir": tmp_path})
    prompt, output = law.lengths_tokens(500, rng())
    assert np.array_equal(output, prompt * 7)
    assert len(set(prompt.tolist())) == 20


def test_lengths_without_a_file_can_not_be_drawn():
    with pytest.raises(InputError, match="names no file"):
        TraceLengths().lengths_tokens(1, rng())
