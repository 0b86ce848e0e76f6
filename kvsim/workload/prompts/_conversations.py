"""Conversations: each prompt repeats all that was said before, as a list of segments."""

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.workload.limits import MOST_REQUESTS
from kvsim.workload.prompts import Prompts
from kvsim.workload.prompts._prefixes import Prefixes
from kvsim.workload.requests import Segments

MOST_SEGMENTS = 2 * MOST_REQUESTS  # they grow with the square of a conversation's turns


def compose_conversations(
    turns: NDArray[np.int64],
    new_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    prefixes: Prefixes | None = None,
    delay_ns: NDArray[np.int64] | None = None,
    max_context_tokens: int | None = None,
) -> Prompts:
    """Compose prompts: the session's prefix, all earlier turns with their answers, what is new.

    Args:
        turns: Requests of each session, shape (sessions,), at least 1.
        new_tokens: What is new in each prompt, shape (sum of turns,).
        output_tokens: The answers, shape (sum of turns,).
        prefixes: What sessions begin with; None: nothing.
        delay_ns: Time before each further turn, shape (sum of turns,); first turns have none.
        max_context_tokens: A session ends before a further prompt would be longer.

    Raises:
        InputError: If the prompts have more than 2e8 segments.
    """
    session, turn = _sessions_and_turns(turns)
    prompt = new_tokens + _history_tokens(turns, new_tokens + output_tokens)
    if prefixes is not None:
        prompt += prefixes.tokens[session]
    if delay_ns is not None:
        delay_ns = np.where(turn > 0, delay_ns, 0)
    if max_context_tokens is not None:
        sent = (turn == 0) | (prompt <= max_context_tokens)
        turns = np.bincount(session[sent], minlength=len(turns))
        prompt, new_tokens, output_tokens = prompt[sent], new_tokens[sent], output_tokens[sent]
        delay_ns = None if delay_ns is None else delay_ns[sent]
    segments = _segments(turns, new_tokens, output_tokens, prefixes)
    return Prompts(prompt, output_tokens, turns, segments, delay_ns)


def _sessions_and_turns(
    turns: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each request's session and its place in it, both from 0."""
    session = np.repeat(np.arange(len(turns), dtype=np.int64), turns)
    first = np.cumsum(turns) - turns
    return session, np.arange(len(session), dtype=np.int64) - first[session]


def _history_tokens(turns: NDArray[np.int64], turn_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum over each session's earlier turns, shape (sum of turns,)."""
    before = np.cumsum(turn_tokens) - turn_tokens
    first = np.cumsum(turns) - turns
    history: NDArray[np.int64] = before - np.repeat(before[first], turns)
    return history


def _segments(
    turns: NDArray[np.int64],
    new_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    prefixes: Prefixes | None,
) -> Segments:
    """Write down each session once: prefix, new, answer, new, answer...; a prompt is its beginning.

    Seeds: first those of the groups' prefixes, then two for each request, prompt and answer.
    """
    session, turn = _sessions_and_turns(turns)
    opening = 0 if prefixes is None else 1
    counts = opening + 2 * turn + 1
    _refuse_many_segments(int(counts.sum()))
    sizes = opening + 2 * turns
    begin = np.cumsum(sizes) - sizes
    new = begin[session] + opening + 2 * turn
    seed = np.empty(sizes.sum(), dtype=np.int64)
    tokens = np.empty_like(seed)
    groups = 0
    if prefixes is not None:
        seed[begin], tokens[begin], groups = prefixes.group, prefixes.tokens, prefixes.groups
    new_seed = groups + 2 * np.arange(len(turn), dtype=np.int64)
    seed[new], tokens[new] = new_seed, new_tokens
    seed[new + 1], tokens[new + 1] = new_seed + 1, output_tokens
    first = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    places = np.repeat(begin[session] - first[:-1], counts) + np.arange(first[-1])
    return Segments(first, seed[places], tokens[places], new_seed + 1)


def _refuse_many_segments(count: int) -> None:
    if count > MOST_SEGMENTS:
        raise InputError(
            f"the prompts repeat {count:.3g} turns and answers, more than the {MOST_SEGMENTS:.0e} "
            "that a run holds; ask for fewer requests, fewer turns or a lower max_context_tokens"
        )
