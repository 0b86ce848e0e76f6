"""Synthetic runs: a queue in front of equal servers, from which tables follow by arithmetic."""

import heapq
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from kvsim.metrics import RunContext, StepCosts
from kvsim.metrics.summary import summarize
from kvsim.report.inputs import BasisLine, ReportInput, Variant
from kvsim.rng import stream
from kvsim.tables import EVENT_KINDS, EVENTS, HEAD_LACKS, OUTCOMES, REQUESTS, STEPS

S = 1_000_000_000
MAX_MODEL_LEN = 16_384
SLO = {"ttft_p99_s": 2.0, "tpot_p99_s": 0.05, "e2e_p95_s": 30.0, "max_failed_fraction": 0.001}
PARTS = (
    ("gemm", "hbm", "measured", 0.55),
    ("gemm", "compute", "measured", 0.08),
    ("attention_decode", "hbm", "interpolated", 0.2),
    ("attention_prefill", "compute", "measured", 0.05),
    ("norms_and_activations", "hbm", "measured", 0.04),
    ("logits", "hbm", "interpolated", 0.03),
    ("host", "host", "physical", 0.05),
)


@dataclass(frozen=True)
class Traffic:
    """Requests and steps to generate; `slots` is how many a contiguous cache serves at once."""

    requests: int = 300
    steps: int = 3_000
    rate_per_s: float = 5.0
    slots: int = 25
    preempted: int = 0
    seed: int = 7


def empty(columns) -> dict[str, np.ndarray]:
    return {column.name: np.zeros(0, dtype=np.int64) for column in columns}


def request_table(traffic: Traffic, servers: int) -> dict[str, np.ndarray]:
    """First come, first served by so many servers, each a fixed time a token."""
    random = stream(traffic.seed, "report-tests")
    count = traffic.requests
    arrival = np.cumsum(random.exponential(S / traffic.rate_per_s, count)).astype(np.int64)
    prompt = random.integers(100, 3000, count)
    output = random.integers(1, 600, count)
    free_at = [0] * servers
    admitted = np.zeros(count, dtype=np.int64)
    for row in range(count):
        admitted[row] = max(arrival[row], heapq.heappop(free_at))
        heapq.heappush(free_at, int(admitted[row] + 40_000_000 + 15_000_000 * output[row]))
    columns = {column.name: np.zeros(count, dtype=np.int64) for column in REQUESTS}
    return columns | {
        "request": np.arange(count),
        "group": np.arange(count),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "max_tokens": MAX_MODEL_LEN - prompt,
        "arrival_ns": arrival,
        "queued_ns": arrival,
        "admitted_ns": admitted,
        "first_token_ns": admitted + 40_000_000,
        "finish_ns": admitted + 40_000_000 + 15_000_000 * (output - 1),
    }


def step_table(requests, steps: int, capacity: int, reserve: int) -> dict[str, np.ndarray]:
    """Steps of equal length; what they hold follows from who is being served at their start."""
    end = int(requests["finish_ns"].max())
    duration = end // steps + 1
    start = np.arange(steps) * duration

    def total(at: np.ndarray, weights: np.ndarray) -> np.ndarray:
        order = np.argsort(at)
        sums = np.concatenate([[0.0], np.cumsum(weights[order])])
        return sums[np.searchsorted(at[order], start, side="right")]

    began, done = requests["admitted_ns"], requests["finish_ns"]
    ones, output = np.ones(len(began)), requests["output_tokens"]
    running = total(began, ones) - total(done, ones)
    speed = output / np.maximum(done - began, 1)
    known = requests["prompt_tokens"] - speed * began
    held = total(began, known) - total(done, known)
    held += start * (total(began, speed) - total(done, speed))
    whole = requests["prompt_tokens"] + output
    held = np.clip(held, running, None).astype(np.int64)
    come = np.clip(total(began, whole) - total(done, whole) - held, 0, None).astype(np.int64)
    come = come if reserve else running.astype(np.int64) * 7
    inside = np.clip(running * reserve - held - come, 0, None).astype(np.int64)
    waiting = total(requests["arrival_ns"], ones) - total(began, ones)
    columns = {column.name: np.zeros(steps, dtype=np.int64) for column in STEPS}
    lacks = HEAD_LACKS.index("kv_blocks")
    return columns | {
        "step": np.arange(steps),
        "start_ns": start,
        "duration_ns": np.full(steps, duration),
        "decode_seqs": running.astype(np.int64),
        "running_seqs": running.astype(np.int64),
        "waiting_seqs": waiting.astype(np.int64),
        "head_lacks": np.where(waiting > 0, lacks, 0),
        "kv_held_tokens": held,
        "kv_to_come_tokens": come,
        "kv_inside_tokens": inside,
        "kv_free_tokens": capacity - held - come - inside,
    }


def event_table(traffic: Traffic, requests) -> dict[str, np.ndarray]:
    columns = {column.name: np.zeros(traffic.preempted, dtype=np.int64) for column in EVENTS}
    hit = np.arange(traffic.preempted) % len(requests["request"])
    columns["request"] = hit
    columns["time_ns"] = np.sort(requests["first_token_ns"][hit])
    columns["event"][:] = EVENT_KINDS.index("preempted")
    np.add.at(requests["preemptions"], hit, 1)
    np.add.at(requests["recomputed_tokens"], hit, 500)
    return columns


def step_costs(steps) -> StepCosts:
    duration = steps["duration_ns"].astype(float)
    parts = [
        (SimpleNamespace(component=component, bound=bound, basis=basis), share * duration)
        for component, bound, basis, share in PARTS
    ]
    work = np.ones(len(duration))
    return StepCosts(parts, work * 1e12, work * 1e10)


def make_variant(name, requests, steps, events, slo=SLO, **more) -> Variant:
    capacity = (
        sum(int(steps[k][0]) for k in steps if k.startswith("kv_")) if len(steps["step"]) else 0
    )
    context = RunContext(
        horizon_ns=int(requests["arrival_ns"].max(initial=0)) or S,
        kv_capacity_tokens=capacity or 1000,
        kv_bytes_per_token=131072.0,
        max_num_seqs=256,
        slo=slo,
        price_usd_per_gpu_hour=2.5,
        costs_of=step_costs,
        peak_flop_per_s=1e15,
        peak_hbm_bytes_per_s=3.35e12,
    )
    return Variant(
        name, summarize(requests, steps, events, context), requests, steps, events, **more
    )


def make_run(traffic: Traffic = Traffic(), names=("base", "contiguous"), slo=SLO) -> ReportInput:
    """A run with a paged base and contiguous variants, on the same requests."""
    capacity = traffic.slots * MAX_MODEL_LEN
    variants = []
    for place, name in enumerate(names):
        requests = request_table(traffic, traffic.slots if place else 256)
        steps = step_table(requests, traffic.steps, capacity, MAX_MODEL_LEN if place else 0)
        events = event_table(replace(traffic, preempted=0) if place else traffic, requests)
        kind = "contiguous" if place else "paged"
        variants.append(
            make_variant(
                name,
                requests,
                steps,
                events,
                slo,
                inputs={"engine": {"max_num_seqs": 256}, "kv_cache": {"kind": kind}},
                memory_bytes={"weights": 16.1e9, "CUDA graphs": 3e8, "KV cache": 53.3 * 2**30},
                basis=(BasisLine("attention_decode", "interpolated", "between batches"),),
                notes=("Prefix caching is off; vLLM's default is on.",),
            )
        )
    return ReportInput(
        scenario="chat",
        question="Does one H100 serve the chat traffic at twice its rate? What does paging gain?",
        variants=variants,
        limits=("Speculative decoding", "Tokenizer and front end"),
        facts={"Seed": "1", "Scenario hash": "0f" * 32},
        command="kvsim run scenarios/chat.yaml",
    )


def rejected_run() -> ReportInput:
    requests = request_table(Traffic(requests=5), 1)
    requests["outcome"][:] = OUTCOMES.index("rejected")
    for column in ("admitted_ns", "first_token_ns"):
        requests[column][:] = -1
    requests["finish_ns"] = requests["arrival_ns"].copy()
    variant = make_variant("base", requests, empty(STEPS), empty(EVENTS))
    return ReportInput("all rejected", "", [variant])


def empty_run() -> ReportInput:
    variant = make_variant("base", empty(REQUESTS), empty(STEPS), empty(EVENTS))
    return ReportInput("empty", "", [variant])


@pytest.fixture(scope="session")
def synthetic() -> SimpleNamespace:
    """The generators, for tests in this folder."""
    return SimpleNamespace(run=make_run, rejected=rejected_run, empty=empty_run, Traffic=Traffic)
