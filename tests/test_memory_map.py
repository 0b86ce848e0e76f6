"""What is seen of a KV cache is what the result tables tell of it, and it costs no result."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim import memory_map
from kvsim.engine.allocators._slot_runs import NOBODY, SlotRuns, runs_of
from kvsim.engine.cluster import Cluster
from kvsim.memory_map import Scene, in_cells, look_on, variants_seen
from kvsim.rundir.read import open_run
from kvsim.rundir.write import run_into, with_memory_map
from kvsim.scenario.load import load_scenario
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all
from kvsim.simulate import fleet_of
from kvsim.study.point import KeptTables
from kvsim.tables import FREE, HELD, HOLES, INSIDE, MAP_TABLES, SLOT_USES
from tests.disk import contents

SCENARIO = """\
model: {model}
gpu: h100_sxm
engine: {{max_model_len: 2048, max_num_seqs: 24, num_gpu_blocks_override: {blocks}{engine}}}
workload:
  arrivals: {{kind: poisson, rate_per_s: 30.0}}
  lengths: {{kind: lognormal, prompt_mean_tokens: 300, prompt_cv: 1.0, prompt_max_tokens: 900,
            output_mean_tokens: 150, output_cv: 1.0, output_max_tokens: 400}}
  num_requests: 90
{more}
"""
LLAMA, GPT_OSS = "meta-llama/Llama-3.1-8B-Instruct", "openai/gpt-oss-20b"
CASES = {
    "paged": {},
    "synchronous": {"engine": ", async_scheduling: false, enable_prefix_caching: false"},
    "prefixes": {"more": "  prompts: {kind: shared_prefix, groups: 3, prefix_tokens: 200}"},
    "windows": {"model": GPT_OSS, "blocks": 400},
    "first_fit": {"more": "kv_cache: {kind: contiguous, reservation: max_tokens}"},
    "buddy": {"more": "kv_cache: {kind: contiguous, reservation: oracle_pow2, placement: buddy}"},
    "compaction": {"more": "kv_cache: {kind: contiguous, reservation: oracle, compaction: true}"},
}


def scenario(folder, more="", model=LLAMA, blocks=200, engine=""):
    path = folder / "s.yaml"
    path.write_text(SCENARIO.format(model=model, blocks=blocks, engine=engine, more=more))
    file = load_scenario(path)
    variants = resolve_all(file)
    return file, variants, draw_requests(file, variants)


@pytest.mark.parametrize("case", CASES)
def test_at_each_look_slots_are_used_as_the_last_step_says(case, tmp_path):
    _, variants, requests = scenario(tmp_path, **CASES[case])
    fleet, seen = fleet_of(variants["base"]), []
    cluster = Cluster(requests, replace(fleet, plans_ahead=False), KeptTables([]))
    horizon_ns = int(requests.arrival_ns[-1])
    times_ns = np.linspace(1, horizon_ns, 60).astype(int).tolist()
    replica = cluster._replicas[0]
    cluster.look_at(times_ns, lambda runs: seen.append((replica.step - 1, runs.sums())))
    kept = KeptTables(["steps", "requests"])
    Cluster(requests, fleet, kept).run()
    cluster.run()
    steps, left_ns = kept.columns("steps"), np.sort(kept.columns("requests")["finish_ns"])
    told = np.stack([steps[f"kv_{use}_tokens"] for use in SLOT_USES], axis=1)
    compared = 0
    for (step, sums), time_ns in zip(seen, times_ns, strict=True):
        # Who leaves while it is in flight is in its row, but not in the KV cache any more.
        scheduled_ns = steps["start_ns"][max(0, step - variants["base"].engine.async_scheduling)]
        gone = np.searchsorted(left_ns, time_ns) - np.searchsorted(left_ns, scheduled_ns, "right")
        if step >= 0 and not gone:
            assert sums.tolist() == told[step].tolist(), f"step {step} at {time_ns}"
            compared += 1
    assert compared > 20


def test_who_is_looked_at_does_the_same(tmp_path):
    _, variants, requests = scenario(tmp_path)
    tables = []
    for times_ns in ((), range(0, 10**9, 10**7)):
        kept = KeptTables(["steps", "requests", "events"])
        cluster = Cluster(requests, fleet_of(variants["base"]), kept)
        cluster.look_at(times_ns, lambda runs: None)
        cluster.run()
        tables.append(kept)
    for table in ("steps", "requests", "events"):
        one, other = (kept.columns(table) for kept in tables)
        assert all((one[name] == other[name]).all() for name in one)


pieces = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, FREE), st.integers(NOBODY, 3)),
    min_size=1,
    max_size=40,
)


def runs_from(pieces):
    """Nobody owns what is free."""
    return runs_of((length, use, owner if use < HOLES else NOBODY) for length, use, owner in pieces)


def spelled_out(runs: SlotRuns):
    return np.repeat(runs.use, runs.length), np.repeat(runs.owner, runs.length)


@settings(max_examples=40)
@given(pieces, st.integers(1, 50))
def test_cells_are_what_most_of_their_slots_are(pieces, cells):
    runs = runs_from(pieces)
    drawn = in_cells(runs, cells)
    (use, owner), (cell_use, cell_owner) = spelled_out(runs), spelled_out(drawn)
    assert len(use) == len(cell_use)
    size = -(-len(use) // cells)
    assert len(range(0, len(use), size)) <= cells
    for start in range(0, len(use), size):
        inside = slice(start, start + size)
        counts = np.bincount(use[inside], minlength=len(SLOT_USES))
        assert set(cell_use[inside]) == {counts.argmax()}
        owners = set(owner[inside].tolist()) - {NOBODY}
        is_owned = counts.argmax() < HOLES and len(owners) == 1
        assert set(cell_owner[inside].tolist()) == (owners if is_owned else {NOBODY})


@settings(max_examples=40)
@given(pieces)
def test_neighbors_that_are_alike_become_one_run(pieces):
    runs = runs_from(pieces)
    merged = runs.merged()
    for one, other in zip(spelled_out(runs), spelled_out(merged), strict=True):
        assert (one == other).all()
    assert merged.sums().tolist() == runs.sums().tolist()
    alike = (np.diff(merged.use) == 0) & (np.diff(merged.owner) == 0)
    assert not alike.any()


def test_a_run_of_nothing_has_no_runs():
    assert len(runs_of([]).merged().use) == len(runs_of([(0, HELD, 1)]).use) == 0


VARIANTS = """\
variants:
  small: {engine: {max_num_seqs: 4}}
  tight: {engine: {max_num_seqs: 6}}
  contiguous: {kv_cache: {kind: contiguous, reservation: oracle_pow2}}
"""


def seen(folder, **case):
    file, variants, requests = scenario(folder, **case)
    run = folder / "run"
    run.mkdir()
    ran = run_into(run, file, variants, requests)
    return ran, with_memory_map(ran, run)


def test_base_and_another_layout_are_looked_at_before_more_of_the_same(tmp_path):
    _, variants, _ = scenario(tmp_path, more=VARIANTS)
    assert variants_seen(variants) == ["base", "contiguous", "small"]


def test_all_variants_are_seen_at_the_same_instants_and_the_map_adds_up(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_map, "MOST_STEPS", 10**6)
    ran, run = seen(tmp_path, more=VARIANTS)
    assert set(MAP_TABLES).isdisjoint(ran.run.tables["base"])
    assert not len(run.tables["tight"]["memory_looks"]["time_ns"])
    base_ns = run.tables["base"]["memory_looks"]["time_ns"]
    assert len(base_ns) == memory_map.LOOKS
    assert len(set(np.diff(base_ns).tolist())) <= 2  # but for rounding
    longest_ns = max(ran.simulated[name].totals.end_ns for name in variants_seen(ran.variants))
    assert abs(base_ns[0] + base_ns[-1] - longest_ns) <= 2  # the middles of equal spans of the run
    for name in ("base", "contiguous", "small"):
        looks, rows = dict(run.tables[name]["memory_looks"]), dict(run.tables[name]["memory_map"])
        assert (looks["time_ns"] == base_ns).all()
        capacity = ran.simulated[name].kv_capacity_tokens
        for look, time_ns in enumerate(base_ns):
            mine = {column: rows[column][rows["time_ns"] == time_ns] for column in rows}
            ends = np.cumsum(mine["length"])
            assert ends[-1] == capacity
            assert mine["start"].tolist() == [0, *ends[:-1].tolist()]
            told = [int(looks[f"{use}_tokens"][look]) for use in SLOT_USES]
            assert np.bincount(mine["use"], mine["length"], len(SLOT_USES)).tolist() == told
            assert set(mine["request"][mine["use"] >= HOLES].tolist()) <= {NOBODY}
            free = mine["length"][mine["use"] >= HOLES]
            assert looks["largest_hole_tokens"][look] == free.max(initial=0)
    held = run.tables["contiguous"]["memory_looks"]
    assert held["inside_tokens"].max() > 0 < held["holes_tokens"].max()


def test_what_is_simulated_again_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_map, "MOST_STEPS", 50)
    ran, run = seen(tmp_path)
    steps = ran.run.tables["base"]["steps"]["start_ns"]
    looks = run.tables["base"]["memory_looks"]["time_ns"]
    assert looks[0] + looks[-1] == pytest.approx(steps[50], abs=2)
    monkeypatch.setattr(memory_map, "MOST_REQUESTS", 3)
    fleet, tables = fleet_of(ran.variants["base"]), ran.run.tables["base"]
    scene = Scene.of(fleet, ran.requests, tables, ran.simulated["base"])
    assert scene.bound_ns(10**18) == sorted(ran.run.tables["base"]["requests"]["admitted_ns"])[3]


def test_many_small_runs_are_drawn_together(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_map, "MOST_RUNS", 1000)
    _, run = seen(tmp_path)
    rows = run.tables["base"]["memory_map"]
    assert 300 < len(rows["use"]) <= 1000
    size = np.gcd.reduce(rows["length"])
    assert size > 1 == -(-3184 // 1024) - 3
    assert rows["length"].sum() == memory_map.LOOKS * 199 * 16


def test_a_long_queue_is_cut_where_nobody_sees_it(tmp_path, monkeypatch):
    _, variants, requests = scenario(tmp_path)
    requests = replace(requests, arrival_ns=np.zeros_like(requests.arrival_ns))
    fleet = fleet_of(variants["base"])
    whole = look_on(fleet, requests, 10**9)
    monkeypatch.setattr(memory_map, "MOST_ARRIVALS", 50)
    for one, other in zip(whole, look_on(fleet, requests, 10**9), strict=True):
        assert (one.runs.start == other.runs.start).all()
        assert (one.runs.owner == other.runs.owner).all()


def test_the_same_run_has_the_same_map(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        seen(tmp_path / folder)
    one, two = (contents(tmp_path / folder / "run") for folder in ("one", "two"))
    assert one == two
    assert {"memory_looks.parquet", "memory_map.parquet"} <= set(map(str, one))


def test_an_older_run_has_no_map(tmp_path):
    _, run = seen(tmp_path)
    for table in MAP_TABLES:
        (run.folder / f"{table}.parquet").unlink()
    assert set(MAP_TABLES).isdisjoint(open_run(run.folder).tables["base"])


def test_a_run_without_a_step_has_an_empty_map(tmp_path, monkeypatch):
    long = "prompt_mean_tokens: 5000, prompt_cv: 0.01, prompt_max_tokens: 5100"
    text = SCENARIO.replace("prompt_mean_tokens: 300, prompt_cv: 1.0, prompt_max_tokens: 900", long)
    monkeypatch.setitem(globals(), "SCENARIO", text)
    _, run = seen(tmp_path, more="oversized_requests: reject")
    looks = run.tables["base"]["memory_looks"]
    assert looks["held_tokens"].sum() == 0
    assert set(looks["free_tokens"].tolist()) == {199 * 16}


@pytest.mark.parametrize(
    ("routing", "engine"),
    [
        ("least_requests", ", async_scheduling: false"),
        ("prefix_aware", ""),
        ("session_affinity", ""),
    ],
)
def test_the_first_replica_alone_does_what_it_does_among_others(routing, engine, tmp_path):
    more = f"""\
  prompts: {{kind: sessions, turns_mean: 3, think_mean_s: 0.2}}
replicas: 3
routing: {routing}
oversized_requests: reject
"""
    file, variants, requests = scenario(tmp_path, more=more, engine=engine)
    ran = run_into(tmp_path, file, variants, requests)
    fleet, tables = fleet_of(variants["base"]), ran.run.tables["base"]
    scene = Scene.of(fleet, requests, tables, ran.simulated["base"])
    assert scene.is_solo
    among = replace(scene, fleet=fleet_of(variants["base"]), is_solo=False)
    until_ns = scene.bound_ns(ran.simulated["base"].totals.end_ns)
    for one, other in zip(scene.look_on(until_ns), among.look_on(until_ns), strict=True):
        for column in ("start", "length", "use", "owner"):
            assert (getattr(one.runs, column) == getattr(other.runs, column)).all()
    assert scene.bound_ns(10**18) >= among.bound_ns(10**18)


@pytest.mark.parametrize(
    "more", ["replicas: 2\nrouting: shared_queue", "  timeout_s: 9\nreplicas: 2"]
)
def test_others_matter_where_the_tables_do_not_tell_it_all(more, tmp_path):
    file, variants, requests = scenario(tmp_path, more=more)
    ran = run_into(tmp_path, file, variants, requests)
    fleet, tables = fleet_of(variants["base"]), ran.run.tables["base"]
    assert not Scene.of(fleet, requests, tables, ran.simulated["base"]).is_solo


SHARING = """\
  n: 3
scheduler: {kind: vllm_v0, preemption: PREEMPTION}
"""


@pytest.mark.parametrize("preemption", ["auto", "swap"])
def test_blocks_that_samples_share_are_counted_once(preemption, tmp_path):
    more = SHARING.replace("PREEMPTION", preemption)
    _, variants, requests = scenario(tmp_path, more=more, blocks=130, engine=", block_size: 16")
    fleet, shared, sums = fleet_of(variants["base"]), [], []
    cluster = Cluster(requests, fleet, KeptTables([]))
    replica = cluster._replicas[0]

    def look(runs):
        pool, used = replica.allocator, runs.sums()
        shared.append(pool.shared_tokens)
        held = replica.held_tokens - pool.shared_tokens + pool.shared_empty_tokens
        sums.append((used[HELD] - held, used[INSIDE] - replica.inside_tokens))
        assert used[:HOLES].sum() == pool.taken_tokens

    cluster.look_at(range(10**8, int(requests.arrival_ns[-1]), 10**8), look)
    cluster.run()
    assert set(sums) == {(0, 0)}
    assert max(shared) > 0
