"""The sweep's table: one row for each replication of each point, with units in the schema."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import kvsim
from kvsim.metrics.catalog import METRICS
from kvsim.studies.sweep.axes import axis_paths
from kvsim.studies.sweep.results import Results

if TYPE_CHECKING:
    import pandas as pd

_ABOUT = {
    "point": ("count", "Number of the point; its replications share it"),
    "variant": ("text", "Variant of the scenario"),
    "replication": ("count", "Number of the independent draw, from 0"),
    "status": ("text", "done; refused, defect or killed: it failed, and `error` says why"),
    "met": ("bool", "Whether it meets its SLO; null if it has none or can't be judged"),
    "verdict": ("text", "The same in a sentence"),
    "error": ("text", "Why it failed"),
}


def arrow_table(results: Results) -> Any:
    """Return the table as Arrow's; each field has its unit and description as metadata."""
    points = results.points
    columns: list[tuple[str, Any]] = [
        ("point", pa.array(np.arange(len(points)) // results.sweep.replications)),
        ("variant", pa.array([point.variant for point in points])),
        ("replication", pa.array([point.replication for point in points])),
        *((path, _axis([p.changes[path] for p in points])) for path in axis_paths(results.sweep)),
        ("status", pa.array(results.status)),
        ("met", pa.array(results.met, pa.bool_())),
        ("verdict", pa.array(results.verdicts)),
        ("error", pa.array(results.errors)),
        *(
            (name, pa.array(column, from_pandas=True))  # NaN becomes null
            for name, column in zip(METRICS, results.figures.T, strict=True)
        ),
    ]
    fields = [pa.field(name, values.type, metadata=_about(name)) for name, values in columns]
    about = {
        "kvsim": kvsim.__version__,
        "sweep": results.sweep.name,
        "scenario": results.sweep.scenario,
        "set": json.dumps(results.sweep.set),
    }
    return pa.table([values for _, values in columns], pa.schema(fields, metadata=about))


def write_table(results: Results, path: Path) -> None:
    """Write the table as Parquet; the same results give the same bytes."""
    pq.write_table(arrow_table(results), path, compression="zstd")


def is_table(path: Path) -> bool:
    """Tell whether a file is a sweep's table."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError):
        return False
    return b"sweep" in metadata and b"kvsim" in metadata


def data_frame(results: Results) -> "pd.DataFrame":
    """Return the table as pandas'."""
    frame: pd.DataFrame = arrow_table(results).to_pandas()
    return frame


def _about(name: str) -> dict[str, str]:
    if metric := METRICS.get(name):
        return {"unit": metric.unit, "description": metric.description}
    unit, words = _ABOUT.get(name, ("as in the scenario", "Value that the sweep sets"))
    return {"unit": unit, "description": words}


def _axis(values: list[Any]) -> Any:
    """Return an axis' column: numbers if all are, JSON as text for what is no single kind."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values])
    if len(kinds) == 1 and kinds <= {int, float, bool, str}:
        return pa.array(values)
    return pa.array([value if isinstance(value, str) else json.dumps(value) for value in values])
