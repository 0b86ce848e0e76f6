"""Engine points: a CSV with one row a server at one concurrency, as benchmark dashboards list them.

InferenceX (SemiAnalysisAI, Apache-2.0: `utils/bench_serving/benchmark_serving.py`) sends without a
rate under a semaphore, 10 requests for each place in it, with lengths drawn evenly from 0.8 x L to
L and prefix caching off. It warms the server up with requests that aren't measured; those have left
before the others come, so that they change nothing here.

Other clients aren't described. Their lengths are taken to be exact. What was measured of vLLM and
TensorRT-LLM excludes the burst at the start: with 128 prompts of 1,024 tokens at once the last ones
can't have their first token before 128 x 1,024 tokens are computed, which takes seconds, and the
mean is half of that; the rows say 0.4 to 0.7 s. So that is a steady state: requests of the first
rounds don't count. The rows of SGLang say 2 to 4 s, and grow with the burst: one round, counted.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from kvsim.validate.case import Case, ClosedLoop, Measured, Server
from kvsim.validate.fields import Fields, named_rows

NEEDED = ("model", "system", "isl", "osl", "concurrency", "ttft_ms", "tpot_ms")

_ROUNDS, _WARM_UP_ROUNDS = 10, 4
# What the client's own server scripts set where a row says nothing.
_MAX_NUM_BATCHED_TOKENS = 8192
_GPU_MEMORY_UTILIZATION = 0.9
_ROOM_TOKENS = 256  # of max_model_len, over the nominal lengths: the chat template's


def cases_of(rows: Iterator[tuple[int, Mapping[str, str]]], file: Path) -> list[Case]:
    """Return the points of a table, given with the lines that they stand in.

    Raises:
        InputError: A row names neither itself nor its model.
    """
    return [_case(row) for row in named_rows(rows, file)]


def _case(row: Fields) -> Case:
    client = _client(row)
    server = _server(row, client)
    refusals = [] if client else ["concurrency or lengths are not recorded"]
    if "overloaded" in (row.text("flags") or ""):
        refusals.append("the server was overloaded: its figures say little")
    if row.text("gpu") is None and row.text("system") is None:
        refusals.append("the GPU is not recorded")
    return Case(
        id=str(row.text("id")),
        server=server,
        client=client,
        measured=tuple(_measured(row)),
        refusals=(*refusals, *row.unclear),
    )


def _client(row: Fields) -> ClosedLoop | None:
    concurrency, isl, osl = (row.count(name) for name in ("concurrency", "isl", "osl"))
    ratio = row.positive("length_range_ratio") or 1.0
    if ratio > 1:
        row.unclear.append(f"length_range_ratio must be at most 1, not {ratio:g}")
    if not (concurrency and isl and osl):
        return None
    if _is_inferencex(row):
        return ClosedLoop(concurrency, isl, osl, ratio, _ROUNDS)
    if (row.text("backend") or "").lower() == "sglang":
        return ClosedLoop(concurrency, isl, osl, ratio, rounds=1)
    return ClosedLoop(concurrency, isl, osl, ratio, _ROUNDS, _WARM_UP_ROUNDS)


def _is_inferencex(row: Fields) -> bool:
    return (
        "inferencex" in (row.text("source_family") or "")
        or row.text("length_range_ratio") is not None
    )


def _server(row: Fields, client: ClosedLoop | None) -> Server:
    by_script = client is not None and _is_inferencex(row)
    lengths = client.prompt_tokens + client.output_tokens if client else None
    return Server(
        model=str(row.text("model")),
        gpu=row.text("system") or row.text("gpu") or "",
        engine=(row.text("backend") or "vllm").lower(),
        version=row.text("version"),
        tensor_parallel_size=row.count("tp") or 1,
        pipeline_parallel_size=row.count("pp") or 1,
        data_parallel_size=row.count("dp") or 1,
        expert_parallel_size=row.count("moe_ep"),
        expert_tensor_parallel_size=row.count("moe_tp"),
        precision=row.text("precision"),
        kv_cache_dtype=row.text("kv_cache_dtype"),
        max_model_len=lengths + _ROOM_TOKENS if lengths else None,
        max_num_batched_tokens=_MAX_NUM_BATCHED_TOKENS if by_script else None,
        max_num_seqs=client.concurrency if by_script and client else None,
        gpu_memory_utilization=_GPU_MEMORY_UTILIZATION,
        enable_prefix_caching=False,
    )


def _measured(row: Fields) -> Iterator[Measured]:
    for metric, column in (("ttft_mean", "ttft_ms"), ("tpot_mean", "tpot_ms")):
        value = row.positive(column)
        if value is not None:
            yield Measured(metric, value)
