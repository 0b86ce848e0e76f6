from collections.abc import Callable

import numpy as np
import pytest

from kvsim.metrics import RunContext
from kvsim.tables import TABLES

Table = dict[str, np.ndarray]


def table_of(name: str, rows: list[dict[str, int | str]]) -> Table:
    """Build a result table; a column that a row doesn't mention is 0, codes go by their names."""
    known = {column.name for column in TABLES[name]}
    for row in rows:
        assert row.keys() <= known, row.keys() - known
        if "arrival_ns" in row:
            row.setdefault("queued_ns", row["arrival_ns"])
    return {
        column.name: np.array(
            [
                column.codes.index(value) if isinstance(value, str) else value
                for value in (row.get(column.name, 0) for row in rows)
            ],
            dtype=np.int64,
        )
        for column in TABLES[name]
    }


@pytest.fixture
def table() -> Callable[[str, list[dict[str, int | str]]], Table]:
    return table_of


@pytest.fixture
def context() -> Callable[..., RunContext]:
    def build(**changes: object) -> RunContext:
        usual = {
            "horizon_ns": 10,
            "kv_capacity_tokens": 100,
            "kv_bytes_per_token": 2.0,
            "max_num_seqs": 4,
        }
        return RunContext(**{**usual, **changes})

    return build


SECOND = 1_000_000_000


@pytest.fixture
def small_run(table) -> tuple[Table, Table, Table]:
    """Five requests over 10 s: two finish inside, one late, one is rejected, one unfinished.

    Request 0 waits 1 s for its first step and loses its cache once; request 2 has one token.
    """
    requests = [
        {"prompt_tokens": 10, "output_tokens": 5, "arrival_ns": 0, "admitted_ns": 1 * SECOND,
         "first_token_ns": 2 * SECOND, "finish_ns": 8 * SECOND, "outcome": "finished",
         "preemptions": 1, "recomputed_tokens": 12},
        {"prompt_tokens": 20, "output_tokens": 3, "arrival_ns": 2 * SECOND,
         "admitted_ns": 2 * SECOND, "first_token_ns": 5 * SECOND, "finish_ns": 12 * SECOND,
         "outcome": "finished"},
        {"prompt_tokens": 7, "output_tokens": 1, "arrival_ns": 4 * SECOND,
         "admitted_ns": 5 * SECOND, "first_token_ns": 6 * SECOND, "finish_ns": 6 * SECOND,
         "outcome": "finished"},
        {"prompt_tokens": 900, "arrival_ns": 5 * SECOND, "admitted_ns": -1, "first_token_ns": -1,
         "finish_ns": 5 * SECOND, "outcome": "rejected"},
        {"prompt_tokens": 9, "output_tokens": 2, "arrival_ns": 9 * SECOND,
         "admitted_ns": 11 * SECOND, "first_token_ns": 12 * SECOND, "finish_ns": -1,
         "outcome": "unfinished"},
    ]  # fmt: skip
    requests = [{**row, "request": number, "group": number} for number, row in enumerate(requests)]
    steps = [
        # idle until 1 s; two steps; idle from 5 s to 8 s; one step astride the horizon
        {"step": 0, "start_ns": 1 * SECOND, "duration_ns": 1 * SECOND, "prefill_seqs": 1,
         "prefill_tokens": 10, "running_seqs": 1, "kv_held_tokens": 10, "kv_to_come_tokens": 6,
         "kv_free_tokens": 84},
        {"step": 1, "start_ns": 2 * SECOND, "duration_ns": 3 * SECOND, "decode_seqs": 2,
         "decode_kv_tokens": 40, "running_seqs": 2, "waiting_seqs": 1, "head_lacks": "kv_blocks",
         "kv_held_tokens": 40, "kv_inside_tokens": 20, "kv_holes_tokens": 30,
         "kv_free_tokens": 10},
        {"step": 2, "start_ns": 8 * SECOND, "duration_ns": 4 * SECOND, "decode_seqs": 3,
         "running_seqs": 3, "waiting_seqs": 2, "head_lacks": "sequence_slot",
         "kv_held_tokens": 80, "kv_rounding_tokens": 5, "kv_free_tokens": 15},
    ]  # fmt: skip
    events = [
        {"time_ns": 5 * SECOND, "step": 1, "request": 3, "event": "rejected"},
        {"time_ns": 8 * SECOND, "step": 2, "request": 0, "event": "resumed", "gap_ns": 6 * SECOND},
    ]
    return table("requests", requests), table("steps", steps), table("events", events)
