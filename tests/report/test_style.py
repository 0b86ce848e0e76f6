"""Text and marks of the page stand out from what is behind them, in every theme (WCAG 2.2, AA)."""

import re
from importlib.resources import files

import pytest

from kvsim.report import figure
from kvsim.report.figure import layout

STYLE = (files("kvsim.report") / "style.css").read_text(encoding="utf-8")
TEXT, MARK = 4.5, 3.0  # least contrast of text, and of what is no text
PAPERS = ("paper", "panel", "good-paper", "bad-paper")


def palettes() -> dict[str, dict[str, str]]:
    """The colors of each theme, by name."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    found = [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block)) for block in blocks]
    return dict(zip(("light", "dark", "print"), found, strict=True))


def luminance(color: str) -> float:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("ink", ["ink", "soft", "link", "good", "bad"])
def test_text_can_be_read(theme, paper, ink):
    colors = palettes()[theme]
    assert contrast(colors[ink], colors[paper]) >= TEXT


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_margins_can_be_seen(theme):
    colors = palettes()[theme]
    for mark in ("good", "bad", "ink", "soft"):
        assert contrast(colors[mark], colors["panel"]) >= MARK
    for fill in ("good", "bad"):
        assert contrast(colors["ink"], colors[fill]) >= 1.5  # the tick, which is longer than it


def test_printing_is_light():
    assert palettes()["print"] == palettes()["light"]


def test_every_color_of_a_theme_is_set_in_all():
    names = [set(colors) for colors in palettes().values()]
    assert names[0] == names[1] == names[2]
    assert set(re.findall(r"var\(--([a-z-]+)", STYLE)) - {"key"} <= names[0]


def test_lines_of_charts_can_be_seen_on_both_papers():
    for color, _ in figure.VARIANT_LOOKS:
        assert contrast(color, palettes()["dark"]["paper"]) >= MARK
        assert contrast(color, palettes()["light"]["paper"]) >= 2.0  # dashes and markers tell, too


def test_hovers_can_be_read():
    label = layout(100)["hoverlabel"]
    assert contrast(label["bgcolor"], label["font"]["color"]) >= TEXT
