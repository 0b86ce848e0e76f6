"""The tables of a validation, for terminal and page."""

from collections.abc import Mapping, Sequence

from kvsim.report.figure import Table
from kvsim.validate.case import METRICS, OVERALL
from kvsim.validate.peers import Errors
from kvsim.validate.run import Row
from kvsim.validate.summary import Spread, Summary

_OF_GROUPS = ("e2e_mean", "ttft_mean", "tpot_mean", "kv_cache_tokens")


def all_tables(rows: Sequence[Row], summary: Summary, peers: Mapping[str, Errors]) -> list[Table]:
    """Return the tables that have something to tell: experiments, sums, peers."""
    tables = [
        experiment_table(rows, peers),
        metric_table(summary),
        peer_table(summary),
    ]
    return [table for table in tables if table.rows]


def experiment_table(rows: Sequence[Row], peers: Mapping[str, Errors]) -> Table:
    """Show each figure of whole runs: measured, predicted, error, and the peers' errors."""
    shown = [row for row in rows if row.stage == OVERALL and row.ape is not None]
    lines = []
    for place, row in enumerate(shown):
        again = place > 0 and shown[place - 1].id == row.id
        lines.append(
            [
                "" if again else row.id,
                row.metric,
                _figure(row.actual),
                _figure(row.predicted),
                f"{row.error_percent:+.1f} %",
                row.basis,
                *(_error(errors.get((row.id, row.metric))) for errors in peers.values()),
            ]
        )
    header = ["Experiment", "Metric", "Measured", "Predicted", "Error", "Basis", *peers]
    return Table(header, lines)


def metric_table(summary: Summary) -> Table:
    """Show the absolute errors by metric."""
    lines = [
        [metric, str(spread.n), *_spread(spread), METRICS[metric]]
        for metric, spread in summary.metrics.items()
    ]
    return Table(["Metric", "n", "Median", "Mean", "p90", "Unit"], lines)


def group_table(summary: Summary, kind: str) -> Table:
    """Show the absolute errors of means and KV caches by GPU, model or profile."""
    lines = [
        [name, metric, str(spread.n), *_spread(spread)]
        for name, metrics in summary.groups[kind].items()
        for metric, spread in metrics.items()
        if metric in _OF_GROUPS
    ]
    title = "GPU" if kind == "gpu" else kind.title()
    return Table([title, "Metric", "n", "Median", "Mean", "p90"], lines)


def peer_table(summary: Summary) -> Table:
    """Show other simulators' published errors, and ours on the same experiments."""
    lines = [
        [
            beside.simulator,
            beside.metric,
            str(beside.theirs.n),
            *_spread(beside.theirs)[:2],
            *_spread(beside.ours)[:2],
        ]
        for beside in summary.beside
    ]
    header = ["Beside", "Metric", "n", "Median", "Mean", "kvsim median", "kvsim mean"]
    return Table(header, lines)


def unpredicted_table(summary: Summary) -> Table:
    """Show why some measurements can't be predicted, and which."""
    ids: dict[str, list[str]] = {}
    for name, reason in summary.unpredicted.items():
        ids.setdefault(reason, []).append(name)
    return Table(
        ["Not predicted", "Measurements", "n"],
        [[reason, ", ".join(names), str(len(names))] for reason, names in ids.items()],
    )


def _spread(spread: Spread) -> list[str]:
    return [_error(value) for value in (spread.median, spread.mean, spread.p90)]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"
