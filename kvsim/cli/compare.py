"""`kvsim compare`: runs side by side, from their directories: what differs, and how surely."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvsim.compare.figures import Against
    from kvsim.compare.sides import Side


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN[:VARIANT]...",
            help="2 to 6 run directories, the base first; of each its base or the named variant.",
        ),
    ],
    html: Annotated[Path | None, typer.Option(help="HTML page to write, with charts.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite another file there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="For a pull request: Markdown on stdout.")
    ] = False,
) -> None:
    """Compare finished runs: what differs, by how much, how surely, in which settings.

    Exit code: 0 done, 2 bad input.
    """
    from kvsim.cli.pages import refuse_foreign, write_text
    from kvsim.cli.text import as_json, painted
    from kvsim.compare.figures import against
    from kvsim.compare.sides import open_sides
    from kvsim.errors import InputError

    if json and markdown:
        raise InputError("--json and --markdown: choose one of them")
    base, *others = open_sides(runs)
    if html is not None:
        refuse_foreign(html, force)
        _refuse_within(html, {side.run.folder for side in (base, *others)})
    found = [against(base, other) for other in others]
    if html is not None:
        from kvsim.compare.page import build_page

        write_text(html, build_page(found, shlex.join(["kvsim", "compare", *runs])))
    if json:
        from kvsim.compare.answer import as_dict

        print(as_json(as_dict(found)))
    else:
        print(_as_markdown(found) if markdown else painted(_as_text(found, html)))


def _refuse_within(html: Path, folders: Iterable[Path]) -> None:
    """Refuse a page that would stand in the place of a run's own, or beside its tables.

    Raises:
        InputError: It would.
    """
    from kvsim.errors import InputError, Problem

    if any(html.resolve().is_relative_to(folder.resolve()) for folder in folders):
        raise InputError(Problem("a run's folder holds the run and nothing else", str(html)))


def _as_text(found: "Sequence[Against]", html: Path | None) -> str:
    """Return what the terminal shows, at most 80 columns wide where names allow it."""
    from kvsim.cli.text import aligned, wrapped
    from kvsim.compare.answer import cautions, headline, noise, remarks
    from kvsim.compare.figures import sides_of
    from kvsim.compare.sides import LETTERS
    from kvsim.compare.tables import slo_table

    sides = sides_of(found)
    blocks = ["\n".join(wrapped(headline(one)) for one in found)]
    blocks.append("\n".join(f"{LETTERS[i]}  {side.name}" for i, side in enumerate(sides)))
    blocks += map(wrapped, cautions(found))
    for letter, one in zip(LETTERS[1:], found, strict=False):
        blocks.append(_differences(one, letter))
        blocks += [wrapped(text) for text in (noise(one.changes), *remarks(one)) if text]
    targets = slo_table(sides, LETTERS[: len(sides)])
    blocks.append(aligned([targets.header, *targets.rows]) if targets else "")
    blocks += _configurations(sides)
    blocks.append(f"Page: {html}" if html is not None else "")
    return "\n\n".join(block for block in blocks if block)


def _differences(one: "Against", letter: str) -> str:
    """Show the figures that differ; which way is better only if there is room for it."""
    from kvsim.cli.text import aligned
    from kvsim.compare.tables import apart, narrow_table

    if not (changes := apart(one)):
        return ""
    tables = [narrow_table(changes, ("A", letter), words) for words in (True, False)]
    with_words, without = (aligned([table.header, *table.rows]) for table in tables)
    return without if "\n\n" in with_words else with_words  # it is cut where it is too wide


def _configurations(sides: "Sequence[Side]") -> list[str]:
    """Show where each run's configuration differs from the base's, as a diff."""
    from kvsim.cli.text import wrapped
    from kvsim.compare.sides import LETTERS
    from kvsim.compare.tables import configuration
    from kvsim.report.configuration import as_diff

    rows, blocks = configuration(sides).rows, []
    for place in range(1, len(sides)):
        lines = [wrapped(line, "  ") for line in as_diff(rows, place)]
        head = f"Configuration, - A and + {LETTERS[place]}:"
        blocks.append("\n".join([head, *lines]) if lines else "")
    return blocks


def _as_markdown(found: "Sequence[Against]") -> str:
    """Return the answer, the figures that differ, the targets and the settings."""
    from kvsim.compare.answer import cautions, headline, noise, remarks
    from kvsim.compare.figures import sides_of
    from kvsim.compare.tables import apart, configuration, difference_table, slo_table
    from kvsim.report.markdown import escaped, markdown_table

    sides = sides_of(found)
    names = [side.name for side in sides]
    blocks = [f"**{escaped(headline(one))}**" for one in found]
    blocks += map(escaped, cautions(found))
    for one in found:
        table = difference_table(apart(one), (one.base.name, one.other.name))
        blocks += [markdown_table(table.header, table.rows)] if table.rows else []
        blocks += [escaped(text) for text in (noise(one.changes), *remarks(one)) if text]
    targets = slo_table(sides, names)
    blocks += [markdown_table(targets.header, targets.rows)] if targets else []
    settings = configuration(sides)
    if settings.rows:
        blocks.append("What differs in the configuration:")
        blocks.append(markdown_table(settings.header, settings.rows))
    return "\n\n".join(blocks)
