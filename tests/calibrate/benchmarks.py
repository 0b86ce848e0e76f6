"""A server whose constants are known, and what benchmark clients would write of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.cost.front_end import FrontEnd
from kvsim.scenario.load import load_scenario
from kvsim.scenario.resolve import resolve
from kvsim.simulate import simulate
from kvsim.tables import REQUESTS
from kvsim.workload.requests import Gate, RequestTable

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
WORKLOAD = """
workload:
  arrivals: {kind: all_at_once}
  num_requests: 1
  lengths: {kind: fixed, prompt_tokens: 1, output_tokens: 1}
"""
_COLUMN = {column.name: place for place, column in enumerate(REQUESTS)}


def scenario(folder: Path, cost: str = "", more: str = "") -> Path:
    """Write a scenario of a small server; `cost` and `more` are lines of YAML."""
    path = folder / "server.yaml"
    engine = "{max_model_len: 8192, max_num_seqs: 64}"
    head = f"model: {MODEL}\ngpu: h100_sxm\nengine: {engine}\n"
    path.write_text(f"{head}{WORKLOAD}{cost}\n{more}\n")
    return path


def costs(**constants: float) -> str:
    """Return the `cost` of a scenario whose constants are these."""
    front = {k: v for k, v in constants.items() if k in FrontEnd.model_fields}
    host = {k: v for k, v in constants.items() if k not in front}
    return f"cost: {{overhead: {json.dumps(host)}, front_end: {json.dumps(front)}}}"


def closed_loop(concurrency: int, prompts: Any, outputs: Any) -> RequestTable:
    """Return requests that wait for one of so many permits; laid out by hand."""
    count = len(prompts)
    zeros = np.zeros(count, dtype=np.int64)
    return _table(
        zeros, prompts, outputs, gate=zeros, gates=(Gate(zeros[:concurrency]),), think_ns=zeros
    )


def open_loop(sent_s: Any, prompts: Any, outputs: Any) -> RequestTable:
    """Return requests that come at given times."""
    return _table(np.rint(np.asarray(sent_s) * 1e9).astype(np.int64), prompts, outputs)


def _table(arrival_ns: Any, prompts: Any, outputs: Any, **more: Any) -> RequestTable:
    prompts, outputs = (np.asarray(lengths, dtype=np.int64) for lengths in (prompts, outputs))
    group = np.arange(len(prompts), dtype=np.int64)
    return RequestTable(arrival_ns, prompts, outputs, outputs, group, 0, **more)


def served(path: Path, requests: RequestTable) -> dict[str, Any]:
    """Return when each request was sent, and its TTFT and E2E latency in seconds, by its number."""
    rows: list[Any] = []
    variant = resolve(load_scenario(path).base)
    simulate(variant, requests, lambda t, r: rows.append(r.copy()) if t == "requests" else None)
    table = np.concatenate(rows)
    table = table[np.argsort(table[:, _COLUMN["request"]])]
    sent, first, end = (
        table[:, _COLUMN[name]] / 1e9 for name in ("arrival_ns", "first_token_ns", "finish_ns")
    )
    return {"sent_s": sent, "ttft_s": first - sent, "e2e_s": end - sent}


def vllm_bench(
    run: dict[str, Any],
    requests: RequestTable,
    *,
    concurrency: int | None = None,
    rate: float | str = "inf",
    detailed: bool = True,
) -> dict[str, Any]:
    """Return what `vllm bench serve --save-result` writes of a run."""
    ttft_s, e2e_s, outputs = run["ttft_s"], run["e2e_s"], requests.output_tokens
    decoding_s = e2e_s - ttft_s
    result = {
        "date": "20260101-120000",
        "backend": "vllm",
        "model_id": MODEL,
        "num_prompts": len(requests),
        "request_rate": rate,
        "burstiness": 1.0,
        "max_concurrency": concurrency,
        "duration": float((run["sent_s"] + e2e_s).max()),
        "completed": len(requests),
        "failed": 0,
        "total_input_tokens": int(requests.prompt_tokens.sum()),
        "total_output_tokens": int(outputs.sum()),
        "mean_ttft_ms": 1e3 * float(ttft_s.mean()),
        "mean_tpot_ms": 1e3 * float((decoding_s / (outputs - 1)).mean()),
        "mean_itl_ms": 1e3 * float(decoding_s.sum() / (outputs - 1).sum()),
    }
    if detailed:
        result |= {
            "input_lens": requests.prompt_tokens.tolist(),
            "output_lens": outputs.tolist(),
            "start_times": (5000.0 + run["sent_s"]).tolist(),
            "ttfts": ttft_s.tolist(),
            "errors": [""] * len(requests),
        }
    return result


def written(path: Path, document: Any) -> Path:
    """Write a document as JSON."""
    path.write_text(json.dumps(document))
    return path
