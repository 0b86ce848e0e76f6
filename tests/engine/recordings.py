"""Reads schedules recorded from the real vLLM scheduler (format: their README)."""

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "data" / "vllm_schedules"


def recorded_runs(pattern: str = "*.json.xz") -> Iterator[tuple[str, dict[str, Any], dict]]:
    """Yield (file/run, run, document); a run holds `config`, `steps` and `outcome`."""
    for path in sorted(FOLDER.glob(pattern)):
        document = json.loads(lzma.decompress(path.read_bytes()))
        for run in document["runs"]:
            yield f"{path.name.split('.')[0]}/{run['name']}", run, document


def steps_of(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Expand the rows of a run's steps; a bare number continues where the request was."""
    last: dict[int, int] = {}
    steps = []
    for row in run["steps"]:
        step = dict(zip(run["step_fields"], row, strict=True))
        scheduled = []
        for entry in step["scheduled"]:
            request, tokens, before = (
                (entry, 1, last[entry]) if isinstance(entry, int) else tuple(entry)
            )
            last[request] = before + tokens
            scheduled.append((request, tokens, before))
        step["scheduled"] = scheduled
        steps.append(step)
    return steps
