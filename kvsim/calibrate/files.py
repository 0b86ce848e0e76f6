"""Files with results of benchmarks: which of the formats, by what is in them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvsim.calibrate import aiperf, guidellm, vllm_bench
from kvsim.calibrate.result import BenchmarkResult
from kvsim.errors import InputError, Problem
from kvsim.workload.files import text_of

_FORMATS = (vllm_bench, guidellm, aiperf)
# What people give by mistake: keys that tell it, and what to give instead.
_OTHERS = {
    "experiments": "profile_export_genai_perf.json, which genai-perf writes beside it",
    "metadata": "profile_export_aiperf.json, which aiperf writes beside it",
}


def read_results(paths: Sequence[Path]) -> list[BenchmarkResult]:
    """Return the results of several files, in their order; each has a name of its own.

    Raises:
        InputError: A file can't be read, has none of the formats, or lacks something; the problems
            of all files.
    """
    results: list[BenchmarkResult] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            results += _results_in(path, _name_of(path, paths))
        except InputError as error:
            problems += error.problems
    twice = sorted({path for path in paths if paths.count(path) > 1})
    problems += [Problem("is named twice", str(path)) for path in twice]
    if problems:
        raise InputError(*problems)
    return results


def _name_of(path: Path, paths: Sequence[Path]) -> str:
    """Return the file's name, or its path where several have it (aiperf calls all files alike)."""
    return path.name if sum(other.name == path.name for other in paths) == 1 else str(path)


def _results_in(path: Path, name: str) -> list[BenchmarkResult]:
    values: list[dict[str, Any]] = []
    for line, document in _documents(path):
        found = next((one for one in _FORMATS if one.recognizes(document)), None)
        if found is None:
            raise InputError(_unknown(document, path, line))
        try:
            values += found.results_of(document)
        except InputError as error:
            places = (replace(one, file=str(path), line=line) for one in error.problems)
            raise InputError(*places) from error
    if not values:
        raise InputError(Problem("holds no result", str(path)))
    return [
        BenchmarkResult(name=f"{name}#{number}" if len(values) > 1 else name, **one)
        for number, one in enumerate(values, 1)
    ]


def _documents(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the JSON objects of a file, one after another, and the line where each begins."""
    text = text_of(path)
    decoder = json.JSONDecoder()
    place = _next(text, 0)
    while place < len(text):
        line = text.count("\n", 0, place) + 1
        try:
            document, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", line)
            raise InputError(Problem(f"is not valid JSON: {error}", str(path), line)) from error
        if not isinstance(document, dict):
            raise InputError(Problem("must hold a JSON object", str(path), line))
        yield line, document
        place = _next(text, end)


def _next(text: str, place: int) -> int:
    """Return the place of the next character that is no blank."""
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _unknown(document: Mapping[str, Any], path: Path, line: int) -> Problem:
    hint = next((f"; give {wanted}" for key, wanted in _OTHERS.items() if key in document), "")
    shapes = ", ".join(one.SHAPE for one in _FORMATS)
    return Problem(f"is none of the formats that kvsim knows ({shapes}){hint}", str(path), line)
