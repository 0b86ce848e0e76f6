"""Which changes are worth a simulation: told from what a scenario says, and what its run shows."""

from dataclasses import replace

import numpy as np
import pytest

from kvsim.errors import InputError
from kvsim.gpu import CustomGpu, gpu_names, load_gpu
from kvsim.scenario.change import changed
from kvsim.scenario.resolve import resolve_all
from kvsim.studies.advice.candidates import Change, Declined, Evidence, candidates_of, next_gpu
from kvsim.studies.advice.candidates import settings_of as settings
from kvsim.study.point import Point, make_ready
from kvsim.workload.requests import Segments
from tests.studies.plan.deployments import scenario_file

KERNELS = "{kind: kernels}"
QUIET = {
    "waiting_fraction": 0.0,
    "kv_usage_mean": 0.0,
    "running_seqs_max": 10,
    "preemptions_total": 0,
}


def evidence(folder, waits=None, bound=None, parts=None, limited_by="", figures=None, **sections):
    """Return evidence: shares of the busy time in which the head of the queue lacked something."""
    file = scenario_file(folder, **sections)
    ready = make_ready(file, Point())
    waits, waiting = waits or {}, sum((waits or {}).values())
    limits = {
        "waiting_share": {name: share / waiting for name, share in waits.items()},
        "bound_share": bound or {},
        "component_share": parts or {},
    }
    known = {**QUIET, "waiting_fraction": waiting, **(figures or {})}
    return Evidence(ready.variant, ready.requests, {"limits": limits, "figures": known}, limited_by)


def by_key(found):
    changes, declined = candidates_of(found)
    return {one.key: one for one in (*changes, *declined)}


def test_what_requests_wait_for_is_what_is_enlarged(tmp_path):
    found = by_key(evidence(tmp_path, waits={"sequence_slot": 0.4, "token_budget": 0.1}))
    assert found["max_num_seqs"].changes == {"engine.max_num_seqs": 32}
    assert found["max_num_seqs"].promise == pytest.approx(0.4)
    assert found["max_num_batched_tokens"].changes == {"engine.max_num_batched_tokens": 1024}
    assert found["max_num_batched_tokens"].promise == pytest.approx(0.1)


def test_what_nobody_waits_for_is_not_tried(tmp_path):
    found = by_key(evidence(tmp_path, waits={"kv_blocks": 0.3}))
    assert isinstance(found["max_num_seqs"], Declined)
    assert isinstance(found["max_num_batched_tokens"], Declined)
    assert found["fp8_kv_cache"].promise == pytest.approx(0.3)


def test_the_setting_that_binds_is_the_one_that_is_doubled(tmp_path):
    engine = "{max_model_len: 4096, max_num_seqs: 64, max_num_active_seqs: 8}"
    found = by_key(evidence(tmp_path, waits={"active_sequence_slot": 0.2}, engine=engine))
    assert found["max_num_seqs"].changes == {"engine.max_num_active_seqs": 16}
    assert found["max_num_seqs"].words == "max_num_active_seqs 16"


def test_the_most_promising_comes_first(tmp_path):
    changes, _ = candidates_of(
        evidence(
            tmp_path,
            waits={"sequence_slot": 0.9, "token_budget": 0.02},
            bound={"hbm": 0.3, "host": 0.7},
            cost=KERNELS,
        )
    )
    promises = [change.promise for change in changes]
    assert promises == sorted(promises, reverse=True)
    assert changes[0].key == "max_num_seqs"


def test_every_rule_tells_of_a_scenario_that_is_as_good_as_it_gets(tmp_path):
    """All is on, the GPU is the fastest there is: each change that's left has its reason."""
    fastest = max(gpu_names(), key=lambda name: load_gpu(name).hbm_bytes_per_s)
    engine = "{kv_cache_dtype: fp8, max_model_len: 4096, max_num_seqs: 16}"
    found = by_key(
        evidence(
            tmp_path, cost=KERNELS, gpu=fastest, engine=engine, figures={"running_seqs_max": 30}
        )
    )
    declined = {key: one.why for key, one in found.items() if isinstance(one, Declined)}
    assert declined["fp8_kv_cache"] == "it is in fp8"
    assert declined["prefix_caching"] == "it is on"
    assert declined["concurrency_cap"] == "no more can run now"
    assert fastest in declined["gpu"]
    assert {key for key, one in found.items() if isinstance(one, Change)} == {"replica"}


def test_a_law_of_step_times_is_not_stretched_to_other_gpus(tmp_path):
    found = by_key(evidence(tmp_path, waits={"kv_blocks": 0.9}))
    assert isinstance(found["tensor_parallel"], Declined)
    assert isinstance(found["gpu"], Declined)
    assert isinstance(found["fp8_kv_cache"], Change)  # the space is the same whatever steps take


@pytest.mark.parametrize(
    ("limited_by", "preemptions", "is_tried"),
    [
        ("tpot_p95_s", 0, True),
        ("chat: e2e_p99_s", 0, True),
        ("ttft_p95_s", 0, False),
        ("ttft_p95_s", 3, True),
        ("steady queue", 0, False),
    ],
)
def test_a_cap_is_tried_where_large_batches_or_preemptions_hurt(
    tmp_path, limited_by, preemptions, is_tried
):
    figures = {"preemptions_total": preemptions}
    found = by_key(evidence(tmp_path, limited_by=limited_by, figures=figures))["concurrency_cap"]
    assert isinstance(found, Change) is is_tried
    assert found.words == "at most 8 sequences"


def test_paged_instead_of_contiguous(tmp_path):
    found = by_key(evidence(tmp_path, kv_cache="{kind: contiguous}"))
    assert found["paged"].changes == {"kv_cache": {"kind": "paged"}}
    assert isinstance(found["prefix_caching"], Declined)
    assert "paged" not in by_key(evidence(tmp_path))


OFF = "{max_model_len: 4096, max_num_seqs: 16, enable_prefix_caching: false}"


def test_prefix_caching_is_tried_where_prompts_are_known_to_begin_alike(tmp_path):
    plain = evidence(tmp_path, engine=OFF)
    assert isinstance(by_key(plain)["prefix_caching"], Declined)
    count = len(plain.requests)
    first = np.arange(count + 1)
    tokens = np.full(count, 100)
    for seeds, alike in ((np.arange(count), False), (np.arange(count) // 2, True)):
        segments = Segments(first, seeds, tokens, -1 - np.arange(count))
        told = replace(plain, requests=replace(plain.requests, segments=segments))
        assert isinstance(by_key(told)["prefix_caching"], Change) is alike


def test_samples_of_a_request_share_their_prompt(tmp_path):
    plain = evidence(tmp_path, engine=OFF)
    group = np.arange(len(plain.requests)) // 2
    told = replace(plain, requests=replace(plain.requests, group=group))
    assert by_key(told)["prefix_caching"].changes == {"engine.enable_prefix_caching": True}


def test_what_was_measured_of_one_layout_is_left_out_of_another(tmp_path):
    engine = "{max_model_len: 4096, max_num_seqs: 16, num_gpu_blocks_override: 9000}"
    bound = {"hbm": 1.0}
    found = by_key(evidence(tmp_path, cost=KERNELS, engine=engine, bound=bound))
    for key in ("tensor_parallel", "gpu"):
        assert found[key].changes["engine.num_gpu_blocks_override"] is None
        assert "computed" in found[key].caveat
    assert "engine.num_gpu_blocks_override" not in found["replica"].changes


def test_another_gpu_has_its_own_price(tmp_path):
    bound = {"hbm": 1.0}
    sections = {"cost": KERNELS, "price_usd_per_gpu_hour": 9.0}
    found = evidence(tmp_path, bound=bound, **sections)
    change = by_key(found)["gpu"]
    alone = changed(scenario_file(tmp_path, **sections), change.changes)
    price = resolve_all(alone)["base"].price
    assert price is None or price.usd_per_gpu_hour != 9.0


@pytest.mark.parametrize("name", gpu_names())
def test_the_next_gpu_lacks_nothing(name):
    gpu, following = load_gpu(name), next_gpu(load_gpu(name))
    if following is None:
        return
    assert following.hbm_bytes_per_s > gpu.hbm_bytes_per_s
    assert following.hbm_bytes >= gpu.hbm_bytes
    assert following.bf16_flop_per_s >= gpu.bf16_flop_per_s


def test_the_next_gpu_is_the_nearest():
    assert next_gpu(load_gpu("h100_sxm")).name == "h200_sxm"
    own = CustomGpu(name="mine", hbm_bytes=1e9, hbm_bytes_per_s=1e9, bf16_flop_per_s=1e9).spec()
    assert next_gpu(own).hbm_bytes_per_s == min(
        load_gpu(name).hbm_bytes_per_s for name in ("l40s", "rtx4090", "a100_sxm")
    )


def test_all_changes_are_understood(tmp_path):
    """Every change reads as a scenario would; what the model can't do is told by name."""
    sections = {"cost": KERNELS, "engine": OFF}
    lacks = dict.fromkeys(("sequence_slot", "token_budget", "kv_blocks"), 0.1)
    found = evidence(tmp_path, waits=lacks, limited_by="tpot_p95_s", bound={"hbm": 1}, **sections)
    file = scenario_file(tmp_path, **sections)
    changes, _ = candidates_of(found)
    assert len(changes) >= 6
    for change in changes:
        resolve_all(changed(file, change.changes))


def test_tensor_parallelism_beyond_a_node_is_refused_by_name(tmp_path):
    engine = "{max_model_len: 4096, tensor_parallel_size: 8}"
    sections = {"cost": KERNELS, "engine": engine}
    change = by_key(evidence(tmp_path, bound={"hbm": 1.0}, **sections))["tensor_parallel"]
    with pytest.raises(InputError, match="node"):
        resolve_all(changed(scenario_file(tmp_path, **sections), change.changes))


def test_settings_read_as_in_a_scenario():
    changes = {
        "engine.enable_prefix_caching": True,
        "kv_cache": {"kind": "paged"},
        "engine.kv_startup_line": None,
        "replicas": 2,
    }
    assert list(settings(changes)) == [
        "engine.enable_prefix_caching: true",
        "kv_cache: paged",
        "replicas: 2",
    ]
