"""Ranges of the workload's numbers: wide, but inside what 64-bit clocks and counters hold."""

from typing import Annotated

from pydantic import Field

from kvsim.errors import InputError
from kvsim.units import NS_PER_S

Rate = Annotated[float, Field(ge=1e-4, le=1e6)]  # per second
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Tokens = Annotated[int, Field(ge=1, le=10**8)]
MeanTokens = Annotated[float, Field(gt=0, le=1e8)]

_LATEST_NS = 10**18  # as the largest `Seconds`: a ninth of what a 64-bit clock counts


def refuse_late(arrival_ns: float) -> None:
    """Refuse an arrival that comes so late that the clock has no room for the run.

    Raises:
        InputError: It comes after more than 1e9 s.
    """
    if arrival_ns > _LATEST_NS:
        raise InputError(
            f"the arrivals last more than {_LATEST_NS / NS_PER_S:g} s, the longest run; ask for "
            "fewer requests or a higher rate"
        )
