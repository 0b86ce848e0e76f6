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
from kvsim.tables import ADVICE, MAP_TABLES, TABLES, Column, Columns, tables_of

FORMAT = 2  # of what is in a directory; another one can't be read
MANIFEST = "manifest.json"
SUMMARY = "summary.json"
REPLICATIONS = "replications.parquet"
ADVISED = "advice.parquet"
REPORT = "report.html"
ALWAYS = {MANIFEST, SUMMARY, *(f"{table}.parquet" for table in TABLES)}
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
    tables = stored_tables(folder, list(summaries), tuple(manifest["class_names"]))
    return Run(folder, manifest, summaries, tables, _advice(folder / ADVISED))


def stored_tables(
    folder: Path, variants: Sequence[str], class_names: tuple[str, ...]
) -> dict[str, dict[str, Columns]]:
    """Return the tables of a folder by variant and name, those of the memory map if they are there.

    Raises:
        InputError: One of them is no Parquet file.
    """
    tables = tables_of(class_names)
    tables |= {
        table: columns
        for table, columns in MAP_TABLES.items()
        if (folder / f"{table}.parquet").is_file()
    }
    return {
        name: {
            table: _stored(folder / f"{table}.parquet", columns, name)
            for table, columns in tables.items()
        }
        for name in variants
    }


def _stored(path: Path, columns: tuple[Column, ...], variant: str) -> StoredTable:
    try:
        return StoredTable(path, columns, variant)
    except ArrowException as error:
        raise InputError(Problem("is damaged: it is no Parquet file", str(path))) from error


def _advice(path: Path) -> Sequence[Facts]:
    if not path.is_file():
        return ()
    try:
        return read_facts(path, ADVICE)
    except (ArrowException, KeyError) as error:
        raise InputError(Problem("is damaged: it holds no advice", str(path))) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(Problem("is damaged: it holds no JSON", str(path))) from error
    if not isinstance(value, dict):
        raise InputError(Problem("is damaged: it holds no JSON object", str(path)))
    return value
