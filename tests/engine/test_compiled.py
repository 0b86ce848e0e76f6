"""The compiled loop gives the rows of the replica's, bit for bit, wherever it is used."""

import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import kvsim.engine.compiled
from kvsim.cost.front_end import FrontEnd
from kvsim.engine import recorder
from kvsim.engine.allocators import PoolShape
from kvsim.engine.allocators.paged import Paged
from kvsim.engine.cluster import Cluster
from kvsim.engine.compiled import __main__ as ahead
from kvsim.engine.compiled import machine_code, pays, price, state
from kvsim.engine.compiled import run as compiled
from kvsim.engine.compiled.loop import advance
from kvsim.engine.fleet import Fleet
from kvsim.engine.ranks import to_ranks
from kvsim.engine.routers.least_requests import LeastRequests
from kvsim.engine.routers.least_tokens import LeastTokens
from kvsim.engine.routers.power_of_two import PowerOfTwo
from kvsim.engine.routers.prefix_aware import PrefixAware
from kvsim.engine.routers.random import Random
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.engine.routers.shared_queue import SharedQueue
from kvsim.engine.schedulers.vllm import Vllm
from kvsim.policy import Policy
from kvsim.rundir.write import run_into
from kvsim.scenario.load import load_scenario
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve, resolve_all
from kvsim.scenario.schema import Scenario
from kvsim.simulate import fleet_of
from kvsim.study.point import Point, make_ready
from kvsim.tables import TABLES
from tests.engine.harness import run, segments_of
from tests.engine.test_reference import random_scenario


def fleet_with(config, cost, replicas=1, routing=None, front_end=None):
    return Fleet(
        config,
        replicas,
        (routing or RoundRobin()).build(np.random.default_rng(0)),
        lambda oracle: Paged().build(PoolShape.of(config, oracle)),
        cost,
        build_scheduler=Vllm().build,
        front_end=front_end,
    )


def run_compiled(requests, config, cost, loop=None, **options):
    fleet = fleet_with(config, cost, **options)
    assert compiled.is_plain(requests, fleet)
    chunks = {name: [np.zeros((0, len(TABLES[name])), dtype=np.int64)] for name in TABLES}
    ran = compiled.run_compiled(
        requests,
        fleet,
        loop or machine_code.load(),
        lambda name, rows: chunks[name].append(rows),
    )
    if ran is None:
        return None
    totals, _ = ran
    return {name: np.concatenate(rows) for name, rows in chunks.items()}, totals


def assert_same(requests, config, cost, **options):
    expected = run(requests, config, cost, **options)
    tables, totals = run_compiled(requests, config, cost, **options)
    for name, columns in expected.tables.items():
        for place, (column, values) in enumerate(columns.items()):
            found = tables[name][:, place]
            assert np.array_equal(values, found), (name, column, values, found)
    assert (totals.end_ns, totals.steps) == (expected.totals.end_ns, expected.totals.steps)
    return tables


def plain(seed):
    """A random scenario of one replica, as the compiled loop can run it."""
    requests, config, cost, _ = random_scenario(seed)
    config = replace(
        config,
        enable_prefix_caching=False,
        scheduling_policy="fcfs",
        kv_groups=(),
        long_prefill_token_threshold_adaptive=False,
        prefill_schedule_interval=1,
        scheduler_reserve_full_isl=True,
    )
    return replace(requests, segments=None, priority=None), config, cost


@pytest.mark.parametrize("group", range(10))
def test_one_replica(group):
    for seed in range(group * 30, group * 30 + 30):
        assert_same(*plain(seed))


class Ranked(NamedTuple):
    """A router whose replicas have several engines."""

    routing: Policy
    ranks: int

    def build(self, rng):
        return to_ranks(self.routing.build(rng), self.ranks)


ROUTERS = (RoundRobin(), Random(), LeastRequests(), LeastTokens(), PowerOfTwo())


@pytest.mark.parametrize("group", range(3 * len(ROUTERS)))
def test_several_replicas(group, monkeypatch):
    """Rows of all replicas stand in the order in which the cluster writes them, chunk by chunk."""
    for seed in range(group * 10, group * 10 + 10):
        rng = np.random.default_rng(seed)
        monkeypatch.setattr(recorder, "STEPS_IN_A_CHUNK", int(rng.choice([1, 10, 30, 200])))
        monkeypatch.setattr(recorder, "REQUESTS_IN_A_CHUNK", int(rng.choice([1, 3, 20, 1000])))
        monkeypatch.setattr(state, "FIRST_ROWS", state.LONGEST_STRETCH)  # it fills up
        requests, config, cost = plain(seed)
        front_end = FrontEnd(per_prompt_token_s=5e-9, request_s=3e-9, busy_s=1e-9)
        ranks = int(rng.choice([1, 1, 2]))
        assert_same(
            requests,
            config,
            cost,
            replicas=int(rng.integers(1, 5)) * ranks,
            routing=Ranked(ROUTERS[group // 3], ranks),
            front_end=front_end if rng.integers(2) else None,
        )


def test_rows_leave_and_progress_is_told_as_it_goes(monkeypatch):
    """A fleet whose router looks at loads holds no more rows than a chunk, and what is in flight"""
    monkeypatch.setattr(recorder, "STEPS_IN_A_CHUNK", 64)
    requests, config, cost = plain(1)
    chunks, told = [], []
    fleet = fleet_with(config, cost, 4, LeastRequests())
    compiled.run_compiled(
        requests,
        fleet,
        machine_code.load(),
        lambda table, rows: chunks.append(len(rows)) if table == "steps" else None,
        lambda now_ns, left: told.append((now_ns, left)),
    )
    assert len(chunks) > len(told) > 3
    assert told == sorted(told)
    longest_answer = int(requests.output_tokens.max())
    assert max(chunks) <= 64 + 4 * longest_answer


def test_a_prefix_cache_that_finds_nothing():
    """As long as nobody is preempted: he would find his own prefix."""
    plain_runs = 0
    for seed in range(300):
        requests, config, cost = plain(seed)
        more = {} if seed % 3 else {"num_gpu_blocks": 40 * config.num_gpu_blocks}
        config = replace(config, enable_prefix_caching=True, **more)
        alone = replace(requests, group=np.arange(len(requests)))
        if run_compiled(alone, config, cost, replicas=1 + seed % 2, routing=Random()) is not None:
            assert_same(alone, config, cost, replicas=1 + seed % 2, routing=Random())
            plain_runs += 1
    assert 100 < plain_runs < 300


@pytest.mark.prove
def test_many_more():
    for seed in range(300, 4_000):
        assert_same(*plain(seed), replicas=1 + seed % 4, routing=ROUTERS[seed % 5])


SCENARIOS = Path(__file__).parents[2] / "scenarios"


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("seqs", [16, 256])
def test_measured_kernels(async_scheduling, seqs):
    """The chat deployment at a load that it can't take with few sequences, with its front end."""
    changes = {
        "workload.num_requests": 400,
        "workload.arrivals.rate_scale": 4.0,
        "engine.max_num_seqs": seqs,
        "engine.async_scheduling": async_scheduling,
        "replicas": 2,
    }
    ready = make_ready(load_scenario(SCENARIOS / "chat.yaml"), Point(changes))
    one, other = ({table: [] for table in TABLES} for _ in range(2))
    Cluster(ready.requests, fleet_of(ready.variant), lambda t, rows: one[t].append(rows)).run()
    loop = machine_code.load()
    compiled.run_compiled(
        ready.requests, fleet_of(ready.variant), loop, lambda t, rows: other[t].append(rows)
    )
    assert len(one["steps"])
    for table, chunks in one.items():
        assert np.array_equal(np.vstack(chunks or [[]]), np.vstack(other[table] or [[]])), table


MODELS = [
    ("meta-llama/Llama-3.1-8B-Instruct", "h100_sxm", 1),
    ("meta-llama/Llama-3.1-70B-Instruct", "a100_sxm", 4),
    ("openai/gpt-oss-20b", "h100_sxm", 1),
    ("deepseek-ai/DeepSeek-V3", "h200_sxm", 8),
]


@pytest.mark.parametrize(("model", "gpu", "gpus"), MODELS)
def test_prices_are_those_of_the_cost(model, gpu, gpus):
    """Windows, latent attention, experts: each look-up and each rounding."""
    scenario = {
        "model": model,
        "gpu": gpu,
        "engine": {"tensor_parallel_size": gpus, "max_model_len": 8192, "max_num_seqs": 64},
        "workload": {
            "arrivals": {"kind": "all_at_once"},
            "num_requests": 1,
            "lengths": {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1},
        },
    }
    cost = resolve(Scenario.model_validate(scenario)).cost
    arrays = price.cost_arrays(cost)
    rng = np.random.default_rng(0)
    for _ in range(300):
        chunks = rng.integers((1, 0), (600, 7_000), size=(int(rng.integers(0, 4)), 2))
        decodes = int(rng.integers(not len(chunks), 60))
        context = int(rng.integers(1, 8_000, decodes).sum())
        expected_ns = cost.chunks_ns([tuple(chunk) for chunk in chunks.tolist()])
        attention_ns = price.chunks_ns(arrays, chunks, len(chunks))
        assert attention_ns == expected_ns
        tokens, seqs = int(chunks[:, 0].sum()) + decodes, len(chunks) + decodes
        step = tokens, seqs, decodes, context, expected_ns
        assert price.step_ns(arrays, *step) == cost.step_ns(*step)


NOT_PLAIN = {
    "priorities": {"scheduling_policy": "priority"},
    "prefills held back": {"prefill_schedule_interval": 2},
    "admission without the whole prompt": {"scheduler_reserve_full_isl": False},
    "adaptive chunks": {"long_prefill_token_threshold_adaptive": True},
}


@pytest.mark.parametrize("why", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_the_cluster(why):
    requests, config, cost = plain(0)
    for changed, expected in ((config, True), (replace(config, **NOT_PLAIN[why]), False)):
        fleet = fleet_with(changed, cost)
        assert compiled.is_plain(requests, fleet) is expected


def test_clients_that_wait_are_left_to_the_cluster():
    requests, config, cost = plain(0)
    patient = replace(requests, timeout_ns=np.full(len(requests), 10**9))
    assert not compiled.is_plain(patient, fleet_with(config, cost))
    assert not compiled.is_plain(requests, fleet_with(config, cost, 2, PrefixAware()))
    assert not compiled.is_plain(requests, fleet_with(config, cost, 1, SharedQueue()))


def test_prompts_that_share_anything_are_left_to_the_cluster():
    requests, config, cost = plain(0)
    fleet = fleet_with(replace(config, enable_prefix_caching=True), cost)
    alone = replace(requests, group=np.arange(len(requests)))
    assert compiled.is_plain(alone, fleet)
    assert not compiled.is_plain(replace(alone, group=np.zeros(len(requests), np.int64)), fleet)
    prompts = [[(1, tokens)] for tokens in requests.prompt_tokens.tolist()]
    segments = segments_of(prompts, list(range(2, 2 + len(requests))))
    assert not compiled.is_plain(replace(alone, segments=segments), fleet)


def test_it_is_loaded_once_that_pays(monkeypatch):
    monkeypatch.setattr(kvsim.engine.compiled, "_requests", 0)
    few, many = kvsim.engine.compiled.LEAST_REQUESTS, kvsim.engine.compiled.LEAST_TO_COMPILE
    monkeypatch.setattr(machine_code, "is_kept", lambda: True)
    assert [pays(few // 3) for _ in range(5)] == [False, False, False, True, True]
    monkeypatch.setattr(machine_code, "is_kept", lambda: False)
    asked = []
    monkeypatch.setattr(machine_code, "compile_aside", lambda: asked.append(True))
    assert [pays(many // 2) for _ in range(3)] == [False, True, True]
    assert asked == [True]
    monkeypatch.setattr(machine_code, "can_compile", lambda: False)
    assert not pays(10**9)


def test_one_process_compiles_aside_for_later_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_code, "_place", lambda: tmp_path / "loop")
    begun = []
    monkeypatch.setattr(os, "posix_spawn", lambda path, command, *_, **__: begun.append(command))
    aside = machine_code.compile_aside.__wrapped__
    aside()
    aside()
    assert [command[1:] for command in begun] == [["-m", "kvsim.engine.compiled"]]
    long_ago = time.time() - 3600
    os.utime(tmp_path / "loop.begun", (long_ago, long_ago))
    aside()
    assert len(begun) == 2


@pytest.mark.parametrize(
    "broken", [b"", b"\x80\x05", bytes(32) + pickle.dumps(("advance", b"no object"))]
)
def test_without_machine_code_the_loop_of_objects_does_it(tmp_path, monkeypatch, broken):
    """A broken file of machine code is found out and removed; no result is missed."""
    place = tmp_path / "loop"
    place.write_bytes(broken)
    monkeypatch.setattr(machine_code, "_place", lambda: place)
    assert machine_code.is_kept()
    assert machine_code.load.__wrapped__() is None
    assert not machine_code.is_kept()
    assert machine_code.can_compile()


def test_what_numba_fails_at_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_code, "_place", lambda: tmp_path / "loop")
    monkeypatch.setattr(machine_code, "BUILDER", "kvsim.no_such_module")
    assert machine_code.load.__wrapped__() is None
    assert "no_such_module" in (tmp_path / "loop.failed").read_text()
    assert not machine_code.can_compile()


def test_who_compiles_ahead_is_told_what_stands_in_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_code, "_place", lambda: tmp_path / "loop")
    monkeypatch.setattr(machine_code, "BUILDER", "kvsim.no_such_module")
    monkeypatch.setattr(ahead, "load", machine_code.load.__wrapped__)
    with pytest.raises(SystemExit, match=r"can't be compiled here, .*loop\.failed says why"):
        ahead.main()
    monkeypatch.setattr(ahead, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"pip install 'kvsim\[fast\]'"):
        ahead.main()


def test_machine_code_does_what_its_source_does():
    for seed in range(40):
        requests, config, cost = plain(seed)
        compiled_rows, _ = run_compiled(requests, config, cost)
        rows, _ = run_compiled(requests, config, cost, loop=advance)
        for table in TABLES:
            assert np.array_equal(rows[table], compiled_rows[table])


def test_a_process_that_runs_it_needs_no_numba():
    code = """
import sys
from kvsim.engine.compiled import machine_code, run
machine_code.load()
assert "numba" not in sys.modules
"""
    machine_code.load()  # it is compiled by now
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SCENARIOS.parent)


def test_a_run_has_the_same_bytes(tmp_path, monkeypatch):
    """Whether it was compiled can't be told from what a run writes."""
    file = load_scenario(SCENARIOS.parent / "benchmarks" / "common_1000.yaml")
    variants = resolve_all(file)
    machine_code.load()
    for folder, least in (("plain", 10**9), ("compiled", 0)):
        monkeypatch.setattr(kvsim.engine.compiled, "LEAST_REQUESTS", least)
        (tmp_path / folder).mkdir()
        run_into(tmp_path / folder, file, variants, draw_requests(file, variants))
    for path in (tmp_path / "plain").iterdir():
        assert path.read_bytes() == (tmp_path / "compiled" / path.name).read_bytes(), path.name
