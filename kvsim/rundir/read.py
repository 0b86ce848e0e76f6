"""A run that is on disk: its manifest, summary and tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import ArrowException

from kvsim.errors import InputError, Problem
from kvsim.metrics.summary import Summary
from kvsim.table_files import Facts, StoredTable, read_facts
from kvsim.tables import ADVICE, MAP_TABLES, TABLES, Columns, tables_of

FORMAT = 2  # of what is in a directory; another one can't be read
MANIFEST = "manifest.json"
SUMMARY = "summary.json"
REPLICATIONS = "replications.parquet"
ADVISED = "advice.parquet"
REPORT = "report.html"
ALWAYS = {MANIFEST, SUMMARY, *(f"{table}.parquet" for table in TABLES)}
# What is read of them again, so that each run must have it.
_OF_THE_RUN: Mapping[str, type] = {
    **dict.fromkeys(("scenario", "question", "scenario_sha256", "requests_sha256", "command"), str),
    **dict.fromkeys(("seed", "requests", "horizon_ns"), int),
    **dict.fromkeys(("versions", "files"), dict),
    "class_names": list,
}
_OF_VARIANTS: Mapping[str, type] = {  # under the name of each
    **dict.fromkeys(("variants", "memory_bytes"), dict),
    **dict.fromkeys(("step_basis", "notes"), list),
}
_OF_SUMMARIES: Mapping[str, type] = {
    **dict.fromkeys(("verdict", "classes", "limits", "phases", "figures", "uncertainty"), dict),
    "differences": dict,
    "caveats": list,
    "replications": int,
}
# Not every run has these.
ALSO = {REPLICATIONS, ADVISED, REPORT, *(f"{table}.parquet" for table in MAP_TABLES)}


@dataclass(frozen=True, slots=True)
class Run:
    """A run whose tables are on disk.

    Attributes:
        folder: Where.
        manifest: What reproduces the run, and what its report tells beside figures; written by
            `kvsim.rundir.write.manifest`.
        summaries: Figures by variant, the base first; over replications, if there are several.
        tables: Columns by table, by variant; they are read from the disk as they are asked for.
        advice: What `--advise` found, see `kvsim.tables.ADVICE`; empty if nobody asked.
    """

    folder: Path
    manifest: Mapping[str, Any]
    summaries: Mapping[str, Summary]
    tables: Mapping[str, Mapping[str, Columns]]
    advice: Sequence[Facts] = ()

    @property
    def scenario(self) -> str:
        """Name of the scenario."""
        name: str = self.manifest["scenario"]
        return name

    def notes_on(self, variant: str) -> Sequence[str]:
        """Return what a reader of a variant's results must know, in sentences."""
        notes: Sequence[str] = self.manifest["notes"][variant]
        return notes


def open_run(folder: Path) -> Run:
    """Open the directory of a run.

    Raises:
        InputError: It is none, or one of another version of kvsim.
    """
    missing = sorted(name for name in ALWAYS if not (folder / name).is_file())
    if missing:
        what = f"holds no {missing[0]}" if folder.is_dir() else "is no folder"
        raise InputError(Problem(f"is no run of kvsim: it {what}", str(folder)))
    manifest = _read_json(folder / MANIFEST)
    if manifest.get("format") != FORMAT:
        other = "is a run of another version of kvsim; simulate its scenario again"
        raise InputError(Problem(other, str(folder)))
    summaries = _read_json(folder / SUMMARY)
    _refuse_gaps(folder, manifest, summaries)
    tables = stored_tables(folder, list(summaries), tuple(manifest["class_names"]))
    return Run(folder, manifest, summaries, tables, _advice(folder / ADVISED))


def stored_tables(
    folder: Path, variants: Sequence[str], class_names: tuple[str, ...]
) -> dict[str, dict[str, Columns]]:
    """Return the tables of a folder by variant and name, those of the memory map if they are there.

    Raises:
        InputError: One of them is damaged.
    """
    tables = tables_of(class_names)
    if all((folder / f"{table}.parquet").is_file() for table in MAP_TABLES):
        tables |= MAP_TABLES
    return {
        name: {
            table: StoredTable(folder / f"{table}.parquet", columns, name)
            for table, columns in tables.items()
        }
        for name in variants
    }


def _refuse_gaps(folder: Path, manifest: dict[str, Any], summaries: dict[str, Any]) -> None:
    """Refuse a manifest or a summary that doesn't tell what those of every run tell."""
    told, figures = folder / MANIFEST, folder / SUMMARY
    _expect(told, manifest, _OF_THE_RUN)
    _expect(told, manifest, dict.fromkeys(_OF_VARIANTS, dict))
    _expect(figures, summaries, dict.fromkeys(manifest["variants"], dict))
    for key, kind in _OF_VARIANTS.items():
        _expect(told, manifest[key], dict.fromkeys(summaries, kind))
    for summary in summaries.values():
        _expect(figures, summary, _OF_SUMMARIES)


def _expect(path: Path, told: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Refuse a file that lacks one of these keys, or has a value of another kind."""
    if lacking := [key for key, kind in kinds.items() if not isinstance(told.get(key), kind)]:
        damage = f"is damaged, or of another version of kvsim: it doesn't tell {lacking[0]!r}"
        raise InputError(Problem(damage, str(path)))


def _advice(path: Path) -> Sequence[Facts]:
    if not path.is_file():
        return ()
    try:
        rows = read_facts(path, ADVICE)
        if not any(row["key"] == "base" for row in rows):
            raise KeyError("base")
    except (ArrowException, KeyError, OSError) as error:
        raise InputError(Problem("is damaged: it holds no advice", str(path))) from error
    return rows


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(Problem("is damaged: it holds no JSON", str(path))) from error
    if not isinstance(value, dict):
        raise InputError(Problem("is damaged: it holds no JSON object", str(path)))
    return value
