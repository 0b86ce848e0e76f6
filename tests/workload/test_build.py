import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvsim.errors import InputError
from kvsim.rng import stream
from kvsim.workload.build import build_requests
from kvsim.workload.parameters import Workload, file_digests
from kvsim.workload.requests import NO_LIMIT

SCENARIOS = Path(__file__).parents[2] / "scenarios"
CONVERSATIONS = "traces/AzureLLMInferenceTrace_conv.csv"
POISSON = {"kind": "poisson", "rate_per_s": 3.0}
GAMMA = {"kind": "gamma", "rate_per_s": 3.0, "burstiness": 0.5}
LOGNORMAL = {
    "kind": "lognormal",
    "prompt_mean_tokens": 300.0,
    "prompt_cv": 1.0,
    "output_mean_tokens": 100.0,
    "output_cv": 1.0,
}
FIXED = {"kind": "fixed", "prompt_tokens": 5, "output_tokens": 7}
TRACE = {"kind": "trace", "file": CONVERSATIONS, "rate_scale": 2.0}


def workload(arrivals=POISSON, lengths=LOGNORMAL, **rest) -> Workload:
    data = {"arrivals": arrivals, "lengths": lengths, **rest}
    return Workload.model_validate(data, context={"base_dir": SCENARIOS})


def test_the_same_seed_gives_the_same_requests():
    parameters = workload(num_requests=200, n=2)
    first, again = build_requests(parameters, 7), build_requests(parameters, 7)
    assert first.digest() == again.digest()
    assert first.digest() != build_requests(parameters, 8).digest()
    assert first.digest() != build_requests(parameters, 7, replication=1).digest()


@given(seed=st.integers(0, 2**64 - 1))
def test_streams_are_independent(seed):
    """Other arrivals leave the lengths alone, other lengths the arrivals, more samples both."""
    plain = build_requests(workload(num_requests=50), seed)
    other_arrivals = build_requests(workload(GAMMA, num_requests=50), seed)
    other_lengths = build_requests(workload(lengths=FIXED, num_requests=50), seed)
    samples = build_requests(workload(num_requests=50, n=3), seed)
    assert np.array_equal(plain.prompt_tokens, other_arrivals.prompt_tokens)
    assert np.array_equal(plain.output_tokens, other_arrivals.output_tokens)
    assert not np.array_equal(plain.arrival_ns, other_arrivals.arrival_ns)
    assert np.array_equal(plain.arrival_ns, other_lengths.arrival_ns)
    assert np.array_equal(plain.arrival_ns, samples.arrival_ns[::3])
    assert np.array_equal(plain.prompt_tokens, samples.prompt_tokens[::3])
    assert np.array_equal(plain.output_tokens, samples.output_tokens[::3])


def test_a_draw_from_one_stream_shifts_no_other():
    untouched = stream(3, "lengths").integers(0, 2**60, 10)
    other = stream(3, "arrivals")
    other.random(1000)
    assert np.array_equal(stream(3, "lengths").integers(0, 2**60, 10), untouched)
    assert not np.array_equal(stream(3, "arrivals").integers(0, 2**60, 10), untouched)


def test_samples_are_rows_of_one_group():
    table = build_requests(workload(num_requests=40, n=4), 0)
    assert len(table) == 160
    assert table.group.tolist() == [number for number in range(40) for _ in range(4)]
    for column in (table.arrival_ns, table.prompt_tokens):
        assert (column.reshape(40, 4) == column.reshape(40, 4)[:, :1]).all()
    outputs = table.output_tokens.reshape(40, 4)
    assert (outputs != outputs[:, :1]).any()


def test_a_trace_keeps_each_request_s_own_lengths():
    table = build_requests(workload(TRACE, {"kind": "trace"}), 0)
    lines = (SCENARIOS / CONVERSATIONS).read_text().splitlines()[1:]
    recorded = [tuple(map(int, line.split(",")[1:])) for line in lines]
    drawn = zip(table.prompt_tokens.tolist(), table.output_tokens.tolist(), strict=True)
    assert list(drawn) == recorded
    assert table.horizon_ns == table.arrival_ns[-1] + 1


def test_further_samples_of_recorded_requests_are_recorded_answers():
    table = build_requests(workload(TRACE, {"kind": "trace"}, num_requests=100, n=3), 0)
    outputs = table.output_tokens.reshape(100, 3)
    assert set(outputs[:, 1:].reshape(-1).tolist()) <= set(outputs[:, 0].tolist())


@pytest.mark.parametrize(
    ("max_tokens", "expected"), [(None, [NO_LIMIT] * 3), (64, [64] * 3), ("output", [7] * 3)]
)
def test_the_clients_limit(max_tokens, expected):
    table = build_requests(workload(lengths=FIXED, num_requests=3, max_tokens=max_tokens), 0)
    assert table.max_tokens.tolist() == expected
    assert table.output_tokens.tolist() == [7] * 3


def test_the_digest_sees_every_column():
    table = build_requests(workload(num_requests=5), 0)
    digests = {table.digest()}
    for name in ("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens", "group"):
        column = getattr(table, name)
        column[-1] += 1
        digests.add(table.digest())
        column[-1] -= 1
    assert len(digests) == 6
    assert table.digest() in digests


def test_files_are_known_by_their_content():
    parameters = workload(TRACE, {"kind": "trace"})
    content = (SCENARIOS / CONVERSATIONS).read_bytes()
    assert file_digests(parameters) == {CONVERSATIONS: hashlib.sha256(content).hexdigest()}
    assert file_digests(workload(num_requests=1)) == {}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"lengths": {"kind": "trace"}}, "need a file"),
        ({"max_tokens": 0}, "from 1 to"),
        ({"max_tokens": "outputs"}, "'output'"),
        ({"n": 0}, "greater than or equal to 1"),
        ({"duration_s": -1.0}, "greater than or equal to 0.000000001"),
        ({"duration_s": 1e-12}, "greater than or equal to 0.000000001"),
        ({"arrivals": {"kind": "poisson", "rate_per_s": -2.0}}, "greater than or equal"),
        ({"arrivals": {"kind": "poisson", "rate_per_s": float("nan")}}, "finite number"),
        ({"lengths": {**FIXED, "prompt_tokens": 10**30}}, "less than or equal"),
        ({"num_requests": 10**12}, "less than or equal"),
        ({"duration_s": float("inf")}, "finite number"),
    ],
)
def test_impossible_workloads_are_refused(change, complaint):
    with pytest.raises(ValidationError, match=complaint):
        workload(**{"num_requests": 3, **change})


def test_a_run_without_requests_is_refused():
    with pytest.raises(InputError, match="no request arrives"):
        build_requests(workload(duration_s=1e-6), 0)


@pytest.mark.parametrize(
    "ends",
    [
        {"num_requests": 10**8, "n": 2},
        {"duration_s": 4e7, "n": 1},
        {"duration_s": 1e5, "n": 1000},
    ],
)
def test_more_requests_than_a_run_holds_are_refused_before_any_is_drawn(ends):
    with pytest.raises(ValidationError, match="more than the 1e\\+08"):
        workload(**ends)
    fits = workload(num_requests=1)
    with pytest.raises(InputError, match="more than the 1e\\+08"):
        build_requests(fits.model_copy(update={"num_requests": None, **ends}), 0)


def test_samples_of_a_trace_count_too():
    assert workload(TRACE, n=1024).foreseen_requests == 0
    few = workload(TRACE, num_requests=10, n=1024)
    assert len(build_requests(few, 0)) == few.foreseen_requests == 10_240


def test_whichever_end_comes_first_decides_how_many_are_foreseen():
    assert workload(num_requests=50, duration_s=1e9, n=2).foreseen_requests == 100
    assert workload(num_requests=10**8, duration_s=10).foreseen_requests == 30


@pytest.mark.parametrize("limit", [0, -1, 10**9 + 1, 2**63])
def test_a_limit_that_no_client_can_mean_is_refused(limit):
    with pytest.raises(ValidationError, match="must be from 1 to"):
        workload(num_requests=1, max_tokens=limit)
