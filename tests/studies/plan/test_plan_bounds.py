"""Bounds are bounds: no step, no simulation and no feasible fleet is below them."""

import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.scenario.schema import BASE
from kvsim.statistics import mean_interval
from kvsim.studies.plan.bounds import demand_of, judging_slack, least_replicas, work_s
from kvsim.studies.plan.candidates import Options, candidates_of
from kvsim.studies.plan.step_floor import step_floors
from kvsim.studies.plan.trial import Load, judged
from kvsim.study.point import Point, make_ready, run_ready
from tests.studies.plan.deployments import AFFINE, scenario_file

KERNELS = "{kind: kernels}"
MODELS = {
    "dense": {},
    "tensor_parallel": {"engine.tensor_parallel_size": 2, "gpu": "a100_sxm"},
    "pipeline": {"engine.pipeline_parallel_size": 2},
    "experts": {"model": "Qwen/Qwen3-30B-A3B"},
    "latent": {"model": "deepseek-ai/DeepSeek-V2-Lite"},
    "windows": {"model": "openai/gpt-oss-20b"},
    "affine": {"cost": {"kind": "affine", "fixed_ns": 1e6, "per_token_ns": 900, "per_seq_ns": 7e4,
                        "per_context_token_ns": 21}},
}  # fmt: skip
LONG_TAIL = (
    "{arrivals: {kind: poisson, rate_per_s: 200}, num_requests: 600, lengths: {kind: lognormal, "
    "prompt_mean_tokens: 50, prompt_cv: 0.5, output_mean_tokens: 100, output_cv: 3, "
    "output_max_tokens: 2000}}"
)
SHARED = (
    "{arrivals: {kind: poisson, rate_per_s: 4}, num_requests: 60, prompts: {kind: sessions, "
    "turns_mean: 3, think_mean_s: 1, prefix_tokens: 200}, lengths: {kind: fixed, "
    "prompt_tokens: 90, output_tokens: 60}}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bounds")


@pytest.fixture(scope="module")
def variant_of(folder):
    @cache
    def variant(name):
        file = scenario_file(folder, cost=KERNELS)
        return make_ready(file, Point(MODELS[name])).variant

    return variant


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=60)
@given(data=st.data())
def test_no_step_is_below_the_floor(variant_of, name, data):
    variant = variant_of(name)
    engine, cost = variant.engine, variant.cost
    seqs = data.draw(st.integers(1, engine.max_num_seqs))
    decodes = data.draw(st.integers(0, seqs))
    contexts = [data.draw(st.integers(1, engine.max_model_len)) for _ in range(decodes)]
    room = engine.max_num_batched_tokens - decodes
    chunks = []
    for _ in range(seqs - decodes):
        new = data.draw(st.integers(1, max(room // (seqs - decodes), 1)))
        chunks.append((new, data.draw(st.integers(0, engine.max_model_len - new))))
    tokens = decodes + sum(new for new, _ in chunks)
    took_ns = cost.step_ns(tokens, seqs, decodes, sum(contexts), cost.chunks_ns(chunks))
    floors = list(step_floors(variant, data.draw(st.sampled_from([0.0, 30.0, 1000.0]))))
    assert floors
    for floor in floors:
        least_ns = floor.step_ns + floor.token_ns * tokens + floor.seq_ns * seqs
        least_ns += floor.context_ns * sum(contexts) - floor.start_ns * len(contexts)
        assert took_ns >= least_ns * (1 - 1e-9) - 2


@pytest.mark.parametrize("name", MODELS)
def test_no_step_of_a_grid_is_below_the_floor(variant_of, name):
    """Prefill alone at every corner of the price, decode alone at short and long contexts."""
    variant = variant_of(name)
    engine, cost = variant.engine, variant.cost
    shapes = [
        (tokens, seqs, 0, 0)
        for tokens in (1, 2, 16, 17, 100, 128, 129, 256, 511, 512)
        for seqs in range(1, engine.max_num_seqs + 1)
    ]
    shapes += [
        (seqs, seqs, seqs, seqs * context)
        for seqs in range(1, engine.max_num_seqs + 1)
        for context in (1, 2, 3, 5, 9, 16, 40, 100, 128, 130, 700, 1500, engine.max_model_len)
    ]
    took_ns = np.array([cost.step_ns(*shape, 0.0) for shape in shapes])
    tokens, seqs, decodes, contexts = np.array(shapes).T
    for mean_context in (0.0, 10.0, 300.0, 4000.0):
        for floor in step_floors(variant, mean_context):
            least_ns = floor.step_ns + floor.token_ns * tokens + floor.seq_ns * seqs
            least_ns = least_ns + floor.context_ns * contexts - floor.start_ns * decodes
            assert (took_ns >= least_ns * (1 - 1e-9) - 2).all()


def _work_and_busy(file, changes):
    ready = make_ready(file, Point(changes))
    variant, requests = ready.variant, ready.requests
    demand = demand_of(requests, variant.engine.max_model_len)
    context = demand.context_tokens.sum() / max(demand.answer_tokens.sum(), 1)
    work = work_s(variant, requests, demand, list(step_floors(variant, context)))
    steps = run_ready(ready).tables["steps"]
    return work.sum(), steps["duration_ns"].sum() / 1e9


CASES = {
    "affine": {},
    "kernels": {"cost": KERNELS},
    "full": {"engine": "{max_model_len: 4096, max_num_seqs: 16, num_gpu_blocks_override: 300}"},
    "full kernels": {
        "cost": KERNELS,
        "engine": "{max_model_len: 4096, max_num_seqs: 16, num_gpu_blocks_override: 300}",
    },
    "conversations": {"workload": SHARED},
    "samples": {
        "workload": "{arrivals: {kind: all_at_once}, num_requests: 12, n: 4, lengths: {kind: "
        "fixed, prompt_tokens: 300, output_tokens: 50}}"
    },
    "swapping": {
        "scheduler": "vllm_v0",
        "engine": "{max_model_len: 4096, max_num_seqs: 16, num_gpu_blocks_override: 300}",
    },
    "orca": {
        "scheduler": "orca",
        "kv_cache": "{kind: contiguous, reservation: max_model_len}",
        "engine": "{max_model_len: 4096, max_num_seqs: 16, max_num_batched_tokens: 4096}",
    },
    "contiguous": {"kv_cache": "{kind: contiguous, reservation: max_model_len}"},
    "two ranks": {
        "cost": KERNELS,
        "replicas": 2,
        "engine": "{max_model_len: 4096, max_num_seqs: 16, data_parallel_size: 2}",
    },
    "stages": {
        "cost": KERNELS,
        "engine": "{max_model_len: 4096, max_num_seqs: 16, pipeline_parallel_size: 2}",
    },
}


@pytest.mark.parametrize("case", CASES)
def test_engines_work_at_least_as_long_as_bound(folder, case):
    work_s_, busy_s = _work_and_busy(scenario_file(folder, **CASES[case]), {})
    assert 0 < work_s_ <= busy_s


def test_bound_is_met_where_batches_are_full(folder):
    """All requests at once and alike: nearly all steps decode as many as there may be."""
    workload = (
        "{arrivals: {kind: all_at_once}, num_requests: 160, lengths: {kind: fixed, "
        "prompt_tokens: 20, output_tokens: 200}}"
    )
    least_s, busy_s = _work_and_busy(scenario_file(folder, workload=workload), {})
    assert least_s == pytest.approx(busy_s, rel=0.06)


@pytest.mark.parametrize("seed", [1, 4, 5, 7, 9, 11, 12])  # each has a bound above one replica
def test_no_feasible_fleet_is_smaller_than_the_bound(folder, seed):
    drawn = random.Random(seed)
    workload = (
        f"{{arrivals: {{kind: gamma, rate_per_s: {drawn.choice([150, 300])}, burstiness: "
        f"{drawn.choice([0.3, 1, 4])}}}, num_requests: 800, lengths: {{kind: lognormal, "
        f"prompt_mean_tokens: {drawn.choice([50, 800])}, prompt_cv: 1, prompt_max_tokens: 1500, "
        f"output_mean_tokens: {drawn.choice([40, 120])}, output_cv: 0.7, output_max_tokens: 900}}}}"
    )
    slo = drawn.choice(
        ["{ttft_p90_s: 0.5, tpot_p90_s: 0.02}", "{e2e_p95_s: 3}", "{ttft_p95_s: 0.2}"]
    )
    file = scenario_file(folder, workload=workload, slo=slo, cost=AFFINE, seed=seed)
    load = Load(file, 1.0, 2)
    candidate = candidates_of(
        file, Options(gpus=["h100_sxm"], tensor_parallel_sizes=[1], weights=["auto"],
                      kv_cache_dtypes=["auto"])
    )[0]  # fmt: skip
    ready = make_ready(file, load.point(candidate, 1))
    least = least_replicas(ready.variant, ready.requests, 2)
    assert least > 1
    assert not any(judged(load, candidate, fewer).met for fewer in range(1, least))


def test_bound_finds_the_peak_of_a_curve(folder):
    """A minute of quiet before a rush takes nothing from what the rush needs."""

    def least(stages):
        workload = (
            f"{{arrivals: {{kind: stages, stages: [{stages}]}}, lengths: {{kind: fixed, "
            "prompt_tokens: 100, output_tokens: 20}}"
        )
        file = scenario_file(folder, workload=workload, slo="{e2e_p99_s: 1}")
        ready = make_ready(file, Point({}, BASE))
        return least_replicas(ready.variant, ready.requests, 1)

    busy = "{rate_per_s: 300, duration_s: 8}"
    quiet = "{rate_per_s: 1, duration_s: 28}"
    assert least(busy) > 1
    assert least(f"{quiet}, {quiet}, {busy}") >= least(busy) - 1


def test_the_dearest_requests_may_be_the_late_ones(folder):
    """Half of the requests may be late: then as many replicas must do for the other half."""

    def least(target):
        file = scenario_file(folder, workload=LONG_TAIL, slo=f"{{e2e_{target}_s: 2}}")
        ready = make_ready(file, Point())
        return least_replicas(ready.variant, ready.requests, 1)

    assert 1 < least("p90") < least("max")


def test_a_slo_without_deadlines_bounds_nothing(folder):
    file = scenario_file(folder, slo="{tpot_p90_s: 0.001}")
    ready = make_ready(file, Point())
    assert least_replicas(ready.variant, ready.requests, 3) == 1


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=12))
def test_no_draw_is_beyond_the_slack_of_an_interval(values):
    high = mean_interval(values).high
    assert max(values) <= judging_slack(len(values)) * high + 1e-9 * max(values)


def test_demand_ends_where_the_limit_or_the_context_does(folder):
    file = scenario_file(
        folder,
        workload="{arrivals: {kind: all_at_once}, num_requests: 3, max_tokens: 7, lengths: "
        "{kind: fixed, prompt_tokens: 10, output_tokens: 50}}",
    )
    requests = make_ready(file, Point()).requests
    demand = demand_of(requests, 4096)
    np.testing.assert_array_equal(demand.answer_tokens, [7, 7, 7])
    np.testing.assert_array_equal(demand.tokens, [16, 16, 16])
    np.testing.assert_array_equal(demand.context_tokens, [6 * 10 + 21] * 3)
    np.testing.assert_array_equal(demand_of(requests, 12).answer_tokens, [2, 2, 2])
    np.testing.assert_array_equal(demand_of(requests, 10).tokens, [0, 0, 0])
