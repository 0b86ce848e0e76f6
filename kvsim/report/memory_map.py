"""The memory map: what lies where in the KV cache, over time, and at the instant one chooses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from kvsim.metrics.catalog import percent
from kvsim.names import short_name
from kvsim.report.figure import Key, Section, Table, script_json
from kvsim.report.inputs import Variant
from kvsim.report.over_time import SLOT_LOOKS
from kvsim.report.series import Floats, Ints
from kvsim.report.time_axis import TABLE_ROWS, time_unit
from kvsim.table_files import row_count
from kvsim.tables import FREE, HELD, HOLES, INSIDE, REUSABLE, ROUNDING, SLOT_USES, TO_COME, Columns
from kvsim.units import NS_PER_S

EMPTY = (TO_COME, INSIDE, ROUNDING, HOLES)  # taken, or lost, and holding nothing
LETTERS = "ABCDEFG"  # one a use: a run is length, letter, request, the numbers to base 36
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
TICKS = 5
EXPLANATION = (
    "A server that keeps a sequence in one piece must reserve that piece; what is reserved and not "
    "filled, and holes that are too small for the next piece, are of use to nobody. Blocks of a "
    "paged cache may lie anywhere."
)


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: words, and how far along it is, percent."""

    words: str
    place: float


@dataclass(frozen=True, slots=True)
class Panel:
    """A variant's picture: its name, its slots, the marks of its axis of addresses."""

    key: str
    name: str
    heading: str
    alt: str
    ticks: Sequence[Tick]


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """What `memory_map.html.j2` shows and `memory_map.js` draws.

    Attributes:
        title: The finding.
        definition: What is shown.
        keys: The legend.
        panels: The pictures.
        ticks: Marks of the axis of time.
        time_unit: Its unit.
        chosen: The instant that is shown first.
        data: JSON for the script, safe inside a script element.
        table: The numbers.
    """

    title: str
    definition: str
    keys: Sequence[Key]
    panels: Sequence[Panel]
    ticks: Sequence[Tick]
    time_unit: str
    chosen: int
    last: int
    data: str
    table: Table


@dataclass(frozen=True, slots=True, eq=False)
class _Looks:
    """What was seen of one variant.

    Attributes:
        variant: Whose KV cache it is.
        times_ns: When, shape (looks,).
        slots: Slots of each use, shape (looks, uses).
        holes: Free runs of slots, shape (looks,); `largest` is the slots of the longest.
        contiguous: Whether sequences are kept in one piece.
    """

    variant: Variant
    times_ns: Ints
    slots: Ints
    holes: Ints
    largest: Ints
    contiguous: bool

    @classmethod
    def of(cls, variant: Variant, looks: Columns) -> "_Looks":
        layout = variant.inputs.get("kv_cache", {})
        slots = np.stack([looks[f"{use}_tokens"] for use in SLOT_USES], axis=1)
        return cls(
            variant,
            looks["time_ns"],
            slots,
            looks["holes"],
            looks["largest_hole_tokens"],
            layout.get("kind") == "contiguous",
        )

    @property
    def capacity(self) -> int:
        return int(self.slots[0].sum())

    @property
    def shares(self) -> Floats:
        return self.slots / max(1, self.capacity)

    def words(self, look: int) -> str:
        """Say in a sentence what the KV cache holds at a look."""
        share = self.shares[look]
        parts = [f"{percent(share[HELD])} of the slots hold tokens"]
        parts += [
            f"{percent(share[use])} are {SLOT_LOOKS[use][0]}"
            for use in (TO_COME, INSIDE, ROUNDING)
            if self.slots[look, use]
        ]
        return f"{', '.join(parts)}. {self._free_words(look)}"

    def _free_words(self, look: int) -> str:
        free = self.slots[look, HOLES:].sum()
        if not free:
            return "None is free."
        share = f"Free: {percent(free / self.capacity)}"
        if not self.contiguous:
            found = self.slots[look, REUSABLE]
            prefixes = f" ({percent(found / self.capacity)} with a reusable prefix)"
            return f"{share}{prefixes if found else ''}; a new block may be any of it."
        holes, largest = int(self.holes[look]), int(self.largest[look])
        size = f"{'the largest ' if holes > 1 else ''}of {largest:,} tokens"
        words = f"{share}, in {_counted(holes, 'hole')}, {size}"
        if self.slots[look, FREE]:
            return f"{words}."
        return f"{words}: too small for the reservation that was asked for last."


def memory_map(variants: Sequence[Variant]) -> list[Section]:
    """Return the section, if anybody looked at the KV cache of a variant."""
    seen = [
        (_Looks.of(variant, variant.memory_looks), variant.memory_map)
        for variant in variants
        if variant.memory_looks is not None and row_count(variant.memory_looks)
    ]
    if not seen:
        return []
    looks = [each for each, _ in seen]
    end_ns = int(looks[0].times_ns[[0, -1]].sum())  # looks are in the middle of equal spans
    unit, unit_ns = time_unit(end_ns)
    shares = [each.shares for each in looks]
    drawn = MemoryMap(
        title=_title(looks),
        definition=_definition(looks, end_ns),
        keys=[
            Key(words, color)
            for use, (words, color, _) in enumerate(SLOT_LOOKS)
            if any(each[:, use].any() for each in shares)
        ],
        panels=[_panel(place, each) for place, each in enumerate(looks)],
        ticks=_ticks(end_ns / unit_ns),
        time_unit=unit,
        chosen=int(np.max([each[:, HELD] for each in shares], axis=0).argmax()),
        last=len(looks[0].times_ns) - 1,
        data=_data([(each, rows) for each, rows in seen if rows is not None], unit, unit_ns),
        table=_table(looks, unit, unit_ns),
    )
    heading = "Memory map: what lies where in the KV cache"
    return [Section("memory-map", "Memory map", heading, (), EXPLANATION, memory_map=drawn)]


def _title(looks: Sequence[_Looks]) -> str:
    findings = [
        f"{percent(float(each.shares[:, EMPTY].sum(axis=1).mean()))} in "
        f"{short_name(each.variant.name)}"
        for each in looks
    ]
    return f"KV memory taken but empty, or lost in holes: {', '.join(findings)}"


def _definition(looks: Sequence[_Looks], end_ns: int) -> str:
    whole_s = max(each.variant.summary["figures"]["makespan_s"] for each in looks)
    part = _time_words(end_ns)
    shown = "the whole run" if end_ns >= 0.999 * whole_s * NS_PER_S else f"its first {part}"
    if shown != "the whole run":
        shown += f" of {_time_words(round(whole_s * NS_PER_S))}"
    return (
        "Each column is an instant, each row an address in the KV cache of the first replica; the "
        "title is the mean over these instants. Of the run you see "
        f"{shown}. Where many small pieces lie side by side, neighboring slots are drawn together, "
        "as what most of them are."
    )


def _time_words(time_ns: int) -> str:
    unit, unit_ns = time_unit(time_ns)
    return f"{time_ns / unit_ns:.3g} {unit}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _panel(place: int, looks: _Looks) -> Panel:
    mean = looks.shares.mean(axis=0)
    uses = [
        f"{percent(float(mean[use]))} {SLOT_LOOKS[use][0]}"
        for use in range(len(SLOT_USES))
        if looks.slots[:, use].any()
    ]
    return Panel(
        f"memory-map-{place}",
        looks.variant.name,
        f"{looks.capacity:,} slots",
        f"Addresses over time in {short_name(looks.variant.name)}; on average {', '.join(uses)}.",
        _ticks(looks.capacity),
    )


def _ticks(end: float) -> list[Tick]:
    """Return round numbers from 0 up to an end."""
    rough = max(end, 1e-9) / TICKS
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    marks = np.arange(0, int(end / step) + 1) * step
    return [Tick(f"{mark:,.10g}", round(100 * float(mark / end), 3)) for mark in marks]


def _data(seen: Sequence[tuple[_Looks, Columns]], unit: str, unit_ns: int) -> str:
    value: dict[str, Any] = {
        "uses": SLOT_LOOKS,
        "times": [f"{time / unit_ns:.4g} {unit}" for time in seen[0][0].times_ns],
        "variants": [_variant_data(looks, rows) for looks, rows in seen],
    }
    return script_json(value)


def _variant_data(looks: _Looks, rows: Columns) -> Mapping[str, Any]:
    """Write the runs of each look as a text; lengths are multiples of `slots`."""
    times_ns, length = rows["time_ns"], rows["length"]
    slots = gcd(*length.tolist())
    runs = [
        f"{_base36(size)}{LETTERS[use]}{_base36(request) if request >= 0 else ''}"
        for size, use, request in zip(
            (length // slots).tolist(), rows["use"].tolist(), rows["request"].tolist(), strict=True
        )
    ]
    ends = np.searchsorted(times_ns, looks.times_ns, side="right").tolist()
    return {
        "slots": slots,
        "capacity": looks.capacity,
        "looks": [
            ",".join(runs[first:end]) for first, end in zip([0, *ends[:-1]], ends, strict=True)
        ],
        "words": [looks.words(look) for look in range(len(looks.times_ns))],
    }


def _base36(number: int) -> str:
    digits = ""
    while number >= 36:
        number, digit = divmod(number, 36)
        digits = DIGITS[digit] + digits
    return DIGITS[number] + digits


def _table(looks: Sequence[_Looks], unit: str, unit_ns: int) -> Table:
    used = [use for use in range(len(SLOT_USES)) if any(each.slots[:, use].any() for each in looks)]
    header = ["Variant", "Time", *(SLOT_LOOKS[use][0] for use in used), "Free pieces (largest)"]
    rows = []
    for each in looks:
        chosen = np.unique(np.linspace(0, len(each.times_ns) - 1, TABLE_ROWS).round().astype(int))
        for look in chosen:
            time = f"{each.times_ns[look] / unit_ns:.4g} {unit}"
            shares = [percent(float(share)) for share in each.shares[look, used]]
            free = f"{int(each.holes[look]):,} ({int(each.largest[look]):,})"
            rows.append([each.variant.name, time, *shares, free])
    return Table(header, rows)
