"""Results as vllm bench serve, guidellm, aiperf and genai-perf write them, and broken ones."""

import copy
import gzip
import json

import numpy as np
import pytest

from kvsim.calibrate.files import read_results
from kvsim.calibrate.traffic import requests_of
from kvsim.errors import InputError
from tests.calibrate.benchmarks import written

VLLM = {
    "date": "20260105-101010",
    "endpoint_type": "vllm",
    "backend": "vllm",
    "label": None,
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 40,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 4,
    "duration": 21.5,
    "completed": 40,
    "failed": 0,
    "total_input_tokens": 40960,
    "total_output_tokens": 5120,
    "request_throughput": 1.86,
    "mean_ttft_ms": 61.2,
    "median_ttft_ms": 60.0,
    "p99_ttft_ms": 120.0,
    "mean_tpot_ms": 8.4,
    "mean_itl_ms": 8.3,
    "mean_e2el_ms": 1127.0,
}
DETAILS = {
    "input_lens": [100, 200, 300],
    "output_lens": [10, 0, 30],
    "start_times": [7.5, 7.0, 7.25],
    "ttfts": [0.05, 0.0, 0.06],
    "itls": [[0.008] * 9, [], [0.008] * 29],
    "errors": ["", "timeout", ""],
}


def _statuses(mean):
    """A distribution of guidellm: of answered, broken and unfinished requests, and of all."""
    return {"successful": {"mean": mean, "median": mean, "count": 2}, "errored": {"mean": 0.0}}


GUIDELLM = {
    "metadata": {"version": 1, "guidellm_version": "0.5.0"},
    "args": {"target": "http://localhost:8000"},
    "benchmarks": [
        {
            "type_": "generative_benchmark",
            "config": {
                "strategy": {"type_": "concurrent", "streams": 16},
                "backend": {"type_": "openai_http", "model": "meta-llama/Llama-3.1-8B-Instruct"},
            },
            "metrics": {
                "request_totals": {"successful": 2, "errored": 1, "incomplete": 3, "total": 6},
                "request_latency": _statuses(1.25),
                "time_to_first_token_ms": _statuses(52.0),
                "inter_token_latency_ms": _statuses(9.1),
                "time_per_output_token_ms": _statuses(9.5),
                "prompt_token_count": _statuses(512.0),
                "output_token_count": _statuses(128.0),
            },
            "requests": {
                "successful": [
                    {"prompt_tokens": 500, "output_tokens": 120},
                    {"prompt_tokens": 524, "output_tokens": 136},
                ],
                "errored": [{"error": "timeout"}],
                "incomplete": [],
            },
        }
    ],
}
AIPERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 13.1},
    "request_latency": {"unit": "ms", "avg": 1550.0, "p50": 1500.0, "std": 20.0},
    "time_to_first_token": {"unit": "ms", "avg": 58.7, "p50": 57.5},
    "inter_token_latency": {"unit": "ms", "avg": 15.0},
    "output_sequence_length": {"unit": "tokens", "avg": 99.6},
    "input_sequence_length": {"unit": "tokens", "avg": 550.2},
    "request_count": {"unit": "requests", "avg": 200.0},
    "error_request_count": None,
    "input_config": {
        "endpoint": {"model_names": ["meta-llama/Llama-3.1-8B-Instruct"], "streaming": True},
        "loadgen": {"concurrency": 20, "request_rate_mode": "concurrency_burst"},
    },
}
GENAI_PERF = {
    "request_latency": {"unit": "ns", "avg": 1.55e9},
    "time_to_first_token": {"unit": "ns", "avg": 58.7e6},
    "inter_token_latency": {"unit": "ns", "avg": 15e6},
    "output_sequence_length": {"unit": "tokens", "avg": 100.0},
    "input_sequence_length": {"unit": "tokens", "avg": 550.0},
    "input_config": {"model": ["served/name"], "concurrency": [12], "request_rate": None},
}


def _read(tmp_path, document):
    return read_results([written(tmp_path / "result.json", document)])


def _changed(document, path, value):
    """Return a deep copy with another value at a path; None takes the key away."""
    document = copy.deepcopy(document)
    node = document
    *above, last = path
    for step in above:
        node = node[step]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return document


def test_a_summary_of_vllm_bench_has_means(tmp_path):
    (result,) = _read(tmp_path, VLLM)
    assert (result.name, result.model) == ("result.json", "meta-llama/Llama-3.1-8B-Instruct")
    assert result.load == "concurrency 4"
    assert result.prompt_tokens.tolist() == [1024] * 40
    assert result.output_tokens.tolist() == [128] * 40
    assert result.measured_ms == {
        "ttft_mean": 61.2,
        "tpot_mean": 8.4,
        "itl_mean_reported": 8.3,
        "e2e_mean": 1127.0,
    }


def test_details_of_vllm_bench_keep_each_request_that_was_answered(tmp_path):
    open_loop = {"request_rate": 5.0, "max_concurrency": None}
    (result,) = _read(tmp_path, {**VLLM, **DETAILS, **open_loop})
    assert result.prompt_tokens.tolist() == [100, 300]
    assert result.output_tokens.tolist() == [10, 30]
    requests = requests_of(result, seed=0)
    assert requests.arrival_ns.tolist() == [0, 250_000_000]
    assert requests.prompt_tokens.tolist() == [300, 100]  # in the order in which they were sent
    assert requests.max_tokens.tolist() == [30, 10]


def test_a_limit_of_requests_in_flight_leaves_sending_to_the_server(tmp_path):
    (result,) = _read(tmp_path, {**VLLM, **DETAILS})
    requests = requests_of(result, seed=0)
    assert requests.arrival_ns.tolist() == [0, 0]
    assert len(requests.gates[0].opens_ns) == 4


def test_results_appended_to_one_file_are_several(tmp_path):
    path = tmp_path / "all.json.gz"
    lines = "\n".join(json.dumps({**VLLM, "max_concurrency": c}) for c in (1, 8))
    path.write_bytes(gzip.compress(lines.encode()))
    first, second = read_results([path])
    assert (first.name, second.name) == ("all.json.gz#1", "all.json.gz#2")
    assert second.max_concurrency == 8


def test_files_of_one_name_are_told_by_their_folders(tmp_path):
    paths = []
    for name in ("c1", "c8"):
        (tmp_path / name).mkdir()
        paths.append(written(tmp_path / name / "profile_export_aiperf.json", AIPERF))
    assert [result.name for result in read_results(paths)] == [str(path) for path in paths]


def test_guidellm_has_its_itl_and_no_tpot(tmp_path):
    (result,) = _read(tmp_path, GUIDELLM)
    assert (result.max_concurrency, result.rate_per_s) == (16, None)
    assert result.prompt_tokens.tolist() == [500, 524]
    assert result.measured_ms == {
        "ttft_mean": 52.0,
        "itl_mean_reported": 9.1,
        "e2e_mean": 1250.0,
    }
    assert (result.failed, result.model) == (1, "meta-llama/Llama-3.1-8B-Instruct")


@pytest.mark.parametrize(
    ("strategy", "load", "burstiness"),
    [
        ({"type_": "synchronous"}, "concurrency 1", 1.0),
        ({"type_": "throughput", "max_concurrency": 256}, "concurrency 256", 1.0),
        ({"type_": "throughput"}, "all at once", 1.0),
        ({"type_": "constant", "rate": 2.5}, "2.5 requests/s", None),
        ({"type_": "poisson", "rate": 4}, "4 requests/s", 1.0),
    ],
)
@pytest.mark.parametrize("parent", ["config", "args", "scheduler"])
def test_strategies_of_guidellm(tmp_path, parent, strategy, load, burstiness):
    document = copy.deepcopy(GUIDELLM)
    del document["benchmarks"][0]["config"]
    document["benchmarks"][0][parent] = {"strategy": strategy}
    (result,) = _read(tmp_path, document)
    assert (result.load, result.burstiness) == (load, burstiness)


def test_a_sample_of_guidellms_requests_gives_way_to_means(tmp_path):
    totals = ("benchmarks", 0, "metrics", "request_totals", "successful")
    (result,) = _read(tmp_path, _changed(GUIDELLM, totals, 50))
    assert result.prompt_tokens.tolist() == [512] * 50
    assert result.output_tokens.tolist() == [128] * 50


def test_aiperf_calls_tpot_itl(tmp_path):
    (result,) = _read(tmp_path, AIPERF)
    assert result.measured_ms == {"ttft_mean": 58.7, "tpot_mean": 15.0, "e2e_mean": 1550.0}
    assert (result.max_concurrency, len(result), result.failed) == (20, 200, 0)
    assert (result.prompt_tokens[0], result.output_tokens[0]) == (550, 100)


def test_aiperf_at_a_rate(tmp_path):
    load = {"request_rate": 3.0, "request_rate_mode": "constant"}
    (result,) = _read(tmp_path, _changed(AIPERF, ("input_config", "loadgen"), load))
    assert (result.rate_per_s, result.max_concurrency, result.burstiness) == (3.0, None, None)
    gaps_ns = np.diff(requests_of(result, seed=0).arrival_ns)
    assert np.abs(gaps_ns - 1e9 / 3).max() <= 1


def test_genai_perf_counts_in_nanoseconds(tmp_path):
    (result,) = _read(tmp_path, GENAI_PERF)
    assert result.measured_ms == pytest.approx(
        {"ttft_mean": 58.7, "tpot_mean": 15.0, "e2e_mean": 1550.0}
    )
    assert (result.max_concurrency, len(result), result.model) == (12, 120, "served/name")
    nested = {"perf_analyzer": {"stimulus": {"concurrency": 32}}}
    (result,) = _read(tmp_path, _changed(GENAI_PERF, ("input_config",), nested))
    assert result.max_concurrency == 32


def test_answers_that_were_not_streamed_have_no_first_token(tmp_path):
    document = _changed(AIPERF, ("time_to_first_token", "avg"), 1550.0)
    document = _changed(document, ("inter_token_latency", "avg"), 0.0)
    (result,) = _read(tmp_path, document)
    assert result.measured_ms == {"e2e_mean": 1550.0}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (_changed(VLLM, ("total_input_tokens",), None), "total_input_tokens is missing"),
        (_changed(VLLM, ("completed",), 0), "completed must be above 0"),
        (_changed(VLLM, ("request_rate",), "fast"), "request_rate is no number: 'fast'"),
        ({**VLLM, **DETAILS, "output_lens": [1]}, "input_lens, output_lens, start_times differ"),
        ({**VLLM, **DETAILS, "input_lens": ["a", 1, 2]}, "input_lens must be a list of numbers"),
        (
            {**VLLM, "mean_ttft_ms": 0, "mean_tpot_ms": 0, "mean_itl_ms": 0, "mean_e2el_ms": 0},
            "holds no mean TTFT",
        ),
        (
            _changed(GUIDELLM, ("benchmarks", 0, "config", "strategy", "type_"), "bursts"),
            "benchmarks.0: has the strategy 'bursts'",
        ),
        (_changed(GUIDELLM, ("benchmarks", 0, "config"), None), "benchmarks.0: has no config"),
        (_changed(GUIDELLM, ("benchmarks",), []), "holds no result"),
        (_changed(AIPERF, ("request_latency", "unit"), "min"), "request_latency is in 'min'"),
        (_changed(AIPERF, ("input_config",), None), "neither concurrency nor request_rate"),
        (_changed(AIPERF, ("input_sequence_length",), None), "avg is missing"),
        ({"experiments": [], "version": "2.50"}, "give profile_export_genai_perf.json"),
        ({"metadata": {}, "metrics": {}, "error": None}, "give profile_export_aiperf.json"),
        ([VLLM], "must hold a JSON object"),
        ({}, "none of the formats"),
    ],
)
def test_broken_results_are_refused_by_name(tmp_path, document, message):
    with pytest.raises(InputError) as caught:
        _read(tmp_path, document)
    assert str(caught.value).startswith(str(tmp_path / "result.json"))
    assert message in str(caught.value)


def test_problems_of_all_files_are_told(tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text('{\n "a": }')
    other = written(tmp_path / "other.json", {})
    with pytest.raises(InputError) as caught:
        read_results([broken, other, tmp_path / "none.json", other])
    places = [(problem.file, problem.line) for problem in caught.value.problems]
    assert places[0] == (str(broken), 2)
    assert [problem.message.split(":")[0] for problem in caught.value.problems][2:] == [
        "can't be read",
        "is none of the formats that kvsim knows (JSON of `vllm bench serve --save-result`, "
        "JSON report of guidellm, JSON summary of aiperf or genai-perf)",
        "is named twice",
    ]
