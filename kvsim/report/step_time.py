"""Chart of step time: what the engine's steps compute, and what limits their speed."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.metrics.catalog import percent
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
    Key,
    Table,
    axis,
    panel_axis,
    panels,
    plotly_text,
    sentence,
    short_name,
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
BAR_PX = 46
LABELED_SHARE = 0.05  # a narrower bar has no room for its name


def step_time(variants: Sequence[Variant]) -> Chart | None:
    """Show what is computed in the engine's steps and what bounds it; None if it isn't known."""
    components = _all_names(variants, "component_share")
    if not components:
        return None
    colors = {
        name: COMPONENT_COLORS.get(name, OTHER_COLORS[place % len(OTHER_COLORS)])
        for place, name in enumerate(components)
    }
    bounds = _all_names(variants, "bound_share")
    data = _share_bars(variants, "component_share", 0, colors)
    data += _share_bars(
        variants, "bound_share", 1, {name: BOUND_COLORS.get(name, GREEN) for name in bounds}
    )
    finding = "; ".join(_largest(variant) for variant in variants if _known(variant))
    return Chart(
        key="chart-step-time",
        title=sentence(finding),
        definition="Of the time in engine steps, the share of each component, and of what limits "
        "its speed: HBM bandwidth, arithmetic, links between GPUs, or the host.",
        alt=f"Stacked bars. {finding}.",
        figure={"data": data, "layout": _bars_layout(variants)},
        table=_share_table(variants, components, bounds),
        keys=[Key(words(name), color) for name, color in colors.items()],
    )


def words(name: str) -> str:
    """Show the name of a component or bound: `attention_decode` → `attention decode`."""
    return WORDS.get(name, name.replace("_", " "))


def _known(variant: Variant) -> bool:
    return bool(variant.summary["limits"]["component_share"])


def _all_names(variants: Sequence[Variant], share: str) -> list[str]:
    return list(dict.fromkeys(name for v in variants for name in v.summary["limits"][share]))


def _largest(variant: Variant) -> str:
    limits = variant.summary["limits"]
    component = max(limits["component_share"], key=limits["component_share"].__getitem__)
    bound = max(limits["bound_share"], key=limits["bound_share"].__getitem__)
    return (
        f"{short_name(variant.name)} spends {percent(limits['component_share'][component])} of its "
        f"step time in {words(component)} and is {percent(limits['bound_share'][bound])} "
        f"{words(bound)}"
    )


def _share_bars(
    variants: Sequence[Variant], share: str, panel: int, colors: Mapping[str, str]
) -> list[dict[str, Any]]:
    bars = []
    for name, color in colors.items():
        amounts = [variant.summary["limits"][share].get(name, 0.0) for variant in variants]
        bars.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": list(range(len(variants))),
                "x": [round(100 * amount, 2) for amount in amounts],
                "yaxis": panel_axis(panel),
                "text": [words(name) if amount >= LABELED_SHARE else "" for amount in amounts],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "marker": {"color": color, "line": {"color": "#ffffff", "width": 1}},
                "hovertemplate": f"%{{x:.1f}} % {words(name)}<extra></extra>",
            }
        )
    return bars


def _bars_layout(variants: Sequence[Variant]) -> dict[str, Any]:
    names = {
        "tickvals": list(range(len(variants))),
        "ticktext": [plotly_text(variant.name) for variant in variants],
        "autorange": "reversed",
        "showgrid": False,
    }
    x_axis = axis("% of time in steps", range=[0, 100])
    figure = panels(["What is computed", "What limits its speed"], [axis("", **names)] * 2, x_axis)
    return figure | {
        "barmode": "stack",
        "height": 2 * BAR_PX * len(variants) + 150,
        "uniformtext": {"mode": "hide", "minsize": 10},
    }


def _share_table(
    variants: Sequence[Variant], components: Sequence[str], bounds: Sequence[str]
) -> Table:
    rows = []
    for share, names in (("component_share", components), ("bound_share", bounds)):
        for name in names:
            values = [variant.summary["limits"][share].get(name) for variant in variants]
            shown = ["–" if value is None else percent(value) for value in values]
            rows.append([sentence(words(name)), *shown])
    return Table(["Part of the step time", *(variant.name for variant in variants)], rows)
