import csv
import gzip
import json
import os
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvsim.errors import InputError
from kvsim.workload.files import content_digest
from kvsim.workload.traces import formats, read_lengths, read_trace

DATA = Path(__file__).parents[1] / "data" / "traces"
MOONCAKE = DATA / "mooncake_conversation.jsonl"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
BURST_SESSIONS = BURST.replace("Model", "Session ID,Elapsed time,Model")


def write(folder: Path, content: str | bytes, name: str = "log") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def ns(text: str, decimals: int = 9) -> int:
    return int((Decimal(text) * 10**decimals).to_integral_value())


def mooncake(*rows: tuple[float, int, int, list[int]]) -> str:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)


def test_these_are_all_the_formats():
    assert list(formats()) == [
        "azure", "burstgpt", "columns", "inference_perf", "kvsim", "mooncake", "sharegpt",
        "vidur", "vllm_bench",
    ]  # fmt: skip


def test_the_published_sharegpt_lengths_are_read_to_the_last_digit():
    rows = list(csv.DictReader((DATA / "sharegpt.csv").read_text().splitlines()))
    trace = read_trace(DATA / "sharegpt.csv")
    times = [ns(row["arrival_s"]) for row in rows]
    assert trace.arrival_ns.tolist() == [time - times[0] for time in times]
    assert trace.prompt_tokens.tolist() == [int(row["input_tokens"]) for row in rows]
    assert trace.output_tokens.tolist() == [int(row["output_tokens"]) for row in rows]
    assert trace.session is None
    assert trace.notes == ()


def test_published_lengths_without_times_serve_for_lengths_only():
    rows = list(csv.DictReader((DATA / "vidur_arxiv.csv").read_text().splitlines()))
    prompt, output = read_lengths(DATA / "vidur_arxiv.csv")
    assert prompt.tolist() == [int(row["num_prefill_tokens"]) for row in rows]
    assert output.tolist() == [int(row["num_decode_tokens"]) for row in rows]
    with pytest.raises(InputError, match=r"has no arrival times.*lengths only"):
        read_trace(DATA / "vidur_arxiv.csv")


def test_the_published_mooncake_trace_keeps_what_prompts_share():
    rows = [json.loads(line) for line in MOONCAKE.read_text().splitlines()]
    trace = read_trace(DATA / "mooncake_conversation.jsonl")
    assert trace.arrival_ns.tolist() == [row["timestamp"] * 10**6 for row in rows]
    assert trace.prompt_tokens.tolist() == [row["input_length"] for row in rows]
    seed_of: dict[int, int] = {}
    answers = set()
    for number, row in enumerate(rows):
        segments, answer = trace.segments.of(number)
        assert sum(tokens for _, tokens in segments) == row["input_length"]
        assert [tokens for _, tokens in segments[:-1]] == [512] * (len(row["hash_ids"]) - 1)
        for block, (seed, _) in zip(row["hash_ids"], segments, strict=True):
            assert seed_of.setdefault(block, seed) == seed
        answers.add(answer)
    assert len(set(seed_of.values())) == len(seed_of)
    assert len(answers) == len(rows)
    assert not answers & set(seed_of.values())


def test_mooncake_hashes_have_64_bits_signed_or_not(tmp_path):
    large, negative = 2**64 - 1, -(2**63)
    trace = read_trace(
        write(
            tmp_path,
            mooncake((5, 1024, 9, [large, 2**63]), (5, 513, 9, [large, negative + 1]),
                     (7.25, 600, 9, [2**63 + 5]), (8, 3, 1, []), (9, 3, 1, [])),
        )
    )  # fmt: skip
    assert trace.arrival_ns.tolist() == [0, 0, 2_250_000, 3_000_000, 4_000_000]
    first, second, third, fourth, fifth = (trace.segments.of(i)[0] for i in range(5))
    assert first[0] == second[0] == (first[0][0], 512)
    assert [tokens for _, tokens in second] == [512, 1]
    # A last block without a hash is unlike all else, and so is a prompt without any.
    assert [tokens for _, tokens in third] == [512, 88]
    seeds = [seed for part in (first, second, third, fourth, fifth) for seed, _ in part]
    assert len(set(seeds)) == len(seeds) - 1


def test_mooncake_hashes_that_do_not_fit_the_prompt_are_refused(tmp_path):
    path = write(tmp_path, mooncake((0, 512, 1, [1]), (0, 512, 1, [1, 2]), (0, 2000, 1, [1])))
    with pytest.raises(InputError, match="hash_ids don't fit a prompt of 512") as caught:
        read_trace(path)
    assert [problem.line for problem in caught.value.problems] == [2, 3]


def test_a_log_with_more_keys_than_mooncake_s_may_count_otherwise_and_is_not_guessed(tmp_path):
    path = write(tmp_path, '{"chat_id": 1, ' + mooncake((1, 30, 2, [4, 5]))[1:])
    with pytest.raises(InputError, match="no format that kvsim recognizes"):
        read_trace(path)


def test_burstgpt_without_sessions_leaves_out_failures(tmp_path):
    rows = ["5,ChatGPT,472,18,490,Conversation log", "45,ChatGPT,1087,0,1087,Conversation log",
            "118,GPT-4,417,276,693,API log", "118,GPT-4,7,0,7,API log"]  # fmt: skip
    trace = read_trace(write(tmp_path, "\n".join([BURST, *rows, ""])))
    assert trace.arrival_ns.tolist() == [0, 113 * 10**9]
    assert trace.output_tokens.tolist() == [18, 276]
    assert trace.session is None
    assert trace.notes == ("log: 2 rows failed, without an answer, left out",)


def test_burstgpt_sessions_are_numbered_as_they_come(tmp_path):
    rows = ["9.5,41,2.0,ChatGPT,10,1,11,Conversation log", "3.25,7,1.5,ChatGPT,11,2,13,API log",
            "4,,1.5,ChatGPT,12,3,15,API log", "8,41,2,GPT-4,13,4,17,Conversation log"]  # fmt: skip
    trace = read_trace(write(tmp_path, "\r\n".join([BURST_SESSIONS, *rows])))
    assert trace.prompt_tokens.tolist() == [11, 12, 13, 10]
    assert trace.session.tolist() == [0, -1, 1, 1]


BENCH = {
    "date": "20260102-030405", "endpoint_type": "openai", "request_rate": "inf", "completed": 3,
    "failed": 1, "total_input_tokens": 306,
    "input_lens": [100, 200, 5, 6], "output_lens": [3, 2, 0, 9],
    "ttfts": [0.1, 0.2, 0.0, 0.1], "itls": [[0.05, 0.07], [0.1], [], []],
    "start_times": [4242.5000000004, 4243.75, 0.0, 4242.25],
    "generated_texts": ["a\nb", "", "", "{"], "errors": ["", "", "timeout", ""],
}  # fmt: skip


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("size", [1, 200_000])
def test_results_of_vllm_s_benchmark_client(tmp_path, indent, size):
    result = {**BENCH, "generated_texts": ["x" * size] * 4}
    trace = read_trace(write(tmp_path, json.dumps(result, indent=indent)))
    assert trace.arrival_ns.tolist() == [0, 250_000_000, 1_500_000_000]
    assert trace.prompt_tokens.tolist() == [6, 100, 200]
    assert trace.output_tokens.tolist() == [9, 3, 2]
    assert trace.notes == ("log: 1 row failed, without an answer, left out",)


def test_results_of_an_older_benchmark_client_have_lengths_only(tmp_path):
    path = write(tmp_path, json.dumps({k: v for k, v in BENCH.items() if k != "start_times"}))
    assert read_lengths(path)[0].tolist() == [100, 200, 6]
    with pytest.raises(InputError, match="no column 'start_times'"):
        read_trace(path)


def lifecycle(start, tokens, answer, *, nested, error=None):
    times = {"output_token_times": [start + 0.1]}
    info = {"input_tokens": tokens}
    if nested:
        info["request_metrics"] = {"text": {"input_tokens": tokens}}
        info["response_metrics"] = {"output_tokens": answer, **times} if answer else None
    else:
        info |= {"output_tokens": answer, **times}
    return {"start_time": start, "end_time": start + 1, "request": '{"prompt": "[{"}',
            "response": "…", "info": info, "error": error}  # fmt: skip


@pytest.mark.parametrize("nested", [False, True])
def test_results_of_inference_perf(tmp_path, nested):
    failed = {"error_type": "TimeoutError", "error_msg": ""}
    requests = [
        lifecycle(300.5, 591, 140, nested=nested),
        lifecycle(300.25, 320, 80, nested=nested),
        lifecycle(1.0, 9, 0, nested=nested, error=failed),
    ]
    trace = read_trace(write(tmp_path, json.dumps(requests, indent=2)))
    assert trace.arrival_ns.tolist() == [0, 250_000_000]
    assert trace.prompt_tokens.tolist() == [320, 591]
    assert trace.output_tokens.tolist() == [80, 140]
    assert "1 row failed" in trace.notes[0]


@pytest.mark.parametrize(
    ("document", "wrong"),
    [
        ('{"input_lens": [1], "output_lens": [1, 2]}', "not 1 in 'input_lens', 2 in 'output_lens'"),
        ('{"input_lens": [1], "output_lens": [1], "errors": []}', "1 in 'output_lens', 0 in 'err"),
        ('{"input_lens": [1', "delimiter at line 1, column 18"),
        ('{"input_lens": [{}]}', "it has no 'output_lens'"),
        ('{"input_lens": [3, {}], "output_lens": [1, 2]}', "'input_lens' of row 2 should be a num"),
        ('{"input_lens": [3, true], "output_lens": [1, 2]}', "should be a number, not true"),
        ('{"input_lens": [3, 1e400], "output_lens": [1, 1%s]}' % ("0" * 30), "'output_lens' of"),
        ('[{"start_time": 1}]', "row 1 has no 'info'"),
        ('[{"start_time": 1, "info": 3}]', "'info' of row 1 should not be 3"),
        ('[{"start_time": 1, "info": {}}, 2]', "row 2 should be an object, not 2"),
        ('[{"start_time": 1, "info": {}}, {"info": {}}]', "row 2 has no 'start_time'"),
        ('[{"start_time": [], "info": {}}]', "'start_time' of row 1 should be a number, not a li"),
    ],
)
def test_broken_results_are_told_in_one_message(tmp_path, document, wrong):
    with pytest.raises(InputError, match=r"log: is not in the form expected: .*" + wrong):
        read_trace(write(tmp_path, document))


@pytest.mark.parametrize("name", ["vllm_bench", "inference_perf"])
@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"\xff\xfe\x00junk", "should be JSON; its first line is"),
        (b"a,b\n1,2\n", "should be JSON; its first line is 'a,b'"),
        (b"PAR1", "can't be read"),
        (b'{"a": "\xff"}', "it is no UTF-8 text"),
        (b"[" * 100_000, "it is nested too deep"),
        (b"[1, 2" * 3, r"at line 1, column \d+"),
    ],
)
def test_what_is_no_document_is_told_in_words(tmp_path, name, content, wrong):
    with pytest.raises(InputError, match=f"log: .*{wrong}") as caught:
        read_trace(write(tmp_path, content), format=name)
    assert len(str(caught.value)) < 300


def test_parquet_is_no_document(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "log")
    with pytest.raises(InputError, match="should be JSON; it is Parquet with the columns a"):
        read_trace(tmp_path / "log", format="vllm_bench")


def test_documents_have_a_largest_size(tmp_path, monkeypatch):
    path = write(tmp_path, gzip.compress(json.dumps(BENCH).encode()))
    assert len(read_trace(path)) > 0
    monkeypatch.setattr("kvsim.workload.traces._document._LARGEST_BYTES", 50)
    with pytest.raises(InputError, match="at most"):
        read_trace(path)


@pytest.mark.parametrize("name", [None, "vllm_bench"])
def test_devices_and_pipes_are_refused_before_they_are_read(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe"):
        with pytest.raises(InputError, match="is no regular file"):
            read_trace(path, format=name)
        with pytest.raises(InputError, match="is no regular file"):
            content_digest(path)
    with pytest.raises(InputError, match="is a folder"):
        read_trace(tmp_path, format=name)


def test_a_row_of_a_document_is_told_by_its_number(tmp_path):
    path = write(tmp_path, json.dumps({**BENCH, "input_lens": [100, "many", 5, 6]}))
    with pytest.raises(InputError, match="'input_lens' of row 2 should be a number, not \"many\""):
        read_trace(path)
    path = write(tmp_path, json.dumps({**BENCH, "input_lens": [100, 0, 5, 6]}))
    with pytest.raises(InputError, match="row 2: prompt and answer must have") as caught:
        read_trace(path)
    assert caught.value.problems[0].line is None


COMPRESSIONS = {
    "plain": lambda text: text,
    "gzip": gzip.compress,
    "two gzip members": lambda text: gzip.compress(text[:99]) + gzip.compress(text[99:]),
    "zstd": lambda text: pa.compress(text, "zstd", asbytes=True),
}


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", ["azure_2023_conv.csv", "mooncake_conversation.jsonl"])
@pytest.mark.parametrize("block_bytes", [97, 1 << 23])
def test_how_a_file_is_written_changes_nothing(
    tmp_path, monkeypatch, compression, name, block_bytes
):
    monkeypatch.setattr("kvsim.workload.traces._source._BLOCK_BYTES", block_bytes)
    original = (DATA / name).read_bytes()
    expected = read_trace(DATA / name)
    lf = original.replace(b"\r\n", b"\n")
    written = {
        "as it is": original,
        "BOM": b"\xef\xbb\xbf" + original,
        "LF": lf,
        "CRLF": lf.replace(b"\n", b"\r\n"),
        "blank last lines": original + b"\r\n\r\n  \n",
        "no last end": original.rstrip(),
    }
    for how, content in written.items():
        trace = read_trace(write(tmp_path, COMPRESSIONS[compression](content)))
        for field in ("arrival_ns", "prompt_tokens", "output_tokens"):
            assert np.array_equal(getattr(trace, field), getattr(expected, field)), how
        if expected.segments is not None:
            assert np.array_equal(trace.segments.seed, expected.segments.seed), how


@pytest.mark.parametrize("cut", [3, 40, -4])
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_broken_archive_is_refused(tmp_path, compression, cut):
    content = COMPRESSIONS[compression]((DATA / "azure_2023_conv.csv").read_bytes())
    with pytest.raises(InputError, match="log"):
        read_trace(write(tmp_path, content[:cut]))


def test_an_unknown_file_names_the_formats_and_its_first_line(tmp_path):
    path = write(tmp_path, "when,what\n1,2\n")
    with pytest.raises(InputError) as caught:
        read_trace(path)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == (str(path), 1)
    assert "its first line is 'when,what'" in problem.message
    for name in formats():
        assert f"{name}: " in problem.message


def test_a_key_of_a_later_line_is_told_where_it_stands(tmp_path):
    lines = mooncake((1, 30, 2, [4]), (2, 30, 2, [4]), (3, 31, 2, [4])).splitlines()
    lines[1] = lines[1].replace("{", '{"turn": 1, ')
    path = write(tmp_path, "\n".join(lines))
    with pytest.raises(
        InputError, match="log:2: has 'turn', which format mooncake has not"
    ) as caught:
        read_trace(path)
    assert len(caught.value.problems) == 1
    assert len(read_trace(path, format="mooncake")) == 3


def test_a_format_can_be_named(tmp_path):
    path = write(tmp_path, '{"turn": 1, ' + mooncake((1, 30, 2, [4]), (3, 31, 2, [4]))[1:])
    trace = read_trace(path, format="mooncake", time_unit="s")
    assert trace.arrival_ns.tolist() == [0, 2 * 10**9]
    with pytest.raises(InputError, match=r"did you mean mooncake\?; known: azure, "):
        read_trace(path, format="moncake")
    with pytest.raises(InputError, match="no column 'TIMESTAMP'; columns: turn, timestamp"):
        read_trace(path, format="azure")
    with pytest.raises(InputError, match="say which columns"):
        read_trace(path, format="columns")
