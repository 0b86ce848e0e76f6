"""Small runs in which everything happens: preemptions, swaps, rejections, timeouts, a cut."""

from dataclasses import replace

import pytest

from kvsim.rundir.write import run_into
from kvsim.scenario.load import load_scenario
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all

EVENTFUL = """\
name: eventful
model: meta-llama/Llama-3.1-8B-Instruct
gpu: l40s
engine: {max_model_len: 2048, max_num_seqs: 12, num_gpu_blocks_override: 140}
replicas: 2
routing: least_requests
workload:
  arrivals: {kind: gamma, rate_per_s: 20.0, burstiness: 0.3}
  lengths: {kind: lognormal, prompt_mean_tokens: 300, prompt_cv: 1.7,
            output_mean_tokens: 100, output_cv: 1.0}
  num_requests: 30
  n: 2
  timeout_s: 8
  retries: {max_retries: 1}
  max_tokens: 150
oversized_requests: reject
slo: {ttft_p99_s: 1.0}
variants:
  contiguous: {kv_cache: {kind: contiguous, reservation: oracle_pow2, placement: buddy}}
  swapping:
    scheduler: {kind: vllm_v0, preemption: swap}
    engine: {async_scheduling: false, enable_chunked_prefill: false}
    routing: shared_queue
"""
QUIET = """\
name: quiet
model: meta-llama/Llama-3.1-8B-Instruct
gpu: l40s
workload:
  arrivals: {kind: poisson, rate_per_s: 1.0}
  lengths: {kind: fixed, prompt_tokens: 200, output_tokens: 30}
  num_requests: 12
"""


def simulated(folder, text):
    (folder / "s.yaml").write_text(text)
    file = load_scenario(folder / "s.yaml")
    variants = resolve_all(file)
    (folder / "run").mkdir()
    return run_into(folder / "run", file, variants, draw_requests(file, variants)).run


@pytest.fixture(scope="session")
def eventful(tmp_path_factory):
    return simulated(tmp_path_factory.mktemp("eventful"), EVENTFUL)


@pytest.fixture(scope="session")
def cut(tmp_path_factory):
    """The same, stopped amid its work."""
    return simulated(tmp_path_factory.mktemp("cut"), EVENTFUL + "max_simulated_s: 3.0\n")


@pytest.fixture(scope="session")
def quiet(tmp_path_factory):
    """Its engine idles between requests."""
    return simulated(tmp_path_factory.mktemp("quiet"), QUIET)


@pytest.fixture(params=["eventful", "cut", "quiet"])
def run(request):
    return request.getfixturevalue(request.param)


HOSTILE = 'a"b\\c</script>{}\n\u202e\U0001f600 ' + "x" * 300


@pytest.fixture
def hostile(quiet):
    """A run whose names no file could hold; the formats must escape them all the same."""
    manifest = {**quiet.manifest, "scenario": HOSTILE}
    values = quiet.manifest["variants"]["base"]
    values = {**values, "model": {**values["model"], "name": HOSTILE}}
    manifest["variants"] = {HOSTILE: values, "other": values}
    return replace(
        quiet,
        manifest=manifest,
        summaries=dict.fromkeys((HOSTILE, "other"), quiet.summaries["base"]),
        tables=dict.fromkeys((HOSTILE, "other"), quiet.tables["base"]),
    )
