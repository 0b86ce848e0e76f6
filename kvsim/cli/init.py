"""`kvsim init`: a scenario file from the command or the manifest that starts a server."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def init(
    server: Annotated[
        str,
        typer.Option(
            "--from",
            help="A command (`vllm serve MODEL ...`), or a file that has it: a Kubernetes "
            "manifest, a compose file, a script; - for stdin.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("scenario.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    gpu: Annotated[str | None, typer.Option(help="Name in the catalog, such as h100_sxm.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Catalog name or path of a config.json, in place of the command's."),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Request log to replay.")] = None,
    kv_startup_line: Annotated[
        str | None, typer.Option(help="What the server logged about its KV cache, pasted.")
    ] = None,
) -> None:
    """Write the scenario of a server that exists.

    What had to be assumed stands in the file and on stderr. Exit code: 0 written, 2 something can't
    be translated: all of it is told, and nothing is written.
    """
    from kvsim.errors import InputError, Problem
    from kvsim.from_server.draft import Additions, draft_of
    from kvsim.from_server.find import find_server
    from kvsim.from_server.write import write_scenario

    text, file = _read(server)
    try:
        found = find_server(text)
    except InputError as error:
        raise InputError(
            *(Problem(problem.message, file, problem.line) for problem in error.problems)
        ) from None
    draft = draft_of(found, Additions(model, gpu, trace, kv_startup_line), out.parent)
    write_scenario(draft, out, force)
    for sentence in draft.assumed:
        print(f"assumed: {sentence}", file=sys.stderr)
    if draft.irrelevant:
        flags = ", ".join(dict.fromkeys(draft.irrelevant))
        print(f"without effect on capacity: {flags}", file=sys.stderr)
    print(f"{out} written from {found.place}; next: kvsim run {out}")


def _read(server: str) -> tuple[str, str | None]:
    """Return the text that `--from` stands for, and its file if it comes from one."""
    from kvsim.errors import InputError, Problem

    if server == "-":
        return sys.stdin.read(), "stdin"
    if any(mark.isspace() for mark in server.strip()) and not _is_file(server):
        return server, None
    try:
        return Path(server).read_text(encoding="utf-8-sig"), server
    except UnicodeDecodeError as error:
        raise InputError(Problem(f"is not UTF-8 text: {error.reason}", server)) from None


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # too long for a name
        return False
