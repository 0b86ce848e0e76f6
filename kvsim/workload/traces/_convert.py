"""Arrow columns to whole numbers: tokens, nanoseconds, and which rows hold none."""

import re
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvsim.workload.limits import MOST_TOKENS
from kvsim.workload.traces.format import TimeUnit

Checked = tuple[NDArray[np.int64], NDArray[np.bool_]]  # numbers, and which of them are good

YEARS = range(1970, 2200)
_END_NS = int(np.datetime64("2200-01-01", "ns").astype(np.int64))
# Nanoseconds between any two fit 64 bits.
_EARLIEST_NS, _LATEST_NS = -(10**18), 8 * 10**18
NUMBER = pa.decimal256(76, 40)  # as it is written: of times near 0 Python writes so many digits
_DECIMALS: dict[TimeUnit, int] = {"s": 9, "ms": 6, "us": 3, "ns": 0}  # down to nanoseconds
# An exponent with which Arrow's decimals may overflow in silence.
_HUGE = r"[eE]\+?0*([2-9][0-9]|[1-9][0-9]{2})"
_PEEKED_ROWS = 100
_ZONE = r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_CLOCK = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,9})?)?"
    rf"(?:{_ZONE[:-1]})?",
    re.ASCII,
)
_HAS_HOUR = r"[ T][0-9]{2}:"


def tokens(column: pa.Array, least: int = 1) -> Checked:
    """Return lengths, good from `least` to `MOST_TOKENS`."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        text = pc.ascii_trim_whitespace(column)
        good = pc.and_(pc.string_is_ascii(text), pc.ascii_is_decimal(text))
        good = pc.and_(good, pc.less_equal(pc.binary_length(text), 9))
        column = pc.if_else(good, text, None)
    elif pa.types.is_boolean(column.type) or pa.types.is_temporal(column.type):
        return _none(len(column))
    numbers, whole = _integers(column)
    return numbers, whole & (numbers >= least) & (numbers <= MOST_TOKENS)


def times_ns(column: pa.Array, unit: TimeUnit) -> Checked:
    """Return times in nanoseconds since any origin, exactly as they are written.

    Digits beyond nanoseconds are rounded. Columns of a timestamp type need no unit.
    """
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        text = pc.ascii_trim_whitespace(column)
        if unit == "timestamp":
            return _timestamps(text)
        huge = pc.match_substring_regex(text, _HUGE)
        column = _cast(pc.if_else(huge, None, text), NUMBER)
    if pa.types.is_timestamp(column.type):
        numbers, good = _integers(_cast(column, pa.timestamp("ns")))
        return numbers, good & (numbers >= 0) & (numbers < _END_NS)
    if unit == "timestamp":
        return _none(len(column))  # a number: of what, since when?
    decimals = _DECIMALS[unit]
    if pa.types.is_floating(column.type):
        return _floats(column, decimals)
    if pa.types.is_integer(column.type):
        column = _cast(column, pa.decimal128(20, 0))
    if not pa.types.is_decimal(column.type):
        return _none(len(column))
    rounded = pc.round(column, ndigits=decimals, round_mode="half_to_even")
    numbers, good = low_words(_cast(rounded, pa.decimal128(38, decimals)))
    return numbers, good & (numbers >= _EARLIEST_NS) & (numbers <= _LATEST_NS)


def unit_shown(column: pa.Array) -> TimeUnit:
    """Return `timestamp` if one of the first values begins like a date, else `s`."""
    if not pa.types.is_string(column.type):
        return "s"
    dated = pc.match_substring_regex(column[:_PEEKED_ROWS], r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}")
    return "timestamp" if pc.any(dated).as_py() else "s"


def date_of(text: str) -> str | None:
    """Return the date that a time begins with, if only the date can be wrong with it."""
    match = _CLOCK.fullmatch(text.strip())
    return match[1] if match else None


def low_words(decimals: pa.Array) -> Checked:
    """Return the unscaled value of decimals; good are those that fit 64 bits, signed or not.

    What needs the highest bit of an unsigned number comes out negative.
    """
    words = np.frombuffer(decimals.buffers()[1], dtype="<i8").reshape(-1, 2)
    low, high = words[decimals.offset : decimals.offset + len(decimals)].T
    return low.astype(np.int64), _valid(decimals) & ((high == low >> 63) | (high == 0))


def texts(column: pa.Array) -> pa.Array:
    """Return a column as text; `pa.ArrowException` if its type has none, as that of lists."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.decimal128(38, 0) if _all_whole(column) else pa.float64())
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _timestamps(text: pa.Array) -> Checked:
    """Parse dates with a time of day; without a zone they count as UTC."""
    timed = pc.match_substring_regex(text, _HAS_HOUR)
    text = pc.if_else(timed, text, None)
    zoned = pc.match_substring_regex(text, _ZONE)
    local, local_good = _integers(_cast(pc.if_else(zoned, None, text), pa.timestamp("ns")))
    absolute, absolute_good = local, np.zeros(len(text), dtype=np.bool_)
    if pc.any(zoned).as_py():
        zone = pa.timestamp("ns", "UTC")
        absolute, absolute_good = _integers(_cast(pc.if_else(zoned, text, None), zone))
    numbers = np.where(local_good, local, absolute)
    good = local_good | absolute_good
    return numbers, good & (numbers >= 0) & (numbers < _END_NS)


def _floats(column: pa.Array, decimals: int) -> Checked:
    """Scale the whole and the broken part apart, so that only the last is rounded."""
    values = column.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
    good = np.isfinite(values) & (np.abs(values) < 8 * 10 ** (18 - decimals))
    values = np.where(good, values, 0.0)
    whole = np.floor(values)
    scale = 10**decimals
    numbers = whole.astype(np.int64) * scale + np.rint((values - whole) * scale).astype(np.int64)
    return numbers, good & (numbers >= _EARLIEST_NS) & (numbers <= _LATEST_NS)


def _integers(column: pa.Array) -> Checked:
    good = _valid(column)
    if not good.any():
        return _none(len(column))
    whole = _cast(column, pa.int64())
    return whole.fill_null(0).to_numpy(zero_copy_only=False), _valid(whole)


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast what can be cast; what can't, found by halving, becomes null."""
    try:
        return column.cast(wanted)
    except (ValueError, pa.ArrowException):
        if len(column) == 1:
            return pa.nulls(1, wanted)
    half = len(column) // 2
    return pa.concat_arrays([_cast(column[:half], wanted), _cast(column[half:], wanted)])


def _all_whole(column: pa.Array) -> bool:
    return bool(pc.all(pc.equal(pc.floor(column), column)).as_py())


def _valid(column: pa.Array) -> NDArray[np.bool_]:
    return cast("NDArray[np.bool_]", column.is_valid().to_numpy(zero_copy_only=False))


def _none(rows: int) -> Checked:
    return np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.bool_)
