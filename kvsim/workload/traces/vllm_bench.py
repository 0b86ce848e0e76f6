"""Results of `vllm bench serve --save-result --save-detailed`: one JSON object, lists by request.

As `vllm/benchmarks/serve.py` writes it: `start_times` are seconds of the client's clock; a failed
request has an entry in `errors`, and no answer.
"""

import re
from typing import Any

from kvsim.workload.traces._document import entry, refuse_ragged
from kvsim.workload.traces.format import Columns, Head, Layout, Reading
from kvsim.workload.traces.table import read_table
from kvsim.workload.traces.trace import Trace

_KEYS = re.compile(r'\A\s*\{.*"input_lens"\s*:\s*\[', re.DOTALL)


class VllmBench:
    """Requests as vLLM's benchmark client sent them; see `Format`."""

    name = "vllm_bench"
    shape = "JSON of `vllm bench serve --save-result --save-detailed`"

    def recognizes(self, head: Head) -> bool:
        """Return whether the file begins with one object that has `input_lens`; see `Format`."""
        return head.kind in ("json", "jsonl") and bool(_KEYS.match(head.text))

    def read(self, reading: Reading) -> Trace:
        """Read a file; see `Format`."""
        return read_table(reading, _LAYOUT, self.name)


def _rows(result: Any) -> dict[str, list[Any]]:
    columns = {name: entry(result, name, list) for name in ("input_lens", "output_lens")}
    for name in ("start_times", "errors"):  # older versions of vLLM don't keep the times
        if name in result:
            columns[name] = entry(result, name, list)
    refuse_ragged(columns)
    for row, error in enumerate(columns.pop("errors", ())):
        if error:
            columns["output_lens"][row] = 0
    return columns


_LAYOUT = Layout(
    columns=Columns(arrival="start_times", prompt_tokens="input_lens", output_tokens="output_lens"),
    time_unit="s",
    zero_output_fails=True,
    rows=_rows,
)
FORMAT = VllmBench()
