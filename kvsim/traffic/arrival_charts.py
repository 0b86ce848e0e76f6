"""Charts of when requests arrive."""

import numpy as np

from kvsim.metrics.catalog import format_number
from kvsim.report.figure import BLUE, GRAY, Chart, Key, Table, axis, layout, rounded, sentence
from kvsim.traffic.counts import FEWEST_WINDOWS, ArrivalFigures, Ints, counts, dispersion
from kvsim.traffic.drawing import HEIGHT_PX, line, log_axis, thinned
from kvsim.traffic.summary import burstiness
from kvsim.traffic.tables import number
from kvsim.units import NS_PER_S, format_duration, seconds_to_ns

RATE_BINS = 120
PARTS_OF_A_BIN = 5
TIME_UNITS = (("h", 3600.0, 7200.0), ("min", 60.0, 600.0), ("s", 1.0, 0.0))  # used from so many s
BAND, POISSON_BAND = "rgba(0,114,178,0.2)", "rgba(138,143,152,0.25)"


def rate_chart(times_ns: Ints, end_ns: int, arrivals: ArrivalFigures) -> Chart:
    """Show the rate over time, and how far it swings within each point of the line."""
    part_ns = max(end_ns // (RATE_BINS * PARTS_OF_A_BIN), 1)
    parts = counts(times_ns, end_ns, part_ns)
    whole = len(parts) // PARTS_OF_A_BIN
    rates = parts[: whole * PARTS_OF_A_BIN].reshape(whole, PARTS_OF_A_BIN) * NS_PER_S / part_ns
    bin_s = PARTS_OF_A_BIN * part_ns / NS_PER_S
    middles_s = np.asarray((np.arange(whole) + 0.5) * bin_s, dtype=np.float64)
    unit, unit_s = _time_unit(arrivals.duration_s)
    x, mean = rounded(middles_s / unit_s, 4), np.asarray(rates.mean(axis=1), dtype=np.float64)
    low, high = float(mean.min()), float(mean.max())
    title = (
        f"{format_number(arrivals.rate_per_s)} requests/s on average; over "
        f"{format_duration(bin_s)} between {format_number(low)} and {format_number(high)}"
    )
    part_s = format_duration(part_ns / NS_PER_S)
    edges = [
        line(x, rounded(rates.min(axis=1), 4), width=0) | {"hoverinfo": "skip"},
        line(x, rounded(rates.max(axis=1), 4), width=0)
        | {"fill": "tonexty", "fillcolor": BAND, "hoverinfo": "skip"},
    ]
    hover = {"hovertemplate": f"%{{y:.3g}}/s at %{{x:.4g}} {unit}<extra></extra>"}
    rows = thinned(
        [[f"{at:.4g} {unit}", number(rate, "/s")] for at, rate in zip(x, mean, strict=True)]
    )
    return Chart(
        key="chart-rate",
        title=title,
        definition=f"Requests per second in each {format_duration(bin_s)} of the log; the band "
        f"spans the lowest and the highest {part_s} within it.",
        alt=f"A line over time with a band. {title}.",
        figure={
            "data": [*edges, line(x, rounded(mean, 4)) | hover],
            "layout": layout(
                HEIGHT_PX,
                xaxis=axis(f"time since the first request ({unit})"),
                yaxis=axis("requests per second", rangemode="tozero"),
            ),
        },
        table=Table(["Time", "Rate"], rows),
        keys=[
            Key(f"mean of {format_duration(bin_s)}", BLUE, "solid"),
            Key(f"range of its {part_s} parts", BAND),
        ],
    )


def dispersion_chart(times_ns: Ints, end_ns: int, arrivals: ArrivalFigures) -> Chart | None:
    """Show variance over mean of the counts against the window; None if no window is judged."""
    shortest_s = max(0.1, 2 * (arrivals.tick_s or 0.0))
    longest_s = end_ns / NS_PER_S / FEWEST_WINDOWS
    if longest_s <= shortest_s:
        return None
    windows_s = np.geomspace(shortest_s, longest_s, 25)
    indices = [dispersion(times_ns, end_ns, seconds_to_ns(window)) for window in windows_s]
    known = [(s, index) for s, index in zip(windows_s, indices, strict=True) if index]
    if not known:
        return None
    x = [float(f"{seconds:.4g}") for seconds, _ in known]
    y = [float(f"{index:.4g}") for _, index in known]
    windows = end_ns / NS_PER_S / np.array(x)
    spread = 1.96 * np.sqrt(2 / (windows - 1))  # a chi-square variable over its degrees of freedom
    title = sentence(f"arrivals are {burstiness(arrivals)}")
    poisson = [
        line(x, rounded(np.maximum(1 - spread, 0.01), 4), width=0) | {"hoverinfo": "skip"},
        line(x, rounded(1 + spread, 4), width=0)
        | {"fill": "tonexty", "fillcolor": POISSON_BAND, "hoverinfo": "skip"},
        line(x, [1.0] * len(x), GRAY) | {"hoverinfo": "skip"},
    ]
    measured = line(x, y) | {"hovertemplate": "%{y:.3g} over %{x:.3g} s<extra></extra>"}
    return Chart(
        key="chart-dispersion",
        title=title,
        definition="Index of dispersion: variance over mean of the requests in windows side by "
        "side. Independent clients (Poisson) give 1 at every window, with 95 % of such logs "
        "inside the band; a line that keeps rising means that the rate itself changes.",
        alt=f"A line on logarithmic axes beside a level one for Poisson. {title}.",
        figure={
            "data": [*poisson, measured],
            "layout": layout(
                HEIGHT_PX,
                xaxis=log_axis("window (s"),
                yaxis=log_axis("variance / mean"),
            ),
        },
        table=Table(["Window", "Dispersion"], [[format_duration(s), number(i)] for s, i in known]),
        keys=[Key("log", BLUE, "solid"), Key("Poisson", GRAY, "solid")],
    )


def _time_unit(seconds: float) -> tuple[str, float]:
    return next((name, size) for name, size, least in TIME_UNITS if seconds >= least)
