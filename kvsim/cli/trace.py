"""`kvsim trace`: what a request log tells a planner, and a scenario that imitates it."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli.pages import refuse_foreign, write_text

if TYPE_CHECKING:
    from kvsim.report.figure import Table
    from kvsim.traffic.imitation import Imitation
    from kvsim.traffic.summary import Traffic
    from kvsim.workload.lengths.trace import TraceLengths


def trace(
    file: Annotated[Path, typer.Argument(help="Request log, plain or compressed.")],
    out: Annotated[
        Path | None, typer.Option(help="Page to write; by default reports/<log's name>.trace.html.")
    ] = None,
    page: Annotated[bool, typer.Option(help="Write the HTML page.")] = True,
    json: Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")] = False,
    fit: Annotated[
        Path | None, typer.Option(help="Scenario file to write whose workload imitates the log.")
    ] = None,
    without_log: Annotated[
        bool,
        typer.Option("--without-log", help="Let the imitation draw lengths from a law instead."),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Model of the imitation; its KV cache gives cache sizes in GiB."),
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU of the imitation's scenario.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the files.")] = False,
    format: Annotated[str | None, typer.Option(help="Format, where it isn't recognized.")] = None,
    column: Annotated[
        list[str], typer.Option(help="Column of an unknown format, such as arrival=sent_at.")
    ] = [],  # noqa: B006  # typer copies it
    time_unit: Annotated[
        str | None, typer.Option(help="Unit of the arrivals: s, ms, us, ns or timestamp.")
    ] = None,
    skip_bad_rows: Annotated[int, typer.Option(min=0, help="So many bad rows are left out.")] = 0,
    where: Annotated[list[str], typer.Option(help="Only rows with this value: COLUMN=VALUE.")] = [],  # noqa: B006
) -> None:
    """Show a request log: rate and burstiness, lengths, sessions, prefix reuse."""
    _refuse_without_fit(fit, {"--without-log": without_log, "--gpu": gpu})
    log = _log(file, format, column, time_unit, skip_bad_rows, where)
    target = out or Path("reports") / f"{_stem(file)}.trace.html"
    targets = [path for path in (target if page else None, fit) if path is not None]
    _refuse_twice([*targets, file])
    for written in targets:
        refuse_foreign(written, force)

    from kvsim.traffic.imitation import imitate
    from kvsim.traffic.summary import analyze

    kv_bytes_per_token = _kv_bytes_per_token(model, gpu)
    traffic = analyze(log.read())
    imitation = imitate(traffic, log, fit, model, gpu, without_log) if fit else None
    if page:
        write_text(target, _page(traffic, file, model, kv_bytes_per_token, imitation))
    if fit and imitation:
        write_text(fit, imitation.text)
    if json:
        print(_as_json(traffic, imitation))
        return
    print(_as_text(traffic, kv_bytes_per_token, imitation))
    for what, path in (("Page", target if page else None), ("Scenario", fit)):
        if path:
            print(f"{what}: {path}")


def _refuse_without_fit(fit: Path | None, options: Mapping[str, object]) -> None:
    from kvsim.errors import InputError

    idle = [name for name, value in options.items() if value]
    if fit is None and idle:
        raise InputError(*(f"{name} is about the imitation: give --fit too" for name in idle))


def _log(
    file: Path,
    format: str | None,
    column: Sequence[str],
    time_unit: str | None,
    skip_bad_rows: int,
    where: Sequence[str],
) -> "TraceLengths":
    """Return how the log is read; InputError with all that the options say wrong."""
    from pydantic import ValidationError

    from kvsim.errors import InputError, Problem
    from kvsim.workload.lengths.trace import TraceLengths

    values: dict[str, list[str]] = {}
    for name, value in _pairs("--where", where):
        values.setdefault(name, []).append(value)
    given = {
        "file": str(file),
        "format": format,
        "columns": dict(_pairs("--column", column)) or None,
        "time_unit": time_unit,
        "skip_bad_rows": skip_bad_rows,
        "where": values,
    }
    try:
        return TraceLengths.model_validate(given)
    except ValidationError as error:
        problems = [
            Problem(problem["msg"], path=".".join(str(step) for step in problem["loc"]))
            for problem in error.errors()
        ]
        raise InputError(*problems) from error


def _pairs(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    from kvsim.errors import InputError

    wrong = [text for text in texts if not all(text.partition("="))]
    if wrong:
        raise InputError(*(f"{option} {text}: should be NAME=VALUE" for text in wrong))
    return [(text.partition("=")[0], text.partition("=")[2]) for text in texts]


def _stem(file: Path) -> str:
    """Return a log's name without what tells its format and compression."""
    name = file.name
    for suffix in (".gz", ".zst", ".csv", ".jsonl", ".json", ".parquet"):
        name = name.removesuffix(suffix)
    return name or file.name


def _kv_bytes_per_token(model: str | None, gpu: str | None) -> int | None:
    from kvsim.gpu import load_gpu
    from kvsim.model import load_model

    if gpu is not None:
        load_gpu(gpu)
    return load_model(model).kv_bytes_per_token() if model is not None else None


def _refuse_twice(paths: Sequence[Path]) -> None:
    """Refuse to write over the log, or page and scenario over each other; `--force` or not."""
    from kvsim.errors import InputError, Problem

    real = [os.path.realpath(path) for path in paths]
    twice = [path for number, path in enumerate(paths) if real[number] in real[number + 1 :]]
    if twice:
        wrong = "log, page and scenario must be different files"
        raise InputError(*(Problem(wrong, str(path)) for path in twice))


def _page(
    traffic: "Traffic",
    file: Path,
    model: str | None,
    kv_bytes_per_token: int | None,
    imitation: "Imitation | None",
) -> str:
    from kvsim.traffic.fidelity import fidelity_table
    from kvsim.traffic.page import ForModel, build_page

    for_model = ForModel(model, kv_bytes_per_token) if model and kv_bytes_per_token else None
    compared = fidelity_table(imitation.compared) if imitation else None
    command = shlex.join(["kvsim", "trace", *sys.argv[2:]])
    return build_page(traffic, file.name, command, for_model, compared)


def _as_json(traffic: "Traffic", imitation: "Imitation | None") -> str:
    import json
    from dataclasses import asdict

    from kvsim.traffic.summary import as_dict

    figures = as_dict(traffic)
    if imitation:
        figures["imitation"] = [asdict(row) for row in imitation.compared]
    return json.dumps(figures, indent=1, ensure_ascii=False, allow_nan=False)


def _as_text(
    traffic: "Traffic", kv_bytes_per_token: int | None, imitation: "Imitation | None"
) -> str:
    from kvsim.cli.text import aligned, wrapped
    from kvsim.traffic.fidelity import fidelity_table
    from kvsim.traffic.summary import sentence
    from kvsim.traffic.tables import all_tables

    tables: list[Table] = all_tables(traffic, kv_bytes_per_token)
    blocks = [wrapped(sentence(traffic)), *(aligned([t.header, *t.rows]) for t in tables)]
    if imitation:
        compared = fidelity_table(imitation.compared)
        blocks.append(aligned([compared.header, *compared.rows]))
        blocks.append(wrapped(" ".join(imitation.sentences)))
    return "\n\n".join(blocks)
