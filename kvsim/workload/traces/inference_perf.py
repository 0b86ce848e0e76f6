"""Results of inference-perf, `per_request_lifecycle_metrics.json`: a JSON list of requests.

https://github.com/kubernetes-sigs/inference-perf, `inference_perf/reportgen/base.py`: times are
seconds of the client's clock. The counts of tokens stand in `info`; newer versions have that of the
answer in `info.response_metrics`. A failed request has an `error`.
"""

import re
from typing import Any

from kvsim.workload.traces.format import Columns, Head, Layout, Reading
from kvsim.workload.traces.table import read_table
from kvsim.workload.traces.trace import Trace

_KEYS = re.compile(r'\A\s*\[\s*\{[^{\[]*"start_time"\s*:')


class InferencePerf:
    """Requests as inference-perf sent them; see `Format`."""

    name = "inference_perf"
    shape = "JSON of inference-perf, per_request_lifecycle_metrics.json"

    def recognizes(self, head: Head) -> bool:
        """Return whether the file begins with a list of objects with times; see `Format`."""
        return head.kind == "json" and bool(_KEYS.match(head.text))

    def read(self, reading: Reading) -> Trace:
        """Read a file; see `Format`."""
        return read_table(reading, _LAYOUT, self.name)


def _rows(requests: list[dict[str, Any]]) -> dict[str, list[Any]]:
    infos = [request["info"] or {} for request in requests]
    return {
        "start_time": [request["start_time"] for request in requests],
        "input_tokens": [info.get("input_tokens") for info in infos],
        "output_tokens": [
            _output_tokens(info) if request.get("error") is None else 0
            for info, request in zip(infos, requests, strict=True)
        ],
    }


def _output_tokens(info: dict[str, Any]) -> int | None:
    """Return the length of an answer, None if none is told."""
    found = (info.get("response_metrics") or info).get("output_tokens")
    return found if isinstance(found, int) else None


_LAYOUT = Layout(
    columns=Columns(
        arrival="start_time", prompt_tokens="input_tokens", output_tokens="output_tokens"
    ),
    time_unit="s",
    zero_output_fails=True,
    rows=_rows,
)
FORMAT = InferencePerf()
