import copy
import dataclasses
import re

import pytest

from kvsim.metrics.prices import cost_in_words
from kvsim.report.headline import BOUND_AT, confidence, deployment, load, margin_bar, settings
from kvsim.scenario.load import load_scenario
from kvsim.scenario.resolve import resolve_all

SCENARIO = """name: small
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
engine: {dtype: bfloat16, max_model_len: 4096, max_num_seqs: 64}
workload:
  arrivals: {kind: poisson, rate_per_s: 2}
  lengths: {kind: fixed, prompt_tokens: 100, output_tokens: 10}
  num_requests: 10
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict:
    """What a manifest holds of a variant."""
    path = tmp_path_factory.mktemp("scenario") / "small.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return resolve_all(load_scenario(path))["base"].as_dict()


@pytest.fixture
def variant(synthetic, inputs):
    """A variant of which some inputs, by dotted paths, and figures are changed."""
    base = synthetic.run(names=("base",)).variants[0]

    def build(figures=(), **changes):
        changed, summary = copy.deepcopy(inputs), copy.deepcopy(base.summary)
        for path, value in changes.items():
            *parents, last = path.split("__")
            target = changed
            for parent in parents:
                target = target[parent]
            target[last] = value
        summary["figures"] |= dict(figures)
        return dataclasses.replace(base, inputs=changed, summary=summary)

    return build


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            "1 replica of 1 × h100_sxm, meta-llama/Llama-3.1-8B-Instruct in bfloat16, paged KV "
            "cache in bfloat16.",
        ),
        (
            {
                "replicas": 4,
                "engine__tensor_parallel_size": 2,
                "engine__pipeline_parallel_size": 3,
                "engine__quantization": "fp8",
                "engine__kv_cache_dtype": "fp8",
                "kv_cache__kind": "contiguous",
                "gpu__name": "my card",
            },
            "4 replicas of 6 × my card each (tensor parallel 2, pipeline parallel 3), "
            "meta-llama/Llama-3.1-8B-Instruct in fp8, contiguous KV cache in fp8.",
        ),
    ],
)
def test_the_deployment_is_told_in_words(variant, changes, said):
    assert deployment(variant(**changes)) == said


def test_a_long_name_of_a_model_is_cut(variant):
    assert len(deployment(variant(model__name="m" * 300))) < 200


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            "max_model_len 4,096, max_num_seqs 64, max_num_batched_tokens 8,192; else as vLLM has "
            "it.",
        ),
        (
            {
                "engine__gpu_memory_utilization": 0.8,
                "engine__enable_prefix_caching": False,
                "engine__long_prefill_token_threshold": 2048,
            },
            "max_model_len 4,096, max_num_seqs 64, max_num_batched_tokens 8,192; not vLLM's "
            "default: gpu_memory_utilization 0.8, enable_prefix_caching false, "
            "long_prefill_token_threshold 2,048.",
        ),
    ],
)
def test_flags_that_are_not_the_default_are_named(variant, changes, said):
    assert settings(variant(**changes)) == said


def test_inputs_that_are_not_known_are_not_told(synthetic):
    base = synthetic.run(names=("base",)).variants[0]
    bare = dataclasses.replace(base, inputs={})
    assert (deployment(bare), settings(bare)) == ("", "")


def test_the_load_is_that_of_the_request_table(variant):
    base = variant()
    said = load(base)
    figures, requests = base.summary["figures"], base.requests
    assert said.startswith(f"{figures['offered_requests_per_s']:.3g} requests/s offered, 300 req")
    assert "Poisson arrivals" in said
    mean_in, mean_out = re.search(r"average ([\d,]+) tokens in and ([\d,]+) out", said).groups()
    assert mean_in == f"{requests['prompt_tokens'].mean():,.0f}"
    assert mean_out == f"{requests['output_tokens'].mean():,.3g}"


@pytest.mark.parametrize(
    ("figures", "changes", "said"),
    [
        (
            {"usd_per_hour": None, "usd_per_million_output_tokens": None},
            {},
            "No price of this GPU is known: set price_usd_per_gpu_hour in the scenario.",
        ),
        (
            {"usd_per_hour": 8.0, "usd_per_million_output_tokens": None},
            {"price": None},
            "$8.00 an hour; no token was served, so there is no cost per token.",
        ),
        (
            {"usd_per_hour": 8.0, "usd_per_million_output_tokens": 0.456},
            {"price": {"usd_per_gpu_hour": 4.0, "low": 1.0, "high": 7.0, "as_of": "2024"}},
            "$8.00 an hour, $0.46 per million output tokens (at $4.00 a GPU hour as of 2024; "
            "offers range from $1.00 to $7.00).",
        ),
        (
            {"usd_per_hour": 8.0, "usd_per_million_output_tokens": 0.456},
            {"price": {"usd_per_gpu_hour": 4.0, "low": 4.0, "high": 4.0, "as_of": ""}},
            "$8.00 an hour, $0.46 per million output tokens (at $4.00 a GPU hour).",
        ),
    ],
)
def test_the_cost_is_told_or_how_to_give_a_price(variant, figures, changes, said):
    priced = variant(figures, **changes)
    assert cost_in_words(priced.summary, priced.inputs) == said


@pytest.mark.parametrize(
    ("met", "certain", "said"),
    [
        (True, True, "The verdict is sure as far as chance goes"),
        (False, True, "The verdict is sure as far as chance goes"),
        (True, False, "The verdict is not sure: the 95 % interval of a target reaches across"),
        (True, None, "How sure the verdict is can't be said: too few requests are independent"),
        (None, None, "TTFT mean lies within"),
    ],
)
def test_confidence_is_told_in_words(variant, met, certain, said):
    summary = variant().summary
    verdict = summary["verdict"] | {"met": met, "certain": certain}
    assert confidence(summary | {"verdict": verdict}).startswith(said)


def test_nothing_is_said_of_figures_whose_intervals_are_not_known(variant):
    summary = variant().summary | {"uncertainty": {}}
    assert "TTFT mean" in confidence(variant().summary)
    assert "So few requests" not in confidence(summary)


@pytest.mark.parametrize(
    ("target", "places"),
    [
        ({"value": None, "bound": 2.0, "low": None, "high": None}, None),
        ({"value": 1.0, "bound": 2.0, "low": 0.5, "high": 3.0}, (30.0, 15.0, 90.0, False)),
        ({"value": 2.0, "bound": 2.0, "low": None, "high": None}, (60.0, None, None, False)),
        ({"value": 1.0, "bound": 2.0, "low": 0.5, "high": None}, (30.0, 15.0, 100.0, False)),
        ({"value": 1.0, "bound": 2.0, "low": None, "high": 1.5}, (30.0, 0.0, 45.0, False)),
        ({"value": 200.0, "bound": 2.0, "low": 190.0, "high": 210.0}, (100.0, 100.0, 100.0, True)),
        ({"value": 0.0, "bound": 0.0, "low": 0.0, "high": 0.0}, (0.0, 0.0, 0.0, False)),
        ({"value": 0.1, "bound": 0.0, "low": 0.0, "high": 0.2}, (100.0, 0.0, 100.0, True)),
    ],
)
def test_a_margin_is_drawn_to_scale_up_to_its_end(target, places):
    bar = margin_bar(target)
    assert (bar and (bar.value, bar.low, bar.high, bar.beyond)) == places
    assert bar is None or bar.bound == BOUND_AT
