"""Figure 12: the rate that each system sustains at the same normalized latency."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.paper.chapter import Chapter, Finding
from kvsim.paper.charts import bars, lines
from kvsim.paper.printed import printed
from kvsim.paper.tasks import Task, rate_at, sustained_rate
from kvsim.report.figure import axis

NORMALIZED_S = 0.5  # of each token; the curves are steep there, so that little depends on it
OTHER_BOUNDS_S = (0.2, 1.0)
MODELS = {"opt13b": "OPT-13B", "opt66b": "OPT-66B", "opt175b": "OPT-175B"}
SYSTEMS = {
    "base": "vLLM",
    "orca_oracle": "Orca (Oracle)",
    "orca_pow2": "Orca (Pow2)",
    "orca_max": "Orca (Max)",
    "faster_transformer": "FasterTransformer",
}
QUICK_S = 120.0

Trials = list[tuple[float, float]]


def tasks(folder: Path, quick: bool) -> Mapping[str, Task]:
    """Return one search for each system and model."""
    models = ["opt13b"] if quick else list(MODELS)
    changes: dict[str, Any] = {"workload.duration_s": QUICK_S} if quick else {}
    return {
        f"{model}/{name}": Task(
            sustained_rate, (folder / f"sustained_{model}.yaml", name, changes, NORMALIZED_S)
        )
        for model in models
        for name in SYSTEMS
    }


def chapter(results: Mapping[str, Trials]) -> Chapter:
    """Compare the ratios of rates."""
    models = [model for model in MODELS if f"{model}/base" in results]
    ranges = printed()["figure12_sustained_rate_ratio"]
    findings = []
    for model in models:
        for name in ("orca_oracle", "orca_max"):
            low, high = ranges[f"sharegpt_vllm_vs_{name}"]
            findings.append(
                Finding(
                    f"{MODELS[model]}: vLLM over {SYSTEMS[name]}",
                    "x",
                    (low, high),
                    _ratio(results, model, name),
                    (low, high),
                    _bands(results, model, name),
                )
            )
        findings.append(_over_orca_pow2(results, model))
    findings.append(_over_faster_transformer(results, models))
    charts = [
        bars(
            "sustained",
            f"vLLM serves {_span(results, models, 'orca_oracle')} times as much as Orca (Oracle), "
            f"{_span(results, models, 'orca_max')} times as much as Orca (Max)",
            f"Rate at which the mean normalized latency reaches {NORMALIZED_S:g} s a token.",
            "requests/s",
            [MODELS[model] for model in models],
            {
                words: [rate_at(results[f"{model}/{name}"], NORMALIZED_S) for model in models]
                for name, words in SYSTEMS.items()
            },
        ),
        *(_curves(results, model) for model in models),
    ]
    sentence = (
        "ShareGPT, one-hour traces (15 minutes for OPT-175B). A rate is sustained while the mean "
        "normalized latency, E2E over the answer's length, stays within the bound; the rate is "
        "found by halving. FasterTransformer is C++ and has no host overhead here; the others "
        "share the synchronous engine's."
    )
    return Chapter(
        "figure12", "Figure 12", "Figure 12: sustained rates", sentence, findings, charts
    )


def _rate(results: Mapping[str, Trials], model: str, name: str, bound_s: float) -> float:
    return rate_at(results[f"{model}/{name}"], bound_s)


def _ratio(
    results: Mapping[str, Trials], model: str, name: str, bound_s: float = NORMALIZED_S
) -> float:
    return _rate(results, model, "base", bound_s) / _rate(results, model, name, bound_s)


def _bands(results: Mapping[str, Trials], model: str, name: str) -> str:
    others = " and ".join(
        f"{_ratio(results, model, name, bound_s):.2f} at {bound_s:g} s"
        for bound_s in OTHER_BOUNDS_S
    )
    return f"With other bounds on the latency: {others}."


def _over_orca_pow2(results: Mapping[str, Trials], model: str) -> Finding:
    what = f"{MODELS[model]}: vLLM over {SYSTEMS['orca_pow2']}"
    return Finding(
        what, "x", None, _ratio(results, model, "orca_pow2"), None, "Between the others."
    )


def _over_faster_transformer(results: Mapping[str, Trials], models: list[str]) -> Finding:
    ratios = {model: _ratio(results, model, "faster_transformer") for model in models}
    most = max(ratios, key=lambda model: ratios[model])
    said = printed()["figure12_sustained_rate_ratio"]["vllm_vs_faster_transformer_up_to"]
    each = ", ".join(f"{MODELS[model]} {ratio:.1f}" for model, ratio in ratios.items())
    why = (
        f"The largest ratio, of {MODELS[most]} ({each}). The paper's 22 is the most over all its "
        "models and traces, and it does not say which; the batch that FasterTransformer takes, and "
        "how long it collects one, are not described in full."
    )
    return Finding("vLLM over FasterTransformer, up to", "x", said, ratios[most], None, why)


def _span(results: Mapping[str, Trials], models: list[str], name: str) -> str:
    ratios = [_ratio(results, model, name) for model in models]
    low, high = f"{min(ratios):.1f}", f"{max(ratios):.1f}"
    return low if low == high else f"{low} to {high}"


def _curves(results: Mapping[str, Trials], model: str) -> Any:
    curves = {
        words: tuple(zip(*results[f"{model}/{name}"], strict=True))
        for name, words in SYSTEMS.items()
    }
    vllm = _rate(results, model, "base", NORMALIZED_S)
    return lines(
        f"latency-{model}",
        f"{MODELS[model]}: vLLM sustains {vllm:.2g} requests/s",
        "Mean normalized latency over the rate of arrivals, at the rates that the search tried.",
        (axis("requests/s"), axis("s a token", type="log")),
        curves,  # type: ignore[arg-type]
    )
