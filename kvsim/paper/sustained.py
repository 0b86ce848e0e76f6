"""Figure 12: the rate that each system sustains at the same normalized latency."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvsim.cost.attention_kernels.contiguous import Contiguous
from kvsim.cost.overheads.none import NoOverhead
from kvsim.metrics.catalog import percent
from kvsim.paper.chapter import Chapter, Finding
from kvsim.paper.charts import bars, lines
from kvsim.paper.printed import printed
from kvsim.paper.tasks import LOWER_SHARES, Task, rate_at, summary_of, sustained_rate
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
# What could hide behind a ratio: the host's time, and what paging costs the kernel of 2023.
WITHOUT: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "host": (
        "without any host overhead",
        {"cost.overhead": NoOverhead()},
        ("base", "orca_oracle", "orca_max"),
    ),
    "paging": (
        "if paging cost the kernel nothing",
        {"cost.attention_kernel": Contiguous()},
        ("base",),
    ),
}

# Far beyond what any system takes: how large batches get, and how long their steps take.
OVERLOAD_PER_S, OVERLOADED_S = 20.0, 300.0
_OVERLOAD = {
    "workload.arrivals.rate_per_s": OVERLOAD_PER_S,
    "workload.duration_s": OVERLOADED_S,
    "max_simulated_s": OVERLOADED_S,
}

Trials = list[tuple[float, float]]


def tasks(folder: Path, quick: bool) -> Mapping[str, Task]:
    """Return one search for each system and model."""
    models = ["opt13b"] if quick else list(MODELS)
    shorter: dict[str, Any] = {"workload.duration_s": QUICK_S} if quick else {}
    found = {
        f"{model}/{name}": _search(folder, model, name, shorter)
        for model in models
        for name in SYSTEMS
    }
    for model in models:
        for key, (_, changes, names) in WITHOUT.items():
            for name in names:
                task = _search(folder, model, name, {**shorter, **changes}, ())
                found[f"{model}/{name}/without {key}"] = task
        for name in ("base", "orca_oracle", "orca_max"):
            path = folder / f"sustained_{model}.yaml"
            found[f"{model}/{name}/overload"] = Task(summary_of, (path, name, _OVERLOAD))
    return found


def _search(
    folder: Path,
    model: str,
    name: str,
    changes: Mapping[str, Any],
    lower_shares: Sequence[float] = LOWER_SHARES,
) -> Task:
    path = folder / f"sustained_{model}.yaml"
    return Task(sustained_rate, (path, name, changes, NORMALIZED_S, lower_shares))


def chapter(results: Mapping[str, Any]) -> Chapter:
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
                    _why(results, model, name),
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
        "found by halving. vLLM computes prompts and decodes in the same iterations, as the paper "
        "says and as Orca does. FasterTransformer is C++ and has no host overhead here; the others "
        "share the synchronous engine's. OPT-175B's batches reach past 128 rows, the edge of a "
        "tile: there the products measured on A100 take 2.2 to 2.8 times what FLOPs and bytes "
        "would, against 1.4 to 1.7 below it, so that a larger batch gains little."
    )
    return Chapter(
        "figure12", "Figure 12", "Figure 12: sustained rates", sentence, findings, charts
    )


def _rate(results: Mapping[str, Any], model: str, name: str, bound_s: float) -> float:
    return rate_at(results[f"{model}/{name}"], bound_s)


def _ratio(
    results: Mapping[str, Any], model: str, name: str, bound_s: float = NORMALIZED_S
) -> float:
    return _rate(results, model, "base", bound_s) / _rate(results, model, name, bound_s)


def _why(results: Mapping[str, Any], model: str, name: str) -> str:
    """Tell how the ratio moves with the bound, and with what could hide behind it."""
    bounds = " and ".join(
        f"{_ratio(results, model, name, bound_s):.2f} at {bound_s:g} s"
        for bound_s in OTHER_BOUNDS_S
    )
    texts = []
    for key, (words, _, names) in WITHOUT.items():
        trials = {
            each: results[f"{model}/{each}" + (f"/without {key}" if each in names else "")]
            for each in ("base", name)
        }
        vllm, other = (rate_at(trials[each], NORMALIZED_S) for each in ("base", name))
        texts.append(f"{vllm / other:.2f} {words}")
    without = "; ".join(texts)
    return f"With other bounds on the latency {bounds}; {without}. {_steps(results, model, name)}"


def _steps(results: Mapping[str, Any], model: str, name: str) -> str:
    """Compare batches and steps in overload: their quotient is about the ratio of rates."""
    found = {each: results[f"{model}/{each}/overload"] for each in ("base", name)}
    batch, step_ms = (
        {each: scale * summary["figures"][figure] for each, summary in found.items()}
        for figure, scale in (("running_seqs_mean", 1.0), ("step_mean_s", 1e3))
    )
    vllm = found["base"]["figures"]
    steps = vllm["busy_fraction"] * OVERLOADED_S / vllm["step_mean_s"]
    again = vllm["recomputed_tokens"] / (steps * vllm["step_tokens_mean"])
    parts = found["base"]["limits"]["component_share"]
    most = sorted(parts, key=lambda part: -parts[part])[:3]
    shares = ", ".join(f"{part.replace('_', ' ')} {percent(parts[part])}" for part in most)
    return (
        f"In overload vLLM has {batch['base']:.0f} requests in steps of {step_ms['base']:.0f} ms "
        f"({shares}), {SYSTEMS[name]} {batch[name]:.0f} in {step_ms[name]:.0f} ms: "
        f"{batch['base'] / batch[name]:.2f} times the batch, "
        f"{step_ms['base'] / step_ms[name]:.2f} times the step. The ratio of rates is about their "
        f"quotient. Of the tokens in vLLM's steps {percent(again)} are computed again, after a "
        "preemption; Orca preempts nobody."
    )


def _over_orca_pow2(results: Mapping[str, Any], model: str) -> Finding:
    what = f"{MODELS[model]}: vLLM over {SYSTEMS['orca_pow2']}"
    return Finding(
        what, "x", None, _ratio(results, model, "orca_pow2"), None, "Between the others."
    )


def _over_faster_transformer(results: Mapping[str, Any], models: list[str]) -> Finding:
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


def _span(results: Mapping[str, Any], models: list[str], name: str) -> str:
    ratios = [_ratio(results, model, name) for model in models]
    low, high = f"{min(ratios):.1f}", f"{max(ratios):.1f}"
    return low if low == high else f"{low} to {high}"


def _curves(results: Mapping[str, Any], model: str) -> Any:
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
