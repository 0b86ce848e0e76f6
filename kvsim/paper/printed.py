"""The numbers that the paper prints, as `data/measured/pagedattention_paper.json` has them."""

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def printed() -> dict[str, Any]:
    """Return the paper's numbers by figure and table."""
    file = resources.files("kvsim") / "data" / "measured" / "pagedattention_paper.json"
    numbers: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return numbers
