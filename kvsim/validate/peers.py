"""Published errors of other simulators on the same measurements."""

import csv
from collections.abc import Collection, Mapping
from functools import cache

from kvsim.validate.files import SHIPPED

# As tables name them; the others of `peers.csv` by their own names.
NAMES: Mapping[str, str] = {
    "blis-trained-physics": "BLIS",
    "blis-evolved": "BLIS evolved",
    "blis-roofline": "BLIS roofline",
    "aiconfigurator": "AIConfigurator",
    "llm-optimizer": "LLM-Optimizer",
    "llmservingsim": "LLMServingSim",
    "vidur": "Vidur",
}

Errors = Mapping[tuple[str, str], float]  # (experiment, metric) → absolute error in percent


def peers_of(ids: Collection[str]) -> dict[str, Errors]:
    """Return the errors by simulator, over whole runs, of these experiments; none: no entry."""
    found: dict[str, dict[tuple[str, str], float]] = {}
    for row in _published():
        if row["id"] not in ids or row["simulator"] not in NAMES:
            continue
        for metric, ape in row.items():
            if metric not in {"id", "simulator"} and ape:
                errors = found.setdefault(NAMES[row["simulator"]], {})
                errors[row["id"], metric] = float(ape)
    return {name: found[name] for name in NAMES.values() if name in found}


@cache
def _published() -> list[dict[str, str]]:
    with (SHIPPED / "peers.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
