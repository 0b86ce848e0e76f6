"""What stands beside the verdict: what serves which load, at what cost, how sure, how close."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.metrics.catalog import format_number
from kvsim.metrics.latency import FINISHED
from kvsim.metrics.prices import cost_in_words
from kvsim.metrics.summary import OBSERVED, Summary, certainty
from kvsim.names import short_name
from kvsim.report.inputs import Variant
from kvsim.units import format_duration

LONGEST_NAME = 80
# Always told; vLLM takes them from the model and the GPU where nobody sets them.
SIZES = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
# Told in words of their own.
_IN_WORDS = {
    *SIZES,
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "kv_startup_line",
}
_ARRIVALS = {
    "all_at_once": "all sent at once",
    "bursts": "sent in bursts",
    "closed_loop": "sent by a closed loop of users",
    "constant": "sent at a constant rate",
    "day_curve": "sent along a curve over the day",
    "gamma": "gamma arrivals",
    "poisson": "Poisson arrivals",
    "stages": "sent in stages of one rate each",
    "trace": "arrivals as recorded in a trace",
}
# Where the bound stands in a margin bar, in percent of its width; what is beyond it has room, too.
BOUND_AT = 60.0


@dataclass(frozen=True, slots=True)
class MarginBar:
    """A target's value on a scale from 0; all places are percent of its width.

    `low` and `high` are the ends of the interval, cut to the scale; None where it isn't known.
    `beyond` says that the value itself is off the scale.
    """

    value: float
    low: float | None
    high: float | None
    beyond: bool
    bound: float = BOUND_AT


def facts(variant: Variant) -> list[tuple[str, str]]:
    """Return the rows beside the verdict, each a word and a sentence; unknown ones are left out."""
    rows = (
        ("Deployment", deployment(variant)),
        ("Engine", settings(variant)),
        ("Load", load(variant)),
        ("Cost", cost_in_words(variant.summary, variant.inputs)),
        ("How sure", confidence(variant.summary)),
    )
    return [(word, words) for word, words in rows if words]


def deployment(variant: Variant) -> str:
    """Say what serves which model, `` if the inputs don't tell."""
    inputs, engine = variant.inputs, variant.inputs.get("engine", {})
    if "model" not in inputs or "gpu" not in inputs:
        return ""
    degrees = [
        (flag.removesuffix("_parallel_size"), engine[flag])
        for flag in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    ]
    replicas, gpus = inputs["replicas"], 1
    for _, degree in degrees:
        gpus *= degree
    split = ", ".join(f"{word} parallel {degree}" for word, degree in degrees if degree > 1)
    each = " each" if replicas > 1 else ""
    fleet = f"{replicas:,} replica{'s' if replicas > 1 else ''} of {gpus} × "
    fleet += f"{_name(inputs['gpu']['name'])}{each}{f' ({split})' if split else ''}"
    weights = engine.get("quantization") or engine["dtype"]
    layout = inputs["kv_cache"]["kind"].replace("_", " ")
    return (
        f"{fleet}, {_name(inputs['model']['name'])} in {weights}, "
        f"{layout} KV cache in {engine['kv_cache_dtype']}."
    )


def _name(name: str) -> str:
    return short_name(name, LONGEST_NAME)


def settings(variant: Variant) -> str:
    """Name the engine's sizes, and its flags that are not as vLLM has them."""
    engine = variant.inputs.get("engine", {})
    sizes = ", ".join(f"{name} {engine[name]:,}" for name in SIZES if engine.get(name))
    others = ", ".join(f"{name} {_value(value)}" for name, value in _changed(engine))
    if not sizes:
        return ""
    return f"{sizes}; not vLLM's default: {others}." if others else f"{sizes}; else as vLLM has it."


def _changed(engine: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the flags that differ from a default which is the same for every model and GPU."""
    from kvsim.scenario.schema import Engine

    return [
        (name, engine[name])
        for name, field in Engine.model_fields.items()
        if name in engine and name not in _IN_WORDS and field.default is not None
        and engine[name] != field.default
    ]  # fmt: skip


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def load(variant: Variant) -> str:
    """Say how many requests arrive, how fast, and how long they are on average."""
    figures, requests = variant.summary["figures"], variant.requests
    total = figures["requests_total"]
    if not total:
        return "No request arrives."
    rate = figures["offered_requests_per_s"]
    count = f"{total:,} request{'s' if total > 1 else ''}"
    over = f"{count} in {format_duration(figures['window_s'])}"
    kind = (variant.inputs.get("workload", {}).get("arrivals") or {}).get("kind", "")
    words = [over, _ARRIVALS.get(kind, "")]
    if rate and kind != "all_at_once":
        words.insert(0, f"{format_number(rate)} requests/s offered")
    tokens = f"{format_number(float(requests['prompt_tokens'].mean()))} tokens in"
    answered = requests["output_tokens"][requests["outcome"] == FINISHED]
    if len(answered):
        tokens += f" and {format_number(float(answered.mean()))} out"
    return f"{', '.join(word for word in words if word)}; on average {tokens}."


def confidence(summary: Summary) -> str:
    """Say how sure the verdict is, and on what that rests."""
    verdict = summary["verdict"]
    if verdict["met"] is None:
        return certainty(summary)
    more = "more replications or a longer run would tell"
    said = {
        True: "The verdict is sure as far as chance goes: the 95 % intervals that decide it lie on "
        "one side of their bounds.",
        False: f"The verdict is not sure: the 95 % interval of a target reaches across its bound; "
        f"{more}.",
        None: f"How sure the verdict is can't be said: too few requests are independent; {more}.",
    }
    is_known = summary["replications"] > 1 or OBSERVED in summary["uncertainty"]
    words = said[verdict["certain"]]
    return f"{words} {certainty(summary)}" if is_known else words


def margin_bar(target: Mapping[str, Any]) -> MarginBar | None:
    """Return how a target is drawn; None without a value."""
    value, bound = target["value"], target["bound"]
    if value is None:
        return None

    def place(amount: float | None) -> float | None:
        if amount is None:
            return None
        share = amount / bound if bound else 0.0 if amount <= 0 else float("inf")
        return round(min(max(share * BOUND_AT, 0.0), 100.0), 1)

    low, high = place(target["low"]), place(target["high"])
    if low is None and high is not None:
        low = 0.0
    if high is None and low is not None:
        high = 100.0
    at = place(value) or 0.0
    return MarginBar(at, low, high, at >= 100.0)
