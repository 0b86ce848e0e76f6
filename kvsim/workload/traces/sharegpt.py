"""Lengths of ShareGPT conversations with arrivals in seconds, as LLMServingSim publishes them.

https://github.com/casys-kaist/LLMServingSim (MIT).
"""

from kvsim.workload.traces.format import Columns, Layout
from kvsim.workload.traces.table import TableFormat

FORMAT = TableFormat(
    name="sharegpt",
    shape="CSV with input_tokens,output_tokens,arrival_s",
    layout=Layout(
        columns=Columns(
            arrival="arrival_s", prompt_tokens="input_tokens", output_tokens="output_tokens"
        ),
        time_unit="s",
        example="2358,531,0.046927",
    ),
)
