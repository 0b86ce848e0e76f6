"""Ranges of the workload's numbers: wide, but inside what 64-bit clocks and counters hold."""

from typing import Annotated

from pydantic import AfterValidator, Field

from kvsim.errors import InputError
from kvsim.units import NS_PER_S

Rate = Annotated[float, Field(ge=1e-4, le=1e6)]  # per second
RateOrZero = Annotated[float, Field(ge=0, le=1e6)]  # per second
Burstiness = Annotated[float, Field(ge=0.01, le=1e6)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Tokens = Annotated[int, Field(ge=1, le=10**8)]
MeanTokens = Annotated[float, Field(gt=0, le=1e8)]

MOST_TOKENS = 10**8  # as `Tokens` allows
MOST_REQUESTS = 10**8  # samples counted one by one
MOST_PIECES = 10**7  # of a rate that changes
LATEST_NS = 10**18  # as the largest `Seconds`: a ninth of what a 64-bit clock counts


def printable(text: str) -> str:
    """Return a text without control or direction characters; ValueError for another."""
    if not text.isprintable():
        raise ValueError(f"{text!r} has characters that don't print")
    return text


Printable = Annotated[str, AfterValidator(printable)]  # no control or direction characters


def why_too_many(requests: float) -> str | None:
    """Return why so many requests, samples included, can't be simulated; None if they can."""
    if requests <= MOST_REQUESTS:
        return None
    return (
        f"{requests:.3g} requests (samples included) are more than the {MOST_REQUESTS:.0e} that "
        "a run holds; ask for fewer, a shorter time or a lower rate"
    )


def refuse_many(requests: float) -> None:
    """Refuse more requests than a run holds, before they are drawn.

    Raises:
        InputError: They are more than 1e8.
    """
    too_many = why_too_many(requests)
    if too_many:
        raise InputError(too_many)


def refuse_pieces(pieces: float, remedy: str) -> None:
    """Refuse a rate that changes more often than a run can hold, and say what helps.

    Raises:
        InputError: It changes more than 1e7 times.
    """
    if pieces > MOST_PIECES:
        raise InputError(
            f"the rate changes {pieces:.3g} times within the run, more than the "
            f"{MOST_PIECES:.0e} that a run holds; ask for a shorter time or {remedy}"
        )


def refuse_late(arrival_ns: float) -> None:
    """Refuse an arrival that comes so late that the clock has no room for the run.

    Raises:
        InputError: It comes after more than 1e9 s.
    """
    if arrival_ns > LATEST_NS:
        raise InputError(
            f"the arrivals last more than {LATEST_NS / NS_PER_S:g} s, the longest run; ask for "
            "fewer requests or a higher rate"
        )
