"""The average engine step: what it computes, and what limits its speed."""

from collections.abc import Mapping, Sequence

from kvsim.metrics.catalog import SHARE_METRICS, percent
from kvsim.names import short_name
from kvsim.report.bars import Piece, bars_layout, keys_of, names_of, stacked
from kvsim.report.drawing import told
from kvsim.report.figure import (
    BLUE,
    BROWN,
    GRAY,
    GREEN,
    ORANGE,
    PURPLE,
    SILVER,
    SKY,
    SLATE,
    VERMILLION,
    YELLOW,
    Chart,
    Table,
    sentence,
)
from kvsim.report.inputs import Variant

COMPONENT_COLORS = {
    "gemm": BLUE,
    "experts": GRAY,
    "attention_prefill": ORANGE,
    "attention_decode": VERMILLION,
    "norms_and_activations": GREEN,
    "logits": YELLOW,
    "sampler": BROWN,
    "communication": SKY,
    "host": PURPLE,
}
OTHER_COLORS = (BLUE, ORANGE, PURPLE, VERMILLION, GREEN, YELLOW)  # of the affine law's parts
BOUND_COLORS = {
    "hbm": SLATE,
    "compute": SILVER,
    "communication": SKY,
    "host": PURPLE,
    "unknown": GRAY,
}
WORDS = {
    "gemm": "GEMM",
    "hbm": "HBM-bound",
    "compute": "compute-bound",
    "unknown": "of unknown bound",
}
PATTERNS = ("", "/", "x", ".", "\\", "-", "+", "|")  # for those who don't tell colors apart
HEADINGS = {"component_share": "What is computed", "bound_share": "What limits its speed"}
ROW_WORDS = {"component_share": "{}", "bound_share": "limit: {}"}


def step_time(variants: Sequence[Variant]) -> Chart | None:
    """Show the average step: what is computed in it and what bounds it; None if it isn't known."""
    known = [variant for variant in variants if variant.summary["limits"]["component_share"]]
    if not known:
        return None
    components = _all_names(known, "component_share")
    pieces = {
        "component_share": _pieces(known, "component_share", _component_colors(components)),
        "bound_share": _pieces(known, "bound_share", BOUND_COLORS),
    }
    finding = "An engine step takes " + told([_largest(variant) for variant in known], ", ")
    return Chart(
        key="chart-step-time",
        title=finding,
        definition="Milliseconds of an engine step on average, all steps of the run: what is "
        "computed in it, and what limits its speed (HBM bandwidth, arithmetic, links between GPUs, "
        "or the host).",
        alt=f"Stacked bars of milliseconds a step. {finding}.",
        figure={
            "data": [
                bar
                for panel, share in enumerate(HEADINGS)
                for bar in stacked(pieces[share], "ms a step", panel)
            ],
            "layout": bars_layout(
                dict.fromkeys(HEADINGS.values(), names_of(known)), "milliseconds per step"
            ),
        },
        table=_share_table(known),
        keys=keys_of(pieces["component_share"]),
    )


def words(name: str) -> str:
    """Show the name of a component or bound: `attention_decode` → `attention decode`."""
    return WORDS.get(name, name.replace("_", " "))


def _component_colors(components: Sequence[str]) -> dict[str, str]:
    return {
        name: COMPONENT_COLORS.get(name, OTHER_COLORS[place % len(OTHER_COLORS)])
        for place, name in enumerate(components)
    }


def _all_names(variants: Sequence[Variant], share: str) -> list[str]:
    return list(dict.fromkeys(name for v in variants for name in v.summary["limits"][share]))


def _step_ms(variant: Variant) -> float:
    return 1e3 * float(variant.summary["figures"]["step_mean_s"])


def _largest(variant: Variant) -> str:
    limits = variant.summary["limits"]
    component = max(limits["component_share"], key=limits["component_share"].__getitem__)
    bound = max(limits["bound_share"], key=limits["bound_share"].__getitem__)
    return (
        f"{_step_ms(variant):.3g} ms in {short_name(variant.name)} "
        f"({percent(limits['component_share'][component])} {words(component)}, "
        f"{percent(limits['bound_share'][bound])} {words(bound)})"
    )


def _pieces(variants: Sequence[Variant], share: str, colors: Mapping[str, str]) -> list[Piece]:
    pieces = []
    for place, name in enumerate(_all_names(variants, share)):
        shares = [variant.summary["limits"][share].get(name, 0.0) for variant in variants]
        amounts = [part * _step_ms(v) for part, v in zip(shares, variants, strict=True)]
        pattern = PATTERNS[place % len(PATTERNS)]
        meaning = f"{SHARE_METRICS[share].description}."
        pieces.append(Piece(words(name), colors.get(name, GREEN), pattern, meaning, amounts))
    return pieces


def _share_table(variants: Sequence[Variant]) -> Table:
    rows = []
    for share in HEADINGS:
        for name in _all_names(variants, share):
            parts = [variant.summary["limits"][share].get(name) for variant in variants]
            shown = [
                "–" if part is None else f"{part * _step_ms(v):.3g} ms ({percent(part)})"
                for part, v in zip(parts, variants, strict=True)
            ]
            rows.append([sentence(ROW_WORDS[share].format(words(name))), *shown])
    rows.append(["All of it", *(f"{_step_ms(variant):.3g} ms" for variant in variants)])
    return Table(["Part of the average step", *(variant.name for variant in variants)], rows)
