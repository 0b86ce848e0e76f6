"""Relations that hold between simulations, and what a lone request takes."""

from dataclasses import replace

import numpy as np
import pytest

from kvsim.engine.fleet import FINISHED, UNFINISHED
from kvsim.engine.routers.round_robin import RoundRobin
from kvsim.scenario.load import load_scenario
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all
from kvsim.simulate import simulate
from kvsim.tables import EVENT_KINDS, TABLES
from tests.engine.harness import LinearCost, run
from tests.engine.test_reference import random_scenario, reference

COMPACTED = EVENT_KINDS.index("compacted")


def assert_same(one, other, orders):
    """Compare tables row by row once each is sorted by the columns that name its rows."""
    for table, keys in orders.items():
        (first, second) = (
            tables[table] | {"order": np.lexsort([tables[table][key] for key in reversed(keys)])}
            for tables in (one, other)
        )
        for name in first.keys() - {"order"}:
            np.testing.assert_array_equal(
                first[name][first["order"]], second[name][second["order"]], f"{table}.{name}"
            )


@pytest.mark.parametrize("factor", [2, 1_000_003])
@pytest.mark.parametrize("replicas", [1, 3])
def test_scaling_all_times_scales_all_times_and_nothing_else(factor, replicas):
    for seed in range(25):
        requests, config, _, layout = random_scenario(seed)
        parts = (1 + seed % 7, seed % 4, seed % 3)  # whole nanoseconds: no rounding to scale
        cost, slow = LinearCost(*parts), LinearCost(*(factor * part for part in parts))
        late = replace(requests, arrival_ns=factor * requests.arrival_ns)
        usual = run(requests, config, cost, layout, replicas)
        scaled = run(late, config, slow, layout, replicas)
        assert scaled.totals.end_ns == factor * usual.totals.end_ns
        assert scaled.totals.steps == usual.totals.steps
        for table, columns in usual.tables.items():
            for name, column in columns.items():
                scales = name.endswith("_ns") & (column > 0)
                expected = np.where(scales, factor * column, column)
                np.testing.assert_array_equal(scaled.tables[table][name], expected, name)


class Relabelled:
    """Round robin over replicas with other numbers."""

    shares_queue = False
    view_delay_ns = 0

    def __init__(self, numbers):
        self.numbers = numbers

    def build(self, rng):
        self.turns = RoundRobin().build(rng)
        return self

    def choose(self, request, replicas):
        return self.numbers[self.turns.choose(request, replicas)]


def test_relabelling_the_replicas_permutes_them():
    numbers = [2, 0, 3, 1]
    for seed in range(25):
        requests, config, cost, layout = random_scenario(seed)
        usual = run(requests, config, cost, layout, 4)
        other = run(requests, config, cost, layout, 4, Relabelled(numbers))
        for columns in usual.tables.values():
            replica = columns["replica"]
            columns["replica"] = np.where(replica < 0, replica, np.take(numbers, replica))
        orders = {
            "requests": ["request"],
            "steps": ["replica", "step"],
            "events": ["replica", "step", "request", "event"],
        }
        assert_same(usual.tables, other.tables, orders)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_run_that_is_cut_is_the_beginning_of_the_whole_one(replicas):
    for seed in range(25):
        requests, config, cost, layout = random_scenario(seed)
        whole = run(requests, config, cost, layout, replicas)
        for until_ns in {1, max(1, whole.totals.end_ns // 3), max(1, whole.totals.end_ns - 1)}:
            cut = run(requests, config, cost, layout, replicas, until_ns=until_ns)
            assert cut.totals.end_ns == until_ns
            steps = whole.tables["steps"]["start_ns"] < until_ns
            for name, column in cut.tables["steps"].items():
                np.testing.assert_array_equal(column, whole.tables["steps"][name][steps], name)
            assert_cut(cut.tables["requests"], whole.tables["requests"], until_ns)


def assert_cut(cut, whole, until_ns):
    """All that arrived before the cut have a row: those that left the same, others unfinished."""
    left = (whole["finish_ns"] >= 0) & (whole["finish_ns"] < until_ns)
    for name, column in cut.items():
        gone = cut["outcome"] != UNFINISHED
        np.testing.assert_array_equal(column[gone], whole[name][left], name)
    present = (whole["arrival_ns"] < until_ns) & ~left
    unfinished = cut["outcome"] == UNFINISHED
    assert sorted(cut["request"][unfinished]) == sorted(whole["request"][present])
    assert (cut["finish_ns"][unfinished] == -1).all()
    assert (cut["first_token_ns"][unfinished] < until_ns).all()


def test_unfinished_answers_have_the_tokens_that_were_there_at_the_cut():
    """Counted by the plain engine, token by token, up to the instant of the cut."""
    partial = 0
    for seed in range(40):
        requests, config, cost, layout = random_scenario(seed)
        jobs = reference(requests, config, cost, layout)[1]
        until_ns = 1 + run(requests, config, cost, layout).totals.end_ns // 2
        cut = run(requests, config, cost, layout, until_ns=until_ns).tables["requests"]
        for number, tokens in zip(cut["request"], cut["output_tokens"], strict=True):
            there = [time_ns for time_ns in jobs[number].token_times_ns if time_ns < until_ns]
            assert tokens == len(there), (seed, number)
            partial += 1 < len(there) < jobs[number].answer_tokens
    assert partial > 20


SCENARIO = """\
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
engine: {max_model_len: 8192, max_num_batched_tokens: 1024, max_num_seqs: 64}
workload:
  arrivals: {kind: constant, rate_per_s: 0.05}
  lengths: {kind: fixed, prompt_tokens: 3000, output_tokens: 200}
  num_requests: 4
"""


def simulated(folder, text):
    """Simulate the base of a scenario; return what was resolved, and its tables."""
    (folder / "s.yaml").write_text(text)
    file = load_scenario(folder / "s.yaml")
    variants = resolve_all(file)
    chunks = {name: [np.zeros((0, len(columns)), np.int64)] for name, columns in TABLES.items()}
    requests = draw_requests(file, variants)
    simulate(variants["base"], requests, lambda table, rows: chunks[table].append(rows))
    tables = {}
    for name, columns in TABLES.items():
        rows = np.concatenate(chunks[name])
        tables[name] = {column.name: rows[:, index] for index, column in enumerate(columns)}
    return variants["base"], tables


@pytest.mark.parametrize("layout", ["paged", "contiguous"])
def test_a_lone_request_takes_what_its_steps_cost(tmp_path, layout):
    variant, tables = simulated(tmp_path, SCENARIO + f"kv_cache: {layout}\n")
    cost = variant.cost
    prefill_ns = 0
    for prefix in (0, 1024, 2048):
        tokens = min(1024, 3000 - prefix)
        prefill_ns += cost.step_ns(tokens, 1, 0, 0, cost.chunks_ns([(tokens, prefix)]))
    decode_ns = sum(cost.step_ns(1, 1, 1, context, 0.0) for context in range(3001, 3200))
    rows = tables["requests"]
    front_end = variant.profile.front_end
    front_end_ns = front_end.busy_ns(3000) + front_end.rest_ns
    assert (rows["queued_ns"] - rows["arrival_ns"]).tolist() == [front_end_ns] * 4
    assert front_end_ns > 0
    assert (rows["admitted_ns"] == rows["queued_ns"]).all()
    assert (rows["first_token_ns"] - rows["queued_ns"]).tolist() == [prefill_ns] * 4
    assert (rows["finish_ns"] - rows["first_token_ns"]).tolist() == [decode_ns] * 4


def test_the_scenario_decides_when_a_simulation_ends(tmp_path):
    """The first two of four requests arrive, 20 s apart; only the second is still there."""
    _, tables = simulated(tmp_path, SCENARIO + "max_simulated_s: 20.5\n")
    assert tables["requests"]["outcome"].tolist() == [FINISHED, UNFINISHED]


def test_compaction_takes_a_read_and_a_write_of_what_it_moves(tmp_path):
    text = SCENARIO.replace(
        "max_model_len: 8192", "max_model_len: 8192, num_gpu_blocks_override: 600"
    )
    text = text.replace("{kind: constant, rate_per_s: 0.05}", "{kind: poisson, rate_per_s: 30}")
    text = text.replace("num_requests: 4", "num_requests: 60").replace(
        "{kind: fixed, prompt_tokens: 3000, output_tokens: 200}",
        "{kind: uniform, prompt_min_tokens: 50, prompt_max_tokens: 3000,\n"
        "            output_min_tokens: 1, output_max_tokens: 300}",
    )  # fmt: skip
    layout = "kv_cache: {kind: contiguous, reservation: oracle, compaction: true"
    for given, bytes_per_s in (("", None), (", compaction_bytes_per_s: 5.0e+9", 5e9)):
        variant, tables = simulated(tmp_path, f"{text}{layout}{given}}}\n")
        if bytes_per_s is None:
            bytes_per_s = variant.gpu.hbm_bytes_per_s / 2
        events = tables["events"]
        copies = events["event"] == COMPACTED
        assert copies.sum() > 5
        tokens = events["tokens"][copies]
        expected_ns = tokens * 131_072 / bytes_per_s * 1e9  # 32 layers, 8 heads of 128, bf16
        assert np.abs(events["gap_ns"][copies] - expected_ns).max() <= 0.5 + 1e-6


LAYOUTS = """
model: {model}
gpu: h100_sxm
engine: {{max_model_len: 2048}}
workload:
  arrivals: {{kind: poisson, rate_per_s: 40.0}}
  lengths: {{kind: uniform, prompt_min_tokens: 50, prompt_max_tokens: 600,
            output_min_tokens: 5, output_max_tokens: 60}}
  num_requests: 120
variants:
  ranks: {{engine: {{data_parallel_size: 4}}}}
  servers: {{replicas: 4, routing: least_requests}}
  stages: {{engine: {{pipeline_parallel_size: 4}}}}
  experts: {{engine: {{data_parallel_size: 4, enable_expert_parallel: true}}}}
"""


def layouts(tmp_path, model, names):
    path = tmp_path / "layouts.yaml"
    path.write_text(LAYOUTS.format(model=model))
    file = load_scenario(path)
    variants = resolve_all(replace(file, variants={n: file.variants[n] for n in ["base", *names]}))
    requests = draw_requests(file, variants)
    return {name: tables_of(variant, requests) for name, variant in variants.items()}


def tables_of(variant, requests):
    chunks = {table: [] for table in TABLES}
    simulate(variant, requests, lambda table, rows: chunks[table].append(rows.copy()))
    return {
        table: dict(zip((c.name for c in columns), np.concatenate(chunks[table]).T, strict=True))
        for table, columns in TABLES.items()
        if chunks[table]
    }


def test_ranks_of_a_dense_model_are_servers_behind_least_requests(tmp_path):
    runs = layouts(tmp_path, "meta-llama/Llama-3.1-8B-Instruct", ["ranks", "servers"])
    for table, columns in runs["servers"].items():
        for name, column in columns.items():
            np.testing.assert_array_equal(runs["ranks"][table][name], column, f"{table}.{name}")


def test_layouts_of_experts_serve_all_requests(tmp_path):
    runs = layouts(tmp_path, "Qwen/Qwen3-30B-A3B", ["ranks", "stages", "experts"])
    for name, tables in runs.items():
        assert (tables["requests"]["outcome"] == FINISHED).all(), name
    assert set(runs["experts"]["requests"]["replica"].tolist()) == {0, 1, 2, 3}
    assert set(runs["stages"]["requests"]["replica"].tolist()) == {0}
