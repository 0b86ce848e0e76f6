"""The workload at a glance: when requests arrive, how unevenly, how long they are."""

import numpy as np

from kvsim.metrics.arrivals import ArrivalFigures, arrival_figures
from kvsim.metrics.latency import FINISHED
from kvsim.report.arrival_charts import arrival_table, dispersion_chart, rate_chart
from kvsim.report.figure import Chart, Section
from kvsim.report.inputs import Variant
from kvsim.report.length_chart import length_chart
from kvsim.report.series import Ints
from kvsim.tables import Columns
from kvsim.units import NS_PER_S

RUN = "run"


def fingerprint(variant: Variant) -> Section | None:
    """Show what was sent to the servers of a variant; None if nothing was."""
    requests = variant.requests
    first = _first_samples(requests)
    if not len(first):
        return None
    times_ns = np.sort(requests["arrival_ns"][first])
    end_ns = _end_ns(variant, times_ns)
    arrivals = arrival_figures(times_ns, end_ns) if end_ns else None
    charts = [
        *(_arrival_charts(times_ns, end_ns, arrivals) if arrivals else ()),
        length_chart(*_lengths(requests, first), _note(requests)),
    ]
    return Section(
        "workload",
        "Workload",
        "What was sent",
        [chart for chart in charts if chart],
        "" if arrivals else "All requests arrive at once.",
        arrival_table(arrivals) if arrivals else None,
    )


def _arrival_charts(
    times_ns: Ints, end_ns: int, arrivals: ArrivalFigures
) -> tuple[Chart | None, Chart | None]:
    return (
        rate_chart(times_ns, end_ns, arrivals, RUN),
        dispersion_chart(times_ns, end_ns, arrivals, RUN),
    )


def _first_samples(requests: Columns) -> Ints:
    """Return a row for each request that a client sent: samples of one are sent together."""
    group, attempt = requests["group"], requests["attempt"]
    if not len(group):
        return group
    key = group * (int(attempt.max()) + 1) + attempt
    order = np.argsort(key, kind="stable")
    return np.sort(order[np.diff(key[order], prepend=-1) > 0])


def _end_ns(variant: Variant, times_ns: Ints) -> int:
    """Return until when requests arrive; 0 if all do at once."""
    last_ns = int(times_ns[-1])
    if not last_ns:
        return 0
    window_ns: int = round(variant.summary["figures"]["window_s"] * NS_PER_S)
    return max(window_ns, last_ns + 1)


def _lengths(requests: Columns, first: Ints) -> tuple[Ints, Ints]:
    return requests["prompt_tokens"][first], requests["output_tokens"][_finished(requests)]


def _finished(requests: Columns) -> Ints:
    return np.flatnonzero(requests["outcome"] == FINISHED)


def _note(requests: Columns) -> str:
    finished, total = len(_finished(requests)), len(requests["outcome"])
    if finished == total:
        return ""
    return f"Answers are those of the {finished:,} of {total:,} requests that finished."
