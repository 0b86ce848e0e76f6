"""Figures and verdict of each class of traffic."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvsim.metrics import RunContext, finite_or_none
from kvsim.metrics.catalog import METRICS, format_figure
from kvsim.metrics.latency import latency_figures, request_statistics
from kvsim.metrics.slo import judge
from kvsim.metrics.throughput import failed_interval, request_figures, throughput_figures
from kvsim.tables import ChosenRows, Columns

# What is shown of each class.
CLASS_FIGURES = (
    "requests_total",
    "requests_per_s",
    "ttft_p99_s",
    "tpot_p99_s",
    "e2e_p99_s",
    "failed_fraction",
)
MET = {True: "met", False: "MISSED", None: "not judged"}


def met_word(verdict: Mapping[str, Any]) -> str:
    """Say in a word whether a verdict or target is met, with a `?` if that is uncertain."""
    return MET[verdict["met"]] + ("?" if verdict["certain"] is False else "")


def class_table(classes: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows that show the classes of a summary, one a row."""
    header = ["Class", *(METRICS[name].label for name in CLASS_FIGURES), "SLO"]
    rows = []
    for name, part in classes.items():
        shown = [format_figure(figure, part["figures"][figure]) for figure in CLASS_FIGURES]
        verdict = part["verdict"]
        rows.append([name, *shown, met_word(verdict) if verdict["targets"] else "none"])
    return header, rows


def class_summaries(requests: Columns, last_step_ns: int, context: RunContext) -> dict[str, Any]:
    """Return `verdict` and `figures` of each class, by its name; nothing if there are none.

    The figures are those of `METRICS` that requests alone tell: ITL is not among them, since
    steps don't say whose tokens they compute. A class has its own targets, or none.
    """
    found = {}
    for code, name in enumerate(context.class_names):
        mine = ChosenRows(requests, requests["class"] == code)
        own = replace(context, slo=context.class_slos.get(name), price_usd_per_gpu_hour=None)
        statistics, intervals = request_statistics(mine, context.warmup_ns, own.slo)
        values = {
            **request_figures(mine, context.warmup_ns),
            **throughput_figures(mine, last_step_ns, own),
            **latency_figures(statistics),
        }
        figures = {key: finite_or_none(values[key]) for key in METRICS if key in values}
        intervals = {**intervals, **failed_interval(mine)}
        verdict = judge(own.slo, figures, statistics, intervals)
        found[name] = {"verdict": verdict, "figures": figures}
    return found


def overall(verdict: dict[str, Any], classes: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict on all traffic together with those on its classes.

    The SLO is met if that of the whole is, where it has one, and that of each class. The sentence
    is that of the first that misses, or is not judged; of those that miss, one that does for sure.
    """
    judged = {name: part["verdict"] for name, part in classes.items() if part["verdict"]["targets"]}
    if not judged:
        return verdict
    own = [("", verdict)] if verdict["targets"] else []
    parts = own + list(judged.items())
    for answer in (False, None):
        worst = [part for part in parts if part[1]["met"] is answer]
        if worst:
            name, part = next((part for part in worst if part[1]["certain"]), worst[0])
            sentence = _said_of(name, part["sentence"])
            return {**verdict, "met": answer, "certain": part["certain"], "sentence": sentence}
    sentences = [_said_of(name, part["sentence"]) for name, part in parts]
    answers = [part["certain"] for _, part in parts]
    certain = False if False in answers else None if None in answers else True
    return {**verdict, "met": True, "certain": certain, "sentence": " ".join(sentences)}


def _said_of(name: str, sentence: str) -> str:
    """Say of a class what a verdict says: `Meets its SLO` → `Class chat meets its SLO`."""
    if not name:
        return sentence
    verb, _, rest = sentence.partition(" ")
    if verb in {"Meets", "Misses"}:
        return f"Class {name} {verb.lower()} {rest}"
    return f"Class {name}: {sentence if verb != 'Too' else f'too {rest}'}"


def all_targets(summary: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the targets of a summary, each with the class that it bounds; '' for all traffic."""
    parts = [("", summary), *summary["classes"].items()]
    return [(name, target) for name, part in parts for target in part["verdict"]["targets"]]
