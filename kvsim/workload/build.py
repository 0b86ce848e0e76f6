"""Parameters of a workload and a seed → the request table.

Each class of traffic is drawn by itself; then all sessions are put in order of their beginning.
Every draw has a stream of its own, so that a change in one leaves the others alone.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.rng import stream
from kvsim.units import NS_PER_S, seconds_to_ns
from kvsim.workload.arrivals import Arrivals, Users
from kvsim.workload.beams import draw_beams
from kvsim.workload.limits import refuse_many
from kvsim.workload.merge import Part, merge
from kvsim.workload.parameters import Member, Source, Workload
from kvsim.workload.prompts import PromptLaw, Prompts
from kvsim.workload.prompts.unrelated import Unrelated
from kvsim.workload.requests import RequestTable

if TYPE_CHECKING:
    from kvsim.workload.traces import Trace  # formats of logs take a while to import

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Draws:
    """Gives each class its streams: `lengths`, or `chat/lengths` for a class named chat."""

    seed: int
    replication: int

    def of(self, name: str, what: str) -> np.random.Generator:
        return stream(self.seed, f"{name}/{what}" if name else what, self.replication)


def build_requests(workload: Workload, seed: int, replication: int = 0) -> RequestTable:
    """Draw all requests of a run.

    Args:
        workload: What to draw.
        seed: Root seed of the scenario.
        replication: Number of the repetition, each with independent draws.

    Raises:
        InputError: If a trace can't be read or is too short, nothing ends the arrivals, or
            there are more requests than a run holds.
    """
    refuse_many(workload.foreseen_requests)
    draws = _Draws(seed, replication)
    parts: list[Part] = []
    horizon_ns = 0
    for number, source in enumerate(workload.sources()):
        arrivals, drawn = _draw_source(workload, number, source, draws)
        parts += drawn
        horizon_ns = max(horizon_ns, arrivals.horizon_ns)
    if not any(len(part) for part in parts):
        raise InputError("no request arrives within duration_s")
    refuse_many(sum(part.outputs.size for part in parts))
    table = merge(workload, parts, horizon_ns)
    if workload.beam_width == 1:
        return table
    first_rows = table.output_tokens[:: workload.beam_width]
    rng = draws.of("", "beams")
    beams = draw_beams(first_rows, workload.beam_width, workload.beam_turnover, rng)
    return replace(table, beams=beams)


# One source: its arrivals, and its classes' requests


def _draw_source(
    workload: Workload, number: int, source: Source, draws: _Draws
) -> tuple[Arrivals, list[Part]]:
    """Draw the sessions of a source, and share them among its classes."""
    laws = [_law_of(member) for member in source.members]
    arrivals, classes, turns = _draw_arrivals(workload, source, laws, draws)
    refuse_many(float(turns.sum()) * workload.samples)
    if arrivals.recorded is not None and arrivals.recorded.holds_samples:
        _refuse_torn_samples(workload, source.members)
    parts = []
    for place, (member, law) in enumerate(zip(source.members, laws, strict=True)):
        mine = np.flatnonzero(classes == place)
        recorded = _recorded(member, law, arrivals, mine, turns[mine])
        prompts = _draw_prompts(member, law, turns[mine], recorded, draws)
        session = np.repeat(mine, prompts.turns)
        part = Part(
            member=member,
            source=number,
            place=session,
            start_ns=arrivals.times_ns[session],
            prompts=prompts,
            outputs=_draw_outputs(workload, member, prompts, recorded, draws),
            users=_of_users(arrivals.users, session),
            trace=recorded,
            retry_delays_ns=_draw_retries_ns(member, len(session), draws),
        )
        parts.append(part)
    return arrivals, parts


def _refuse_torn_samples(workload: Workload, members: tuple[Member, ...]) -> None:
    """Refuse what would tear the samples of a recorded request apart."""
    torn = [
        ("leave out n", workload.n > 1),
        ("leave out beam_width", workload.beam_width > 1),
        ("run it without further classes", len(workload.classes) > 1),
        ("keep its lengths (lengths: {kind: trace})", not members[0].keeps_recorded_lengths),
        ("leave out prompts", members[0].parameters.prompts is not None),
    ]
    for advice, asked in torn:
        if asked:
            raise InputError(f"the trace holds the samples of each request already: {advice}")


def _draw_arrivals(
    workload: Workload, source: Source, laws: list[PromptLaw], draws: _Draws
) -> tuple[Arrivals, Ints, Ints]:
    """Draw when a source's sessions begin, and the class and the number of turns of each."""
    assert source.arrivals is not None, "checked when the workload was read"
    duration_ns = None if workload.duration_s is None else seconds_to_ns(workload.duration_s)
    rng = draws.of(source.name, "arrivals")
    if source.num_requests is None:
        arrivals = source.arrivals.arrivals(None, duration_ns, rng)
        sessions = len(arrivals.times_ns)
        refuse_many(sessions * workload.samples)
        return arrivals, *_draw_sessions(source, laws, sessions, draws)
    classes, turns = _draw_sessions(source, laws, source.num_requests, draws)
    classes, turns = _until(source.num_requests, classes, turns)
    arrivals = source.arrivals.arrivals(len(turns), duration_ns, rng)
    sessions = len(arrivals.times_ns)  # others would begin after the end
    return arrivals, classes[:sessions], turns[:sessions]


def _of_users(users: Users | None, place: Ints) -> Users | None:
    return None if users is None else Users(users.starts_ns, users.think_ns[place])


def _law_of(member: Member) -> PromptLaw:
    law: PromptLaw | None = member.parameters.prompts
    return Unrelated() if law is None else law


def _draw_sessions(
    source: Source, laws: list[PromptLaw], sessions: int, draws: _Draws
) -> tuple[Ints, Ints]:
    """Draw the class and the number of turns of each session."""
    classes = np.zeros(sessions, dtype=np.int64)
    if len(laws) > 1:
        weights = np.array([member.weight for member in source.members])
        rng = draws.of(source.name, "classes")
        classes = rng.choice(len(laws), size=sessions, p=weights / weights.sum())
    turns = np.zeros(sessions, dtype=np.int64)
    for place, (member, law) in enumerate(zip(source.members, laws, strict=True)):
        mine = np.flatnonzero(classes == place)
        turns[mine] = law.turns(len(mine), draws.of(member.name, "turns"))
    return classes, turns


def _until(requests: int, classes: Ints, turns: Ints) -> tuple[Ints, Ints]:
    """Return the first sessions that have so many requests together; the last one is cut short."""
    total = np.cumsum(turns)
    sessions = int(np.searchsorted(total, requests)) + 1
    turns = turns[:sessions].copy()
    turns[-1] -= total[sessions - 1] - requests
    return classes[:sessions], turns


def _recorded(
    member: Member, law: PromptLaw, arrivals: Arrivals, mine: Ints, turns: Ints
) -> "Trace | None":
    """Return the recorded requests that a class consists of, if it keeps their lengths."""
    if arrivals.recorded is None or not member.keeps_recorded_lengths:
        return None
    if int(turns.sum()) != len(mine):
        raise InputError(
            f"prompts of kind {law.kind} add turns, but the trace's requests were recorded one by "
            "one: take lengths of another kind, or of kind trace with a file"
        )
    return arrivals.recorded.take(mine)


def _draw_prompts(
    member: Member, law: PromptLaw, turns: Ints, recorded: "Trace | None", draws: _Draws
) -> Prompts:
    if recorded is not None:
        lengths = recorded.prompt_tokens, recorded.output_tokens
        if member.parameters.prompts is None:
            return Prompts(*lengths, turns, recorded.segments)
    else:
        assert member.parameters.lengths is not None, "checked when the workload was read"
        rng = draws.of(member.name, "lengths")
        lengths = member.parameters.lengths.lengths_tokens(int(turns.sum()), rng)
    return law.prompts(turns, *lengths, draws.of(member.name, "prompts"))


def _draw_outputs(
    workload: Workload, member: Member, prompts: Prompts, recorded: "Trace | None", draws: _Draws
) -> Ints:
    """Return the answer lengths of all samples or beams, shape (requests, samples).

    Beams are equally long. Further samples come from the same law, without regard to the prompt:
    of recorded requests only one answer is known.
    """
    output = prompts.output_tokens
    shape = (len(output), workload.n - 1)
    rng = draws.of(member.name, "samples")
    if workload.samples_alike or workload.beam_width > 1:
        return np.repeat(output[:, None], workload.samples, axis=1)
    if not output.size or workload.n == 1:
        further = np.zeros(shape, dtype=np.int64)
    elif recorded is not None:
        further = rng.choice(output, size=shape)
    else:
        assert member.parameters.lengths is not None, "checked when the workload was read"
        law = member.parameters.lengths
        further = law.lengths_tokens(shape[0] * shape[1], rng)[1].reshape(shape)
    return np.column_stack([output, further])


def _draw_retries_ns(member: Member, requests: int, draws: _Draws) -> Ints:
    """Return each client's waits before its retries, shape (requests, retries)."""
    retries = member.parameters.retries
    if retries is None:
        return np.zeros((requests, 0), dtype=np.int64)
    waits_s = retries.backoff_s * retries.multiplier ** np.arange(retries.max_retries)
    waits_s = np.minimum(waits_s, retries.max_backoff_s)
    drawn = draws.of(member.name, "retries").random((requests, retries.max_retries))
    waits_ns: Ints = np.rint(waits_s * (1 - retries.jitter * drawn) * NS_PER_S).astype(np.int64)
    return waits_ns
