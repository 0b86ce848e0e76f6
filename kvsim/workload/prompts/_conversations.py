"""Conversations: each prompt repeats all that was said before."""

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.prompts import Prompts
from kvsim.workload.prompts._prefixes import Prefixes
from kvsim.workload.requests import Segments


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
        session, prompt, output_tokens = session[sent], prompt[sent], output_tokens[sent]
        delay_ns = None if delay_ns is None else delay_ns[sent]
    segments = _segments(session, prompt, prefixes)
    prefix_tokens = None if prefixes is None else prefixes.tokens[session]
    return Prompts(prompt, output_tokens, turns, segments, delay_ns, prefix_tokens)


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
    session: NDArray[np.int64], prompt_tokens: NDArray[np.int64], prefixes: Prefixes | None
) -> Segments:
    """Let each session be one stream of tokens: each prompt is its beginning, answers go on there.

    Seeds: first those of the groups' prefixes, then one for each session.
    """
    requests = np.arange(len(session) + 1, dtype=np.int64)
    if prefixes is None:
        return Segments(requests, session, prompt_tokens, session)
    prefix_tokens = prefixes.tokens[session]
    stream = prefixes.groups + session
    return Segments(
        first=2 * requests,
        seed=np.stack([prefixes.group[session], stream], axis=1).ravel(),
        tokens=np.stack([prefix_tokens, prompt_tokens - prefix_tokens], axis=1).ravel(),
        answer_seed=stream,
    )
