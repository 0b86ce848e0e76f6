"""Run the commands that documents show, and put what they print now into the pages.

A page is read from top to bottom in one folder with the scenarios, the documents and the example.
A block marked `yaml NAME` is written to that file; a block marked `console` is run, lines that
begin with `$` by bash. The other lines of a console block must be printed, in this order; `...`
stands for lines left out. The last command of a block must succeed. A test runs the same and
changes nothing.
"""

import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs/tutorial.md", ROOT / "docs/how-to.md")
BLOCK = re.compile(r"^```(yaml \S+|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = "..."

Printed = Callable[[list[str], list[str]], list[str]]  # lines shown, lines printed → lines to show


def main() -> None:
    """Renew the pages named on the command line, or all."""
    for page in [Path(name) for name in sys.argv[1:]] or PAGES:
        with tempfile.TemporaryDirectory() as folder:
            text = run_page(page, Path(folder), renewed)
        print(f"{page.name}: {'unchanged' if text == page.read_text('utf-8') else 'renewed'}")
        page.write_text(text, encoding="utf-8")


def run_page(page: Path, folder: Path, show: Printed) -> str:
    """Run a page in a folder; return its text with what `show` makes of each console block.

    Raises:
        subprocess.CalledProcessError: The last command of a block fails.
    """
    scenarios = folder / "scenarios"
    scenarios.mkdir()
    for path in (ROOT / "scenarios").iterdir():
        (scenarios / path.name).symlink_to(path)
    (folder / "docs").symlink_to(ROOT / "docs")
    (folder / "reports").mkdir()
    (folder / "reports" / "example").symlink_to(ROOT / "reports" / "example")

    def run(block: re.Match[str]) -> str:
        kind, body = block[1], block[2]
        if kind != "console":
            (folder / kind.split()[1]).write_text(body, encoding="utf-8")
            return block[0]
        lines = body.splitlines()
        commands = [line for line in lines if line.startswith("$ ")]
        shown = [line for line in lines if not line.startswith("$ ")]
        printed = _printed_by([command[2:] for command in commands], folder)
        return _with_lines(lines, show(shown, printed))

    return BLOCK.sub(run, page.read_text(encoding="utf-8"))


def missing(shown: list[str], printed: list[str]) -> list[str]:
    """Return the lines shown that are not printed in this order."""
    rest = iter(printed)
    return [line for line in shown if line not in (LEFT_OUT, "") and line not in rest]


def renewed(shown: list[str], printed: list[str]) -> list[str]:
    """Return the lines to show now: what is printed, or what comes closest to an excerpt."""
    if not missing(shown, printed):
        return shown
    if LEFT_OUT not in shown:
        return printed
    return [line if line in ("", LEFT_OUT) else _closest(line, printed) for line in shown]


def _closest(line: str, printed: list[str]) -> str:
    """Return the printed line most like this one; one with the same label, if there is any."""

    def likeness(other: str) -> tuple[bool, float]:
        same = line.partition("  ")[0] == other.partition("  ")[0]
        return same, difflib.SequenceMatcher(None, line, other).ratio()

    return max(printed, key=likeness)


def _with_lines(lines: list[str], shown: list[str]) -> str:
    """Return a console block with other output; lines stay below the command they follow."""
    rest = iter(shown)
    renewed_lines = [line if line.startswith("$ ") else next(rest, "") for line in lines]
    return "\n".join(["```console", *renewed_lines, *rest, "```"])


def _printed_by(commands: list[str], folder: Path) -> list[str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-c", "\n".join(commands)],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, commands[-1], "\n".join(lines))
    return lines


if __name__ == "__main__":
    main()
