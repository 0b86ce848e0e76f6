"""Charts of when requests arrive."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.arrivals import (
    FEWEST_WINDOWS,
    ArrivalFigures,
    Ints,
    burstiness,
    counts,
    dispersion,
    poisson_range,
)
from kvsim.metrics.catalog import format_number
from kvsim.report.drawing import HEIGHT_PX, band, line, log_axis, number, thinned
from kvsim.report.figure import BLUE, GRAY, Chart, Key, Table, axis, layout, rounded, sentence
from kvsim.report.time_axis import time_unit
from kvsim.units import NS_PER_S, format_duration, seconds_to_ns

RATE_BINS = 120
FEWEST_IN_A_BIN = 5  # on average: fewer would show chance alone
PARTS_OF_A_BIN = 5
BAND, POISSON_BAND = "rgba(0,114,178,0.2)", "rgba(138,143,152,0.25)"

Floats = NDArray[np.float64]


def rate_chart(
    times_ns: Ints, end_ns: int, arrivals: ArrivalFigures, what: str = "log"
) -> Chart | None:
    """Show the rate over time, and how far it swings; None for an instant, or very few requests.

    Args:
        times_ns: Arrivals, in ascending order.
        end_ns: Until when they were observed, from 0.
        arrivals: Their figures.
        what: A word for all of them.
    """
    bins = min(RATE_BINS, len(times_ns) // FEWEST_IN_A_BIN)
    part_ns = end_ns // (bins * PARTS_OF_A_BIN) if bins > 1 else 0
    if not part_ns:
        return None
    rates = _rates_per_s(times_ns, end_ns, part_ns)
    bin_s = PARTS_OF_A_BIN * part_ns / NS_PER_S
    unit, unit_ns = time_unit(end_ns)
    x = rounded(
        np.linspace(0.5, len(rates) - 0.5, len(rates)) * (PARTS_OF_A_BIN * part_ns / unit_ns), 4
    )
    mean = rounded(rates.mean(axis=1), 4)
    bin_words, part_words = format_duration(bin_s), format_duration(part_ns / NS_PER_S)
    title = (
        f"{format_number(arrivals.rate_per_s)} requests/s on average; over {bin_words} between "
        f"{format_number(min(mean))} and {format_number(max(mean))}"
    )
    hover = {"hovertemplate": f"%{{y:.3g}}/s at %{{x:.4g}} {unit}<extra></extra>"}
    rows = [[f"{at:.4g} {unit}", number(rate, "/s")] for at, rate in zip(x, mean, strict=True)]
    edges = band(x, rounded(rates.min(axis=1), 4), rounded(rates.max(axis=1), 4), BAND)
    return Chart(
        key="chart-rate",
        title=title,
        definition=f"Requests per second in each {bin_words} of the {what}; the band spans the "
        f"lowest and the highest {part_words} within it.",
        alt=f"A line over time with a band. {title}.",
        figure={
            "data": [*edges, line(x, mean) | hover],
            "layout": layout(
                HEIGHT_PX,
                xaxis=axis(f"time into the {what} ({unit})"),
                yaxis=axis("requests per second", rangemode="tozero"),
            ),
        },
        table=Table(["Time", "Rate"], thinned(rows)),
        keys=[Key(f"mean of {bin_words}", BLUE, "solid"), Key(f"range of {part_words}", BAND)],
    )


def _rates_per_s(times_ns: Ints, end_ns: int, part_ns: int) -> Floats:
    """Return the rate in each part of each bin, shape (bins, parts of a bin)."""
    parts = counts(times_ns, end_ns, part_ns)
    whole = len(parts) // PARTS_OF_A_BIN
    in_bins = parts[: whole * PARTS_OF_A_BIN].reshape(whole, PARTS_OF_A_BIN)
    return np.asarray(in_bins * (NS_PER_S / part_ns), dtype=np.float64)


def dispersion_chart(
    times_ns: Ints, end_ns: int, arrivals: ArrivalFigures, what: str = "log"
) -> Chart | None:
    """Show variance over mean of the counts against the window; None if no window is judged.

    Arguments are those of `rate_chart`.
    """
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
    title = sentence(f"arrivals are {burstiness(arrivals)}")
    measured = line(x, y) | {"hovertemplate": "%{y:.3g} over %{x:.3g} s<extra></extra>"}
    return Chart(
        key="chart-dispersion",
        title=title,
        definition="Index of dispersion: variance over mean of the requests in windows side by "
        "side. Independent clients (Poisson) give 1 at every window, with 95 % of such "
        f"{what}s inside the band; a line that keeps rising means that the rate itself changes.",
        alt=f"A line on logarithmic axes beside a level one for Poisson. {title}.",
        figure={
            "data": [*_poisson(x, arrivals.duration_s), measured],
            "layout": layout(
                HEIGHT_PX,
                xaxis=log_axis("window in seconds", x),
                yaxis=log_axis("variance / mean", [1.0, *y]),
            ),
        },
        table=Table(["Window", "Dispersion"], [[format_duration(s), number(i)] for s, i in known]),
        keys=[Key(what, BLUE, "solid"), Key("Poisson", GRAY, "solid")],
    )


def _poisson(windows_s: list[float], duration_s: float) -> list[dict[str, Any]]:
    """Return the level of a Poisson log, with what 95 % of such logs show around it."""
    ranges = np.array([poisson_range(duration_s / window_s) for window_s in windows_s])
    low, high = rounded(ranges[:, 0], 4), rounded(ranges[:, 1], 4)
    level = line(windows_s, [1.0] * len(windows_s), GRAY) | {"hoverinfo": "skip"}
    return [*band(windows_s, low, high, POISSON_BAND), level]


def arrival_table(arrivals: ArrivalFigures) -> Table:
    """Return rate and dispersion by length of window."""
    rows = [
        [
            format_duration(window.seconds),
            number(arrivals.rate_per_s, "/s"),
            number(window.peak_per_s, "/s"),
            number(window.dispersion),
        ]
        for window in arrivals.windows
    ]
    return Table(["window", "mean rate", "busiest", "dispersion (Poisson: 1)"], rows)
