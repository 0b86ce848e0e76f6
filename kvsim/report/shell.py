"""What every page of kvsim has around its contents: style, charts, and no way to the network."""

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim import __version__
from kvsim.report.figure import Chart, script_json
from kvsim.report.plotly_script import plotly_script

if TYPE_CHECKING:
    from markupsafe import Markup

_NUMBER = re.compile(r"(?<![&#\w])\d[\d.,]* (?:%|×|µs|ms|s|min|h|days|years|[KMGT]iB)(?![\w])")


def render_page(
    template: str, charts: Sequence[Chart], scripts: Sequence[str] = (), **values: object
) -> str:
    """Return a page: one file of HTML that opens from disk and asks the network for nothing.

    Args:
        template: Name of a template of this package that extends `shell.html.j2`; a script of the
            same name, `NAME.js` for `NAME.html.j2`, comes after that of all pages.
        charts: What the page's script draws, all charts of the page.
        scripts: Names of further scripts of this package, which come last.
        values: What the template shows.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["unbroken"] = _unbroken
    plotly, script = plotly_script() if charts else "", _asset("page.js") + _own_script(template)
    script += "".join(map(_asset, scripts))
    return environment.get_template(template).render(
        version=__version__,
        style=_asset("style.css"),
        script=script,
        plotly=plotly,
        policy=_security_policy(plotly, script),
        figures=script_json([{"key": chart.key, **chart.figure} for chart in charts]),
        **values,
    )


def _unbroken(text: str) -> "Markup":
    """Keep numbers and their units on one line; the text stays the same."""
    from markupsafe import Markup, escape

    return Markup(_NUMBER.sub(r'<span class="unit">\g<0></span>', str(escape(text))))


def is_page(path: Path) -> bool:
    """Tell whether a file is a page that kvsim made."""
    with path.open("rb") as file:
        return b'<meta name="generator" content="kvsim ' in file.read(2000)


def _security_policy(*scripts: str) -> str:
    """Allow these scripts and no other, and no load from anywhere.

    Plotly adds style rules and style attributes of its own, hence inline styles; it draws an
    exported image through a blob.
    """
    allowed = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _own_script(template: str) -> str:
    name = f"{template.removesuffix('.html.j2')}.js"
    is_other = name != "page.js" and (files("kvsim.report") / name).is_file()
    return _asset(name) if is_other else ""


def _asset(name: str) -> str:
    return (files("kvsim.report") / name).read_text(encoding="utf-8")
