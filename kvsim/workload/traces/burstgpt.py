"""BurstGPT, with or without sessions: https://github.com/HPMLL/BurstGPT (CC-BY-4.0).

Times are seconds after the first day began. A request without response tokens has failed.
"""

from kvsim.workload.traces.format import Columns, Layout
from kvsim.workload.traces.table import TableFormat

FORMAT = TableFormat(
    name="burstgpt",
    shape="CSV with Timestamp,[Session ID,Elapsed time,]Model,Request tokens,Response tokens,…",
    layout=Layout(
        columns=Columns(
            arrival="Timestamp",
            prompt_tokens="Request tokens",
            output_tokens="Response tokens",
            session="Session ID",
        ),
        time_unit="s",
        example="5,ChatGPT,472,18,490,Conversation log",
        zero_output_fails=True,
    ),
)
