"""What a benchmark's client sent → the request table of a simulation."""

from dataclasses import replace
from typing import Any

import numpy as np

from kvsim.calibrate.result import BenchmarkResult
from kvsim.units import NS_PER_S
from kvsim.validate.deployments import validated
from kvsim.workload.build import build_requests
from kvsim.workload.parameters import Workload
from kvsim.workload.requests import RequestTable


def requests_of(result: BenchmarkResult, seed: int) -> RequestTable:
    """Return the requests, the same for the same seed; their prompts have nothing in common.

    Requests that the client sent at times of its own keep these times; where a limit of requests in
    flight made it wait for the server, they are up to the simulated one.
    """
    arrivals: dict[str, Any] = {"kind": "all_at_once"}
    if result.rate_per_s is not None:
        arrivals = {"kind": "constant", "rate_per_s": result.rate_per_s}
        if result.burstiness is not None:
            arrivals |= {"kind": "gamma", "burstiness": result.burstiness}
    values = {
        "arrivals": arrivals,
        "num_requests": len(result),
        "max_concurrency": result.max_concurrency,
        "lengths": {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1},
        "max_tokens": "output",
    }
    drawn = build_requests(validated(Workload, values), seed)
    order = np.arange(len(result))
    arrival_ns = drawn.arrival_ns
    if result.sent_s is not None and result.max_concurrency is None:
        order = np.argsort(result.sent_s, kind="stable")
        since_s = result.sent_s[order] - result.sent_s.min()
        arrival_ns = np.rint(since_s * NS_PER_S).astype(np.int64)
    return replace(
        drawn,
        arrival_ns=arrival_ns,
        horizon_ns=max(drawn.horizon_ns, int(arrival_ns[-1]) + 1) if drawn.horizon_ns else 0,
        prompt_tokens=result.prompt_tokens[order],
        output_tokens=result.output_tokens[order],
        max_tokens=result.output_tokens[order],
    )
