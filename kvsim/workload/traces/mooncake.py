"""The Mooncake traces (FAST'25): https://github.com/kvcache-ai/Mooncake (Apache-2.0).

Lines of JSON with times in milliseconds. `hash_ids` name the prompt's blocks of 512 tokens; the
last may have fewer, or no hash. Equal hashes mean that all up to the block's end is equal.
"""

from kvsim.workload.traces.format import Columns, Layout
from kvsim.workload.traces.table import TableFormat

FORMAT = TableFormat(
    name="mooncake",
    shape="JSONL with timestamp, input_length, output_length, hash_ids",
    kind="jsonl",
    exactly=True,  # a log with further keys may well count in other units and blocks
    layout=Layout(
        columns=Columns(
            arrival="timestamp", prompt_tokens="input_length", output_tokens="output_length"
        ),
        time_unit="ms",
        example='{"timestamp": 3000, "input_length": 700, "output_length": 52, "hash_ids": [4, 6]}',
        blocks="hash_ids",
        block_tokens=512,
    ),
)
