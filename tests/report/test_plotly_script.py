import re

from plotly.offline import get_plotlyjs

from kvsim.report.plotly_script import lean, plotly_script


def registered(script: str) -> list[int]:
    """How many kinds of charts each list in the script registers."""
    return [
        text.count("()") for text in re.findall(r"\.register\(\[((?:[\w$]+\(\),?)+)\]\)", script)
    ]


def test_the_installed_script_is_cut_in_both_places():
    whole, cut = get_plotlyjs(), plotly_script()
    assert max(registered(whole)) > 40
    assert max(registered(cut)) <= 4
    assert cut.count('"use strict";var Plotly=') == 1
    assert "module.exports = factory()" not in cut
    assert "All rights reserved" in cut[:200]  # the notice of the license
    assert len(whole) - len(cut) < 1000


def test_what_is_not_as_expected_is_left_as_it_is():
    for script in ("", "var Plotly={};", "/* x */ a.register([b(),c(),d(),e()]);"):
        assert lean(script) == script
    twice = "a.register([" + ",".join(f"x{number}()" for number in range(40)) + "]);"
    assert lean(2 * twice) == 2 * twice
    assert lean(twice) == "a.register([x0(),x1(),x2()]);"
