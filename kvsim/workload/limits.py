"""Ranges of the workload's numbers: wide, but inside what 64-bit clocks and counters hold."""

from typing import Annotated

from pydantic import Field

Rate = Annotated[float, Field(ge=1e-4, le=1e6)]  # per second
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Tokens = Annotated[int, Field(ge=1, le=10**8)]
MeanTokens = Annotated[float, Field(gt=0, le=1e8)]
