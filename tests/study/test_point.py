from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvsim
from kvsim.errors import InputError
from kvsim.rundir.write import run_into
from kvsim.scenario.load import ScenarioFile, load_scenario
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all
from kvsim.study.point import Point, files_of_point, make_ready, point_key, run_point, run_ready
from kvsim.tables import TABLES

TEXT = """\
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
engine: {max_num_seqs: 16, num_gpu_blocks_override: 400, max_model_len: 6000}
workload:
  arrivals: {kind: poisson, rate_per_s: 20.0}
  lengths:
    kind: lognormal
    prompt_mean_tokens: 300.0
    prompt_cv: 0.5
    output_mean_tokens: 60.0
    output_cv: 0.8
  num_requests: 120
slo: {ttft_p99_s: 2.0}
routing: random
replicas: 2
variants:
  contiguous: {kv_cache: {kind: contiguous}, engine: {max_model_len: 4096}}
"""
TRACED = """\
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
workload:
  arrivals: {kind: trace, file: a.csv}
  lengths: {kind: trace}
"""
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:15:{:02d}.0000000,{},9\n"


@pytest.fixture
def file(tmp_path: Path) -> ScenarioFile:
    path = tmp_path / "one.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return load_scenario(path)


@pytest.fixture
def traced(tmp_path: Path) -> ScenarioFile:
    for name, rows in (("a.csv", 8), ("b.csv", 5)):
        text = HEADER + "".join(ROW.format(n, 100 + n) for n in range(rows))
        (tmp_path / name).write_text(text, encoding="utf-8")
    path = tmp_path / "traced.yaml"
    path.write_text(TRACED, encoding="utf-8")
    return load_scenario(path)


@pytest.mark.parametrize("variant", ["base", "contiguous"])
def test_a_point_without_changes_is_what_a_run_writes(
    file: ScenarioFile, tmp_path: Path, variant: str
) -> None:
    variants = resolve_all(file)
    run = run_into(tmp_path, file, variants, draw_requests(file, variants)).run
    point = run_point(file, Point(variant=variant))
    assert point.summary() == run.summaries[variant]
    for table, columns in point.tables.items():
        assert list(columns) == [column.name for column in TABLES[table]]
        for name, values in columns.items():
            np.testing.assert_array_equal(values, run.tables[variant][table][name])


def test_only_the_tables_asked_for_are_kept(file: ScenarioFile) -> None:
    ready = make_ready(file, Point())
    whole, part = run_ready(ready), run_ready(ready, keep=("requests",))
    assert list(part.tables) == ["requests"]
    for name, values in part.tables["requests"].items():
        np.testing.assert_array_equal(values, whole.tables["requests"][name])


def test_a_table_without_rows_has_its_columns(file: ScenarioFile) -> None:
    calm = Point({"workload.num_requests": 1})
    events = run_point(file, calm).tables["events"]
    assert {len(values) for values in events.values()} == {0}


def test_a_point_run_twice_is_the_same(file: ScenarioFile) -> None:
    point = Point({"engine.max_num_seqs": 4}, replication=2)
    first, second = run_point(file, point), run_point(file, point)
    assert first.summary() == second.summary()


def test_replications_are_draws_of_their_own_and_equal_ones_share_them(
    file: ScenarioFile,
) -> None:
    def drawn(changes: dict[str, object], replication: int) -> list[list[int]]:
        ready = make_ready(file, Point(changes, replication=replication))
        requests = ready.requests
        return [requests.arrival_ns.tolist(), requests.output_tokens.tolist()]

    assert drawn({}, 0) != drawn({}, 1) != drawn({}, 2)
    assert drawn({"engine.max_num_seqs": 3, "replicas": 5}, 1) == drawn({}, 1)
    slow, fast = (
        np.diff(np.array(drawn({"workload.arrivals.rate_per_s": rate}, 1)[0])) for rate in (10, 40)
    )
    np.testing.assert_allclose(slow, 4 * fast, atol=8)  # the same draws, faster


def test_the_router_draws_anew_in_each_replication(file: ScenarioFile) -> None:
    fixed = make_ready(file, Point())
    replicas = [
        run_ready(replace(fixed, replication=number)).tables["requests"]["replica"].tolist()
        for number in (0, 0, 1)
    ]
    assert replicas[0] == replicas[1] != replicas[2]


@pytest.mark.parametrize(
    "point",
    [
        Point({"engine.no_such": 1}),
        Point({"engine.max_model_len": 16}),
        Point({"engine.gpu_memory_utilization": 0.01, "engine.num_gpu_blocks_override": None}),
        Point(variant="no such"),
    ],
)
def test_every_mistake_is_told_before_the_run(file: ScenarioFile, point: Point) -> None:
    with pytest.raises(InputError):
        make_ready(file, point)


# Keys


def test_what_makes_no_difference_makes_none_to_the_key(file: ScenarioFile, tmp_path: Path) -> None:
    key = point_key(file, Point())
    assert key == point_key(file, Point({"engine.max_num_seqs": 16, "seed": 0}))
    reordered = tmp_path / "another_name.yaml"
    lines = TEXT.splitlines(True)
    reordered.write_text("# A comment\n" + "".join([*lines[1:3], lines[0], *lines[3:]]))
    assert key == point_key(load_scenario(reordered), Point())


def test_a_variant_and_its_changes_written_out_are_one_point(file: ScenarioFile) -> None:
    changes = {"kv_cache": {"kind": "contiguous"}, "engine.max_model_len": 4096}
    assert point_key(file, Point(variant="contiguous")) == point_key(file, Point(changes))


def test_whatever_makes_a_difference_changes_the_key(
    file: ScenarioFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [
        Point(),
        Point({"seed": 1}),
        Point(replication=1),
        Point(variant="contiguous"),
        Point({"engine.max_num_seqs": 17}),
        Point({"workload.arrivals.rate_per_s": 20.000001}),
        Point({"slo.ttft_p99_s": 2.5}),
        Point({"warmup_s": 1.0}),
    ]
    keys = [point_key(file, point) for point in points]
    monkeypatch.setattr(kvsim, "__version__", "0.0.0")
    keys.append(point_key(file, Point()))
    assert len(set(keys)) == len(keys)


def test_the_key_follows_the_content_of_files(traced: ScenarioFile) -> None:
    key = point_key(traced, Point())
    path = traced.base_dir / "a.csv"
    text = path.read_text(encoding="utf-8")
    path.write_text(text + ROW.format(30, 5), encoding="utf-8")
    assert point_key(traced, Point()) != key
    path.write_text(text, encoding="utf-8")
    assert point_key(traced, Point()) == key


def test_a_key_of_a_missing_file_is_refused(traced: ScenarioFile) -> None:
    with pytest.raises(InputError, match=r"none\.csv: can't be read"):
        point_key(traced, Point({"workload.arrivals.file": "none.csv"}))


# Files


def test_a_trace_that_changes_is_read_anew(traced: ScenarioFile) -> None:
    path = traced.base_dir / "a.csv"
    assert len(make_ready(traced, Point()).requests) == 8
    path.write_bytes((traced.base_dir / "b.csv").read_bytes())
    assert len(make_ready(traced, Point()).requests) == 5


def test_what_was_read_once_can_not_be_spoilt(traced: ScenarioFile) -> None:
    first = make_ready(traced, Point()).requests
    before = first.prompt_tokens.copy()
    for values in (first.prompt_tokens, first.arrival_ns):
        try:
            values[:] = 1
        except ValueError:  # it is read-only, which is as good
            continue
    np.testing.assert_array_equal(make_ready(traced, Point()).requests.prompt_tokens, before)


def test_files_of_a_point_are_those_of_its_values(traced: ScenarioFile, file: ScenarioFile) -> None:
    a, b = traced.base_dir / "a.csv", traced.base_dir / "b.csv"
    changes: list[tuple[dict[str, object], set[Path]]] = [
        ({}, {a}),
        ({"engine.max_num_seqs": 4}, {a}),
        ({"workload.arrivals.file": "b.csv"}, {b}),
        ({"workload.arrivals": {"kind": "trace", "file": str(b)}}, {b}),
        ({"workload.lengths": {"file": "b.csv"}}, {a, b}),
        ({"model": "nobody/nothing"}, set()),
    ]
    for change, files in changes:
        assert files_of_point(traced, Point(change)) == files
    assert files_of_point(file, Point()) == set()
    assert files_of_point(file, Point(variant="no such")) == set()
