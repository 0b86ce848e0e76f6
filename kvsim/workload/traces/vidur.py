"""Lengths without times, as Vidur publishes them: https://github.com/microsoft/vidur (MIT)."""

from kvsim.workload.traces.format import Columns, Layout
from kvsim.workload.traces.table import TableFormat

FORMAT = TableFormat(
    name="vidur",
    shape="CSV with num_prefill_tokens,num_decode_tokens (lengths only)",
    layout=Layout(
        columns=Columns(prompt_tokens="num_prefill_tokens", output_tokens="num_decode_tokens"),
        example="3772,54,3826,69.85185185185185",
    ),
)
