"""The Azure LLM inference traces of 2023 and 2024, read as published.

https://github.com/Azure/AzurePublicDataset (CC-BY-4.0, Microsoft): those of 2023 end lines in CRLF
and have seven digits after the point, those of 2024 a time zone; the last line may lack its end.
"""

from kvsim.workload.traces.format import Columns, Layout
from kvsim.workload.traces.table import TableFormat

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"

FORMAT = TableFormat(
    name="azure",
    shape=f"CSV with {HEADER}",
    layout=Layout(
        columns=Columns(
            arrival="TIMESTAMP", prompt_tokens="ContextTokens", output_tokens="GeneratedTokens"
        ),
        time_unit="timestamp",
        example="2023-11-16 18:15:46.6805900,374,44",
    ),
)
