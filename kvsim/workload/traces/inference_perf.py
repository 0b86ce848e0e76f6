"""Results of inference-perf, `per_request_lifecycle_metrics.json`: a JSON list of requests.

https://github.com/kubernetes-sigs/inference-perf, `inference_perf/reportgen/base.py`: times are
seconds of the client's clock. The counts of tokens stand in `info`; newer versions have that of the
answer in `info.response_metrics`. A failed request has an `error`.
"""

import re
from types import NoneType
from typing import Any

from kvsim.workload.traces._document import entry, shown
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


def _rows(requests: Any) -> dict[str, list[Any]]:
    if not isinstance(requests, list):
        raise ValueError(f"it should be a list, not {shown(requests)}")
    columns: dict[str, list[Any]] = {"start_time": [], "input_tokens": [], "output_tokens": []}
    for row, request in enumerate(requests, 1):
        info = entry(request, "info", dict | NoneType, f"row {row}") or {}
        failed = request.get("error") is not None
        columns["start_time"].append(entry(request, "start_time", object, f"row {row}"))
        columns["input_tokens"].append(info.get("input_tokens"))
        columns["output_tokens"].append(0 if failed else _output_tokens(info))
    return columns


def _output_tokens(info: dict[str, Any]) -> Any:
    """Return the length of an answer, None if none is told."""
    metrics = info.get("response_metrics") or info
    return metrics.get("output_tokens") if isinstance(metrics, dict) else None


_LAYOUT = Layout(
    columns=Columns(
        arrival="start_time", prompt_tokens="input_tokens", output_tokens="output_tokens"
    ),
    time_unit="s",
    zero_output_fails=True,
    rows=_rows,
)
FORMAT = InferencePerf()
