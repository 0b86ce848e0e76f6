"""The result tables: which columns there are, in which unit.

Raw tables hold timestamps and counts; everything derived from them lives in `kvsim.metrics`.
All times are integer nanoseconds of the simulated clock, all lengths are tokens.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result table; `codes` names the values of a column that stores codes."""

    name: str
    unit: str
    description: str
    codes: tuple[str, ...] = ()


# What happened to a request in the end. Nobody vanishes: each request has one row and one outcome.
OUTCOMES = ("finished", "rejected", "unfinished", "timed_out")
# What the request at the head of the queue lacked when a step had been scheduled.
HEAD_LACKS = (
    *("nothing", "kv_blocks", "hole", "sequence_slot", "token_budget", "preempting"),
    # Where another setting is what binds: max_num_active_seqs instead of max_num_seqs,
    # max_num_scheduled_tokens instead of max_num_batched_tokens, prefill_schedule_interval.
    *("watermark", "active_sequence_slot", "scheduled_token_budget", "prefill_step"),
    # Of earlier engines: swapped requests come first; a static batch takes nobody in.
    *("swapped", "batch_end"),
)
EVENT_KINDS = (
    *("preempted", "resumed", "rejected", "evicted", "compacted"),
    *("swapped_out", "swapped_in", "delayed"),
)
# Codes of the events with which a request loses its KV cache, and of those with which it goes on.
LOSSES = [EVENT_KINDS.index(kind) for kind in ("preempted", "swapped_out")]
RETURNS = [EVENT_KINDS.index(kind) for kind in ("resumed", "swapped_in")]
# What a KV slot is used for; `steps` has a column kv_USE_tokens of each.
SLOT_USES = ("held", "to_come", "inside", "rounding", "holes", "reusable", "free")
HELD, TO_COME, INSIDE, ROUNDING, HOLES, REUSABLE, FREE = range(len(SLOT_USES))
SLOT_COLUMNS = tuple(f"kv_{use}_tokens" for use in SLOT_USES)

REQUESTS = (
    Column("request", "count", "Number of the request as it was drawn, from 0; retries come after"),
    Column("group", "count", "Request of the client; its samples (n > 1) share the number"),
    Column("session", "count", "Conversation that it belongs to, the group if none is known"),
    Column("attempt", "count", "0, or which retry of its client it is"),
    Column("class", "code", "Class of traffic", ("all",)),
    Column("replica", "count", "Replica that served it, -1 if none did"),
    Column("prompt_tokens", "tokens", "Prompt length"),
    Column("max_tokens", "tokens", "Longest answer allowed"),
    Column("output_tokens", "tokens", "Tokens generated"),
    Column("arrival_ns", "ns", "Arrival at the server"),
    Column("queued_ns", "ns", "In the engine's queue, the front end is done; -1 if never"),
    Column("admitted_ns", "ns", "First scheduled, -1 if never"),
    Column("first_token_ns", "ns", "First token produced, -1 if never"),
    Column("finish_ns", "ns", "Last token, rejection, or its client gave up; -1 if unfinished"),
    Column("outcome", "code", "What became of it", OUTCOMES),
    Column("preemptions", "count", "How often it lost its KV cache"),
    Column("recomputed_tokens", "tokens", "Tokens computed again after preemptions"),
    Column("cached_tokens", "tokens", "Prompt tokens found in the prefix cache at admission"),
    Column("resumed_cached_tokens", "tokens", "Tokens found there when it resumed, in sum"),
)

STEPS = (
    Column("replica", "count", "Replica"),
    Column("step", "count", "Number of the engine iteration on its replica, from 0"),
    Column("start_ns", "ns", "Start of the iteration"),
    Column("duration_ns", "ns", "Duration of the iteration"),
    Column("prefill_seqs", "seqs", "Sequences with a prefill chunk"),
    Column("prefill_tokens", "tokens", "Tokens of these chunks"),
    Column("prefill_kv_tokens", "tokens", "Sum over chunks of the context at the chunk's end"),
    Column("prefill_pairs", "pairs", "Query-key pairs of the chunks under the causal mask"),
    Column("prefill_attention_ns", "ns", "Attention of the chunks in this iteration, all layers"),
    Column("decode_seqs", "seqs", "Sequences that decode one token"),
    Column("decode_kv_tokens", "tokens", "Sum of their contexts, the new token included"),
    Column("discarded_seqs", "seqs", "Those of them that had ended: their token is discarded"),
    Column("running_seqs", "seqs", "Sequences admitted, after scheduling"),
    Column("waiting_seqs", "seqs", "Requests waiting, after scheduling"),
    Column("preempted_seqs", "seqs", "Sequences preempted by this scheduling call"),
    Column("head_lacks", "code", "What the head of the queue lacked after scheduling", HEAD_LACKS),
    Column(
        "kv_held_tokens",
        "tokens",
        "KV slots that hold tokens, those of this step included; with sliding windows a token has "
        "one in each KV group, until the window has passed it",
    ),
    Column("kv_to_come_tokens", "tokens", "Slots taken for tokens that will still come"),
    Column("kv_inside_tokens", "tokens", "Slots taken that no token will ever fill"),
    Column("kv_rounding_tokens", "tokens", "Slots lost to rounding up (buddy chunks)"),
    Column("kv_holes_tokens", "tokens", "Free slots in holes too small to be used"),
    Column("kv_reusable_tokens", "tokens", "Free slots that hold prefixes which can be found"),
    Column("kv_free_tokens", "tokens", "Other free slots that can be used"),
    Column("paused_seqs", "seqs", "Sequences that decode, but not in this iteration (V0)"),
    Column("swapped_seqs", "seqs", "Sequences swapped out to the host, after scheduling"),
    Column("swap_ns", "ns", "Copying of swapped blocks in this iteration, before the model runs"),
    Column("late_seqs", "seqs", "Decoding sequences that paused before it or were swapped in"),
    Column(
        "shared_kv_tokens",
        "tokens",
        "Slots that would be taken beside these if no two sequences shared a block; negative while "
        "a declared prefix is kept for nobody",
    ),
)

EVENTS = (
    Column("replica", "count", "Replica, -1 if none"),
    Column("time_ns", "ns", "When it happened"),
    Column("step", "count", "Iteration of the replica, -1 if none"),
    Column("request", "count", "Request, -1 if none"),
    Column("event", "code", "What happened", EVENT_KINDS),
    Column("tokens", "tokens", "Tokens lost, moved or refused; delayed: that came late"),
    Column(
        "gap_ns",
        "ns",
        "resumed, swapped_in, delayed: time between the tokens around the preemption or pause; "
        "compacted: time of the copy",
    ),
)

# What `--advise` found: rows of texts (unit `text`) and numbers, one a change.
ADVICE_OUTCOMES = ("found", "at_least", "never", "unknown", "late", "declined")
ADVICE = (
    Column("key", "text", "Which change; `base`: the scenario as it is"),
    Column("change", "text", "The change in words"),
    Column("settings", "text", "What is set for it: dotted paths of the scenario, and values"),
    Column(
        "outcome",
        "text",
        "found; at_least: no load that was tried misses the SLO; never: none meets it; unknown: "
        "too little was simulated to tell; late: the time was up before; declined: not tried",
    ),
    Column("why", "text", "Why there is no more to tell; empty where the capacity was found"),
    Column("unit", "text", "Of the capacity: requests/s, or users of a closed loop"),
    Column("capacity", "as `unit` says", "Highest load that meets the SLO"),
    Column("capacity_low", "as `unit` says", "Lower end of its interval"),
    Column("capacity_high", "as `unit` says", "Upper end of its interval"),
    Column("ratio", "times", "Its capacity over that of the scenario as it is"),
    Column("ratio_low", "times", "Lower end of the ratio's interval"),
    Column("ratio_high", "times", "Upper end of the ratio's interval"),
    Column("confidence", "fraction", "Of the intervals; none: nothing is random"),
    Column("gpus", "count", "GPUs of all replicas"),
    Column("usd_per_hour", "USD/h", "What they cost"),
    Column("usd_per_million_output_tokens", "USD", "The same for a million tokens, at capacity"),
    Column("limited_by", "text", "Target of the SLO that sets the capacity"),
    Column("limit", "text", "What requests wait for at capacity, else what bounds the steps"),
    Column("basis", "text", "What the prices of its steps rest on, as shares of their time"),
    Column("caveat", "text", "What no simulation of it tells"),
    Column("simulations", "count", "So many simulations found it"),
)

MEMORY_LOOKS = (
    Column("time_ns", "ns", "When the KV cache of the first replica was looked at"),
    *(
        Column(f"{use}_tokens", "tokens", "KV slots: " + words)
        for use, words in zip(
            SLOT_USES,
            (
                *("that hold tokens", "taken for tokens that will still come"),
                *("taken that no token will ever fill", "lost to rounding up"),
                *("free, in holes smaller than the reservation last asked for",),
                *("free, with a prefix that can be found", "free otherwise"),
            ),
            strict=True,
        )
    ),
    Column("holes", "count", "Runs of neighboring slots that are free, usable or not"),
    Column("largest_hole_tokens", "tokens", "The longest of them"),
)

MEMORY_MAP = (
    Column("time_ns", "ns", "When the KV cache of the first replica was looked at"),
    Column("start", "slots", "First slot of a run of neighboring slots"),
    Column("length", "slots", "Its slots"),
    Column("use", "code", "What they are used for; of cells, what most of them are", SLOT_USES),
    Column("request", "count", "Request that has them; -1 if none, or several, do"),
)

TABLES: Mapping[str, tuple[Column, ...]] = {"requests": REQUESTS, "steps": STEPS, "events": EVENTS}


# The memory map: what lies where in the KV cache; not every run has it.
MAP_TABLES: Mapping[str, tuple[Column, ...]] = {
    "memory_looks": MEMORY_LOOKS,
    "memory_map": MEMORY_MAP,
}


def tables_of(class_names: tuple[str, ...]) -> dict[str, tuple[Column, ...]]:
    """Return the tables of a run whose traffic has these classes; none: all is one class."""
    requests = tuple(
        replace(column, codes=class_names) if class_names and column.name == "class" else column
        for column in REQUESTS
    )
    return {**TABLES, "requests": requests}


Columns = Mapping[str, NDArray[np.int64]]


class ChosenRows(Mapping[str, NDArray[np.int64]]):
    """Some rows of a table; a column is picked when it is asked for."""

    def __init__(self, table: Columns, chosen: NDArray[np.bool_]) -> None:
        self._table = table
        self._chosen = chosen

    def __getitem__(self, name: str) -> NDArray[np.int64]:
        return self._table[name][self._chosen]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)
