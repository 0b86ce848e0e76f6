"""Files of measurements: which of the three formats, by what is in them."""

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from kvsim.errors import InputError, Problem
from kvsim.validate import kv_sizes, points, records
from kvsim.validate.case import Case
from kvsim.workload.files import text_of

SHIPPED = Path(str(resources.files("kvsim"))) / "data" / "measured"
_SHIPPED_FILES = ("experiments.json", "engine_points.csv", "kv_cache_sizes.csv")


def read_all(paths: Sequence[Path]) -> list[Case]:
    """Return the measured servers of several files, of those that kvsim ships if there are none.

    Raises:
        InputError: As `read_cases`, with the problems of all files; or two cases have one name.
    """
    cases: list[Case] = []
    problems: list[Problem] = []
    for path in paths or [SHIPPED / name for name in _SHIPPED_FILES]:
        try:
            cases += read_cases(path)
        except InputError as error:
            problems += error.problems
    twice = [name for name, times in Counter(case.id for case in cases).items() if times > 1]
    problems += [Problem(f"the id {name!r} stands for several measurements") for name in twice]
    if problems:
        raise InputError(*problems)
    return cases


def read_cases(path: Path) -> list[Case]:
    """Return the measured servers of a file, in its order.

    Raises:
        InputError: It can't be read, or has none of the three formats, or rows without a name.
    """
    text = text_of(path)
    cases = _of_json(text, path) if text.lstrip()[:1] in {"{", "["} else _of_csv(text, path)
    if not cases:
        raise InputError(Problem("holds no measurement", str(path)))
    return cases


def _of_json(text: str, path: Path) -> list[Case]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise InputError(Problem(f"is not valid JSON: {error}", str(path), line)) from error
    if isinstance(document, list):
        document = {"experiments": document}
    if not isinstance(document.get("experiments"), list):
        raise InputError(Problem("must be a list", str(path), path="experiments"))
    return records.cases_of(document, path)


def _of_csv(text: str, path: Path) -> list[Case]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise InputError(Problem(f"is not CSV: {error}", str(path), reader.line_num)) from error
    names = set(reader.fieldnames or ())
    if set(points.NEEDED) <= names:
        return points.cases_of(iter(rows), path)
    if set(kv_sizes.NEEDED) <= names:
        return kv_sizes.cases_of(iter(rows), path)
    raise InputError(
        Problem(
            "is neither experiment records (JSON), nor engine points (CSV with "
            f"{', '.join(points.NEEDED)}), nor KV cache sizes (CSV with "
            f"{', '.join(kv_sizes.NEEDED)})",
            str(path),
            1,
        )
    )
