"""The recorded runs that the tests replay, by the names that `kvsim conform` tells."""

from functools import cache
from pathlib import Path

from kvsim.conformance.recording import Recording, read_recordings

FOLDER = Path(__file__).parents[1] / "data" / "vllm_schedules"
FILES = sorted(FOLDER.glob("*.json.xz"))


@cache
def _runs(file: str) -> dict[str, Recording]:
    return {run.name: run for run in read_recordings(FOLDER / f"{file}.json.xz")}


def recorded(name: str) -> Recording:
    """Return a run by name: file/run."""
    return _runs(name.partition("/")[0])[name]
