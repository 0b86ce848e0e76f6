"""The three formats: known by their content, tolerant of blanks, exact about mistakes."""

import gzip
import json

import pytest

from kvsim.errors import InputError
from kvsim.units import GIB
from kvsim.validate.case import ClosedLoop, LoadStage, OpenLoop, Replay
from kvsim.validate.fields import Fields
from kvsim.validate.files import SHIPPED, read_all, read_cases
from tests.validate.measured import KV_SIZES, POINTS, record, records


def read(tmp_path, text, name="measured.txt"):
    path = tmp_path / name
    path.write_text(text)
    return read_cases(path)


def problems_of(tmp_path, text):
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    return caught.value.problems


def test_a_record_says_who_served_and_who_sent(tmp_path):
    (case,) = read(tmp_path, records(record()))
    assert case.refusals == ()
    assert case.server.num_gpu_blocks == 4000
    assert case.server.enable_prefix_caching is True
    assert isinstance(case.client, OpenLoop)
    assert case.client.stages == (LoadStage(4, 10), LoadStage(8, 10))
    assert case.client.prompts.distinct == 10
    overall = {m.metric: m.value for m in case.measured if m.stage == -1}
    assert overall["e2e_p99"] == 150.0
    assert overall["itl_mean_reported"] == 9.0
    assert overall["tpot_mean"] == 8.5
    assert overall["throughput"] == 2.0
    assert overall["kv_cache_tokens"] == 64_000
    assert {m.stage for m in case.measured} == {-1, 0}


def test_usable_blocks_lack_the_null_block(tmp_path):
    server = record()["server"] | {"total_kv_blocks": None, "usable_kv_blocks": 3999}
    (case,) = read(tmp_path, records(record(server=server)))
    assert case.server.num_gpu_blocks == 4000


def test_a_record_may_be_nearly_empty(tmp_path):
    (case,) = read(tmp_path, records({"id": 7, "model": "m", "gpu": "g", "server": None}))
    assert case.id == "7"
    assert case.measured == ()
    assert "stages" in case.refusals[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"grade": "overload"}, "overloaded"),
        ({"workload": record()["workload"] | {"client_limited": True}}, "limit"),
        ({"workload": {}}, "stages"),
        ({"workload": {**record()["workload"], "arrival": {"type": "burst"}}}, "burst"),
        ({"tp": "two"}, "tp is no number"),
    ],
)
def test_what_cannot_be_predicted_says_why(tmp_path, change, reason):
    (case,) = read(tmp_path, records(record(**change)))
    assert reason in "; ".join(case.refusals)


def test_lengths_are_scaled_to_the_measured_mean(tmp_path):
    prompt = {"nominal_prompt_len_by_tenant": {"a": 100, "b": 300}, "output_len": 5}
    workload = record()["workload"] | {
        "prompt": prompt,
        "tenant_share": {"a": 0.75, "b": 0.25},
        "prompt_len_measured": {"mean": 300.0},  # twice the nominal mean of 150
    }
    (case,) = read(tmp_path, records(record(workload=workload)))
    assert [(part.weight, part.prompt_tokens) for part in case.client.lengths] == [
        (0.75, 200),
        (0.25, 600),
    ]


def test_a_trace_beside_the_file_is_replayed_and_an_absent_one_drawn_anew(tmp_path):
    (case,) = read(tmp_path, records(record(trace_file="t.csv")))
    assert isinstance(case.client, OpenLoop)
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n")
    (case,) = read(tmp_path, records(record(trace_file="t.csv")))
    assert case.client == Replay(tmp_path / "t.csv", case.client.prompts)


def test_points_are_closed_loops(tmp_path):
    a, b, c, d, e = read(tmp_path, POINTS)
    assert a.client == ClosedLoop(4, 1024, 128, 0.8, 10)
    assert a.server.max_num_seqs == 4
    assert a.server.enable_prefix_caching is False
    assert {m.metric: m.value for m in a.measured} == {"ttft_mean": 80.5, "tpot_mean": 18.2}
    # Nobody describes this client: exact lengths, and a steady state.
    assert b.client == ClosedLoop(2, 256, 64, 1.0, 10, warm_up_rounds=4)
    assert b.server.tensor_parallel_size == 2
    assert b.server.max_num_seqs is None
    assert "concurrency" in c.refusals[0]
    assert d.refusals == e.refusals == ()  # the catalog decides on them


def test_kv_sizes_come_in_tokens_or_memory(tmp_path):
    tokens, gib, unknown, failed = read(tmp_path, KV_SIZES)
    assert tokens.measured[0].value == 119_408
    assert tokens.server.gpu_memory_utilization == 0.9
    assert tokens.server.max_model_len == 4096
    assert gib.measured == ()
    assert gib.kv_bytes_per_gpu == 51.38 * GIB
    assert unknown.refusals == ("the GPU is not recorded",)
    assert "did not start" in failed.refusals[0]


def test_the_legacy_engine_is_known_by_its_version(tmp_path):
    text = KV_SIZES.replace("0.15.1", "0.6.x (V0 engine)")
    assert read(tmp_path, text)[0].server.version == "0.6.0"


def test_compressed_files_are_read(tmp_path):
    path = tmp_path / "records"
    path.write_bytes(gzip.compress(records(record()).encode()))
    assert read_cases(path)[0].id == "mine"


def test_a_bare_list_holds_records_too(tmp_path):
    assert read(tmp_path, json.dumps([record()]))[0].id == "mine"


def test_mistakes_name_file_line_and_path(tmp_path):
    text = POINTS.replace("\nb,nvidia", "\n,nvidia").replace("who/knows", "")
    found = problems_of(tmp_path, text)
    assert [(p.line, p.path) for p in found] == [(3, "id"), (5, "model")]
    assert found[0].file.endswith("measured.txt")
    found = problems_of(tmp_path, records(record(), {"id": "x", "gpu": "g"}, 3))
    assert [p.path for p in found] == ["experiments.1.model", "experiments.2"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", '{"experiments": 3}', "a,b\n1,2\n", '{"experiments": []}', "[" * 100_000],
)
def test_what_is_no_measurement_is_refused(tmp_path, text):
    assert problems_of(tmp_path, text)


def test_no_text_and_no_file_are_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("binary", "absent", "."):
        with pytest.raises(InputError):
            read_cases(tmp_path / name)


def test_an_id_stands_for_one_measurement(tmp_path):
    path = tmp_path / "twice"
    path.write_text(records(record(), record()))
    with pytest.raises(InputError, match="mine"):
        read_all([path])


def test_numbers_are_read_as_people_write_them():
    values = {"a": "0.90 (default)", "b": "1,024", "c": "", "d": "not stated", "e": "high", "f": 3}
    values |= {"g": -2, "h": 2.5, "i": True, "j": float("nan"), "k": [1]}
    fields = Fields(values)
    assert [fields.number(name) for name in "abcdfj"] == [0.9, 1024.0, None, None, 3.0, None]
    assert [fields.number(name) for name in "ek"] == [None, None]
    assert [fields.count(name) for name in "fgh"] == [3, None, None]
    assert len(fields.unclear) == 3  # e, g and h


def test_the_shipped_files_can_be_predicted_and_stay_small():
    cases = read_all([])
    assert len(cases) > 700
    understood = [case for case in cases if not case.refusals]
    assert len(understood) > 0.97 * len(cases)
    replayed = [case.client.trace for case in cases if isinstance(case.client, Replay)]
    assert len(replayed) == 3  # what has a license
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 300_000
