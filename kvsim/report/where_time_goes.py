"""Where the time of a request goes, and the memory of a GPU."""

from collections.abc import Mapping, Sequence

from kvsim.metrics.catalog import METRICS, PHASE_METRICS, percent
from kvsim.metrics.phases import BAND, PHASES, QUANTILES
from kvsim.names import short_name
from kvsim.report.bars import Piece, bars_layout, keys_of, names_of, stacked
from kvsim.report.drawing import told
from kvsim.report.figure import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SILVER,
    SKY,
    SLATE,
    VERMILLION,
    Chart,
    Table,
)
from kvsim.report.inputs import Variant
from kvsim.report.over_time import SLOT_LOOKS
from kvsim.tables import SLOT_USES
from kvsim.units import GIB, format_bytes, format_duration

# A phase of a request: color, pattern, and what one does in it, before a share of its time.
PHASE_LOOKS = {
    "front_end": (SILVER, "", "spends {} in the API server"),
    "queue": (ORANGE, "/", "waits {} in the queue"),
    "prefill": (SKY, "", "spends {} in its prefill"),
    "decode": (GREEN, "", "spends {} decoding"),
    "stalled": (PURPLE, "x", "is stalled {} by prefills of others"),
    "preempted": (VERMILLION, "\\", "loses {} to preemptions"),
}
QUANTILE_WORDS = {"p50": "Median request", "p95": "95th percentile request"}
# What the head of the queue lacks, in a word.
LACKED = {
    "kv_blocks": "memory",
    "hole": "an unbroken piece of memory",
    "watermark": "memory",
    "sequence_slot": "a sequence slot",
    "active_sequence_slot": "a sequence slot",
    "token_budget": "token budget",
    "scheduled_token_budget": "token budget",
}
# A line of the memory of a GPU: color, pattern, meaning; of the KV cache there is more.
MEMORY_LOOKS = {
    "weights": (BLUE, "", "Parameters of the model on this GPU"),
    "activation peak": (VERMILLION, "", "Activations of the largest step, found at start-up"),
    "CUDA graphs": (SLATE, "", "Captured graphs and their pools"),
    "non-torch (CUDA, NCCL)": (SILVER, "", "The CUDA context and buffers of communication"),
    "left to others": ("rgba(138,143,152,0.08)", "", "Beyond what the engine may or can use"),
}
OTHER_MEMORY = (SLATE, "+", "")
KV_CACHE = "KV cache"


def where_time_goes(variants: Sequence[Variant]) -> Chart | None:
    """Show the phases of the median and of the 95th percentile request; None if none finished."""
    known = [variant for variant in variants if _phases_of(variant)]
    if not known:
        return None
    pieces = [_phase_pieces(known, quantile) for quantile in QUANTILES]
    finding = f"The p95 request: {told([_slow_request(variant) for variant in known])}"
    untold = [v.name for v in known if _phases_of(v)["p95"]["stalled_s"] is None]
    return Chart(
        key="chart-phases",
        title=finding,
        definition="What the request was doing, in shares of its end-to-end latency, which stands "
        f"beside the name: the mean of the requests within {100 * BAND:g} % of all around the "
        "median, and around the 95th percentile, finished ones only. Stalled is by how "
        "much its steps are longer because prompts of others are computed in them.",
        alt=f"Stacked bars, two a variant. {finding}.",
        figure={
            "data": [
                bar
                for panel, those in enumerate(pieces)
                for bar in stacked(those, "% of the time", panel)
            ],
            "layout": bars_layout(
                {words: _with_latency(known, name) for name, words in QUANTILE_WORDS.items()},
                "% of the end-to-end latency",
                range=[0, 100],
            ),
        },
        table=_phase_table(known),
        keys=keys_of([piece for those in pieces for piece in those][: len(PHASES)]),
        note=f"Steps of {', '.join(map(short_name, untold))} have no price: stalls are in the "
        "decoding."
        if untold
        else "",
    )


def _phases_of(variant: Variant) -> Mapping[str, Mapping[str, float | None]]:
    found: Mapping[str, Mapping[str, float | None]] = variant.summary["phases"]
    return found


def _phase_pieces(variants: Sequence[Variant], quantile: str) -> list[Piece]:
    return [
        Piece(
            PHASE_METRICS[f"{phase}_s"].label.lower(),
            color,
            pattern,
            PHASE_METRICS[f"{phase}_s"].description,
            [100 * _share(_phases_of(variant)[quantile], phase) for variant in variants],
        )
        for phase, (color, pattern, _) in PHASE_LOOKS.items()
    ]


def _share(part: Mapping[str, float | None], phase: str) -> float:
    e2e_s = part["e2e_s"]
    return (part[f"{phase}_s"] or 0.0) / e2e_s if e2e_s else 0.0


def _with_latency(variants: Sequence[Variant], quantile: str) -> list[str]:
    latencies = (_phases_of(variant)[quantile]["e2e_s"] or 0.0 for variant in variants)
    return [
        f"{name}<br>{format_duration(e2e_s)}"
        for name, e2e_s in zip(names_of(variants), latencies, strict=True)
    ]


def _slow_request(variant: Variant) -> str:
    """Say in what the 95th percentile request of a variant spends most of its time."""
    part = _phases_of(variant)["p95"]
    longest = max(PHASES, key=lambda phase: _share(part, phase))
    share = f"{percent(_share(part, longest))} of {format_duration(part['e2e_s'] or 0.0)}"
    waiting = variant.summary["limits"]["waiting_share"]
    lacks = LACKED.get(max(waiting, key=waiting.__getitem__)) if waiting else None
    cause = f", mostly for {lacks}" if longest == "queue" and lacks else ""
    return f"{short_name(variant.name)} {PHASE_LOOKS[longest][2].format(share)}{cause}"


def _phase_table(variants: Sequence[Variant]) -> Table:
    labels = [PHASE_METRICS[f"{phase}_s"].label for phase in PHASES]
    rows = []
    for variant in variants:
        for quantile, part in _phases_of(variant).items():
            values = (part["e2e_s"], *(part[f"{phase}_s"] for phase in PHASES))
            shown = ["–" if value is None else format_duration(value) for value in values]
            rows.append([f"{variant.name}, {quantile}", f"{part['requests']:,}", *shown])
    return Table(["Request", "Mean over", "E2E", *labels], rows)


def where_memory_goes(variants: Sequence[Variant]) -> Chart | None:
    """Show what the memory of a GPU is used for on average; None if nothing is known of it."""
    known = [variant for variant in variants if variant.memory_bytes]
    if not known:
        return None
    lines = _memory_lines(known)
    pieces = [Piece(words, *looks, [max(size, 0) / GIB for size in sizes])
              for words, looks, sizes in lines]  # fmt: skip
    finding = f"KV cache: {told([_memory_finding(variant) for variant in known])}"
    return Chart(
        key="chart-memory",
        title=finding,
        definition="Memory of one GPU. The KV cache is split by what its slots are used for, as "
        "the mean over the time in which the engine is busy, until arrivals stop.",
        alt=f"Stacked bars of GiB, one a variant. {finding}.",
        figure={
            "data": stacked(pieces, "GiB"),
            "layout": bars_layout({"Memory of one GPU": names_of(known)}, "GiB"),
        },
        table=_memory_table(known, lines),
        keys=keys_of(pieces),
    )


def _memory_lines(
    variants: Sequence[Variant],
) -> list[tuple[str, tuple[str, str, str], list[float]]]:
    """Return words, look and meaning, and bytes in each variant of all lines of the memory."""
    found = []
    for line in dict.fromkeys(line for variant in variants for line in variant.memory_bytes):
        sizes = [variant.memory_bytes.get(line, 0.0) for variant in variants]
        if line != KV_CACHE:
            found.append((line, MEMORY_LOOKS.get(line, OTHER_MEMORY), sizes))
            continue
        for use, (words, color, pattern) in zip(SLOT_USES, SLOT_LOOKS, strict=True):
            name = f"kv_{use}_share_mean"
            free = 1.0 if use == "free" else 0.0  # of a cache that was never used
            shares = [variant.summary["figures"][name] for variant in variants]
            parts = [size * (free if share is None else share)
                     for size, share in zip(sizes, shares, strict=True)]  # fmt: skip
            looks = (color, pattern, METRICS[name].description)
            found.append((f"KV: {words}", looks, parts))
    return found


def _memory_finding(variant: Variant) -> str:
    total, cache = sum(variant.memory_bytes.values()), variant.memory_bytes.get(KV_CACHE, 0.0)
    held = variant.summary["figures"]["kv_held_share_mean"]
    of_it = "" if held is None else f", {percent(held)} of it holding tokens while busy"
    return f"{short_name(variant.name)} has {_gib(cache)} of {_gib(total)} GiB{of_it}"


def _gib(size: float) -> str:
    return f"{size / GIB:.3g}"


def _memory_table(
    variants: Sequence[Variant], lines: Sequence[tuple[str, tuple[str, str, str], list[float]]]
) -> Table:
    rows = [[words, *map(format_bytes, sizes)] for words, _, sizes in lines if any(sizes)]
    caches = [variant.memory_bytes.get(KV_CACHE, 0.0) for variant in variants]
    rows.append(["KV cache, all of it", *map(format_bytes, caches)])
    return Table(["Memory of one GPU", *(variant.name for variant in variants)], rows)
