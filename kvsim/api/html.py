"""What notebooks show of a result: a sentence and small tables, all of it escaped."""

from collections.abc import Sequence
from html import escape

from kvsim.report.figure import Table

_CELL = "padding: 2px 8px; text-align: right"
_FIRST = "padding: 2px 8px 2px 0; text-align: left"


def page(sentence: str, note: str, *tables: Table) -> str:
    """Return a fragment of HTML; tables without rows are left out."""
    shown = "".join(_table(table) for table in tables if table.rows)
    note_text = f"<p>{escape(note)}</p>" if note else ""
    return f"<div><p><strong>{escape(sentence)}</strong></p>{note_text}{shown}</div>"


def _table(table: Table) -> str:
    head = _row(table.header, "th")
    body = "".join(_row(row, "td") for row in table.rows)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _row(cells: Sequence[str], tag: str) -> str:
    styled = (
        f'<{tag} style="{_CELL if place else _FIRST}">{escape(cell)}</{tag}>'
        for place, cell in enumerate(cells)
    )
    return f"<tr>{''.join(styled)}</tr>"
