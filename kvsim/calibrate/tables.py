"""Tables of a calibration for the terminal: constants, and errors before and after."""

from collections.abc import Iterator, Sequence
from statistics import median

from kvsim.calibrate.fit import Fitted
from kvsim.calibrate.run import Calibration

Rows = list[list[str]]
_NAMES = {
    "ttft_mean": "TTFT",
    "tpot_mean": "TPOT",
    "itl_mean_reported": "ITL",
    "e2e_mean": "E2E",
}


def constants_table(constants: Sequence[Fitted]) -> Rows:
    """Show each constant before and after, the interval, and the bound that it has hit."""
    rows = [["Constant", "Start", "Fitted", "95 % interval", "Bounds", "Hit"]]
    for one in constants:
        shown = one.constant.shown
        rows.append(
            [
                one.constant.path,
                shown(one.constant.start_s),
                "kept" if one.kept else shown(one.value_s),
                " to ".join(shown(end_s) for end_s in one.interval_s) if one.interval_s else "",
                f"0 to {shown(one.constant.most_s)}",
                one.bound,
            ]
        )
    return rows


def errors_table(calibration: Calibration) -> Rows:
    """Show each measured mean, and how far predictions are from it before and after."""
    loads = {result.name: result.load for result in calibration.results}
    rows = [["Result", "Load", "Mean", "Measured", "Before", "After"]]
    for figure, before, after in _errors(calibration):
        load, name = loads[figure[0]], _NAMES[figure[1]]
        rows.append([figure[0], load, name, f"{figure[2]:.4g} ms", _signed(before), _signed(after)])
    return rows


def summary_table(calibration: Calibration) -> Rows:
    """Show the median absolute error of each kind of figure, before and after."""
    of_kind: dict[str, list[tuple[float, float]]] = {}
    for figure, before, after in _errors(calibration):
        of_kind.setdefault(_NAMES[figure[1]], []).append((abs(before), abs(after)))
    rows = [["Median error", "n", "Before", "After"]]
    for name, pairs in of_kind.items():
        before, after = (median(pair[place] for pair in pairs) for place in (0, 1))
        rows.append([name, str(len(pairs)), f"{before:.1f} %", f"{after:.1f} %"])
    return rows


def _errors(calibration: Calibration) -> Iterator[tuple[tuple[str, str, float], float, float]]:
    """Yield each figure (result, metric, milliseconds) with its errors in percent."""
    predicted = zip(calibration.fit.before_ms, calibration.fit.after_ms, strict=True)
    for figure, both_ms in zip(calibration.figures, predicted, strict=True):
        measured_ms = figure.measured_ms
        before, after = (100 * (float(ms) - measured_ms) / measured_ms for ms in both_ms)
        yield (figure.result, figure.metric, measured_ms), before, after


def _signed(percent: float) -> str:
    return f"{percent:+.1f} %"
