"""Experiment records: a JSON document with one object a run, and traces in files beside it.

What the figures mean is told by the documents of the load generator (kubernetes-sigs/inference-perf
at commit e8e0aa9) and of the measurements.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import InputError, Problem
from kvsim.validate.case import (
    OVERALL,
    Case,
    Client,
    Lengths,
    LoadStage,
    Measured,
    OpenLoop,
    Prompts,
    Replay,
    Server,
)
from kvsim.validate.fields import Fields

# The load generator's own values where a record of shared prefixes doesn't repeat them: all of its
# runs whose resolved settings are public sent 10 groups of 10 prompts, round robin.
_DISTINCT_PROMPTS, _GROUPS = 100, 10
# The load generator's `constant` draws exponential gaps, too, and scales them to the stage.
_POISSON = ("poisson", "constant")
# Where sampling isn't stated, a client over HTTP is taken to send no temperature, as inference-perf
# does: vLLM samples as the model's generation_config.json says, for chat models with top-p or
# top-k. A replay in the engine's own process samples plainly.
_IN_PROCESS = "replay"
_BLOCK_SIZE = 16  # vLLM's, where a record counts blocks and doesn't state it
_RECORDED_ELSEWHERE = "not_recorded_but_same_in_all_28_runs_with_a_record"


def cases_of(document: Mapping[str, Any], file: Path) -> list[Case]:
    """Return the experiments of a document, in its order.

    Raises:
        InputError: An entry is no object, or names neither itself nor its model and GPU.
    """
    cases: list[Case] = []
    problems: list[Problem] = []
    for place, record in enumerate(document["experiments"]):
        where = f"experiments.{place}"
        if not isinstance(record, dict):
            problems.append(Problem("must be an object", str(file), path=where))
            continue
        fields = Fields(record)
        missing = [name for name in ("id", "model", "gpu") if fields.text(name) is None]
        problems += [Problem("is missing", str(file), path=f"{where}.{name}") for name in missing]
        if not missing:
            cases.append(_case(fields, file.parent))
    if problems:
        raise InputError(*problems)
    return cases


def _case(record: Fields, folder: Path) -> Case:
    server = _server(record)
    refusals = list(_refusals(record))
    client: Client | None = None
    try:
        client = _client(record, folder)
    except InputError as error:
        refusals += [problem.message for problem in error.problems]
    measured = tuple(_measured(record, server))
    return Case(
        id=str(record.text("id")),
        server=server,
        client=client,
        measured=measured,
        refusals=(*refusals, *record.unclear),
    )


def _refusals(record: Fields) -> Iterator[str]:
    if (record.text("grade") or "").startswith("overload"):
        yield "the server was overloaded and clients gave up: its figures say little"
    if record.part("workload").truth("client_limited"):
        yield "the client was at its own limit of requests in flight"


def _server(record: Fields) -> Server:
    server = record.part("server")
    elsewhere = record.part("server_provenance").part(_RECORDED_ELSEWHERE)
    total, usable = server.count("total_kv_blocks"), server.count("usable_kv_blocks")
    return Server(
        model=str(record.text("model")),
        gpu=str(record.text("gpu")),
        engine=(record.text("engine") or "vllm").lower(),
        version=record.text("vllm_version") or record.text("version"),
        tensor_parallel_size=record.count("tp") or 1,
        pipeline_parallel_size=record.count("pp") or 1,
        data_parallel_size=record.count("dp") or 1,
        expert_parallel_size=record.count("ep"),
        precision=record.text("precision"),
        dtype=record.text("dtype"),
        kv_cache_dtype=server.text("kv_cache_dtype"),
        max_model_len=server.count("max_model_len") or elsewhere.count("max_model_len"),
        max_num_batched_tokens=server.count("max_num_batched_tokens"),
        max_num_seqs=server.count("max_num_seqs") or elsewhere.count("max_num_seqs"),
        gpu_memory_utilization=server.positive("gpu_memory_utilization"),
        block_size=server.count("block_size"),
        num_gpu_blocks=total or (usable + 1 if usable else None),  # the null block is in use
        enable_prefix_caching=server.truth("prefix_caching"),
        enable_chunked_prefill=server.truth("chunked_prefill"),
        sampling="plain" if _arrivals(record) == _IN_PROCESS else "top_p",
    )


def _arrivals(record: Fields) -> str:
    return (record.part("workload").part("arrival").text("type") or "").lower()


# Who sent


def _client(record: Fields, folder: Path) -> Client:
    """Return the client; InputError if neither a trace nor a description tells of it."""
    workload = record.part("workload")
    prompts = _prompts(workload.part("prompt"))
    named = record.text("trace_file")
    if named and (folder / named).is_file():
        return Replay(folder / named, prompts)
    stages = tuple(_stages(workload))
    kind = _arrivals(record)
    missing = [] if stages else ["its stages (rate and duration)"]
    lengths = tuple(_lengths(workload))
    missing += [] if lengths else ["lengths of prompts and answers"]
    known = not kind or kind == _IN_PROCESS or any(word in kind for word in _POISSON)
    missing += [] if known else [f"a known kind of arrivals instead of {kind!r}"]
    if missing:
        trace = f"the trace {named} is not beside the file, and " if named else ""
        raise InputError(f"{trace}the workload lacks {', '.join(missing)}")
    return OpenLoop(stages, lengths, prompts)


def _prompts(prompt: Fields) -> Prompts:
    if "shared_prefix" not in (prompt.text("structure") or ""):
        return Prompts()
    return Prompts(
        prompt.count("distinct_prompts") or _DISTINCT_PROMPTS,
        prompt.count("groups") or _GROUPS,
        int(prompt.number("system_prompt_len") or 0),
    )


def _stages(workload: Fields) -> Iterator[LoadStage]:
    for stage in workload.parts("stages"):
        duration_s, count = stage.positive("duration_s"), stage.count("num_requests")
        rate_per_s = stage.positive("rate")
        if not (duration_s and (count or rate_per_s)):
            raise InputError("a stage of the workload lacks its duration, or its count and rate")
        yield LoadStage(count / duration_s if count else rate_per_s or 0.0, duration_s)


def _lengths(workload: Fields) -> Iterator[Lengths]:
    """Yield nominal lengths, scaled to the measured mean of the prompts where that is known."""
    prompt = workload.part("prompt")
    output = prompt.count("output_len")
    by_tenant = _numbers(prompt.part("nominal_prompt_len_by_tenant"))
    nominal = prompt.positive("nominal_prompt_len")
    nominals = by_tenant or ({"": nominal} if nominal else {})
    if output is None or not nominals:
        return
    shares = _numbers(workload.part("tenant_share"))
    weights = {name: shares.get(name, 1.0) for name in nominals}
    mean = sum(weights[n] * nominals[n] for n in nominals) / sum(weights.values())
    scale = (workload.part("prompt_len_measured").positive("mean") or mean) / mean
    for name, tokens in nominals.items():
        yield Lengths(weights[name], max(round(tokens * scale), 1), output)


def _numbers(fields: Fields) -> dict[str, float]:
    found = ((name, fields.positive(name)) for name in fields.names())
    return {name: number for name, number in found if number is not None}


# What was measured

_LATENCIES = (("e2e", ("mean", "p90", "p99")), ("ttft", ("mean", "p90", "p99")))


def _measured(record: Fields, server: Server) -> Iterator[Measured]:
    measured = record.part("measured")
    yield from _figures(measured.part("overall"), OVERALL)
    for stage in measured.parts("stages"):
        number = stage.number("stage")
        if number is not None and number != OVERALL:
            yield from _figures(stage, int(number))
    if server.num_gpu_blocks:
        tokens = server.num_gpu_blocks * (server.block_size or _BLOCK_SIZE)
        yield Measured("kv_cache_tokens", float(tokens))


def _figures(figures: Fields, stage: int) -> Iterator[Measured]:
    values: dict[str, float | None] = {}
    for name, statistics in _LATENCIES:
        part = figures.part(f"{name}_ms")
        values |= {f"{name}_{statistic}": part.positive(statistic) for statistic in statistics}
    values["tpot_mean"] = figures.positive("tpot_mean_true_ms") or figures.positive(
        "tpot_mean_nominal_ms"
    )
    values["itl_mean_reported"] = figures.positive("itl_mean_reported_ms")
    values["throughput"] = figures.part("throughput").positive("requests_per_sec")
    for metric, value in values.items():
        if value is not None:
            yield Measured(metric, value, stage)
