"""Plotly's script, so cut that a browser is done with it in a third of the time.

The whole script takes a browser longer than all else on a page: it compiles code that sits in
functions within functions, each time anew, and sets up 46 kinds of charts, maps and 3-D scenes
among them. Two small cuts spare that. Each is made only where the text is as expected; any other
version of Plotly is taken as it is.
"""

import re
from functools import cache

# The kinds of traces that a page may use; `scatter` is always there.
TRACES = ("scatter", "bar", "box", "heatmap")

_HEAD = re.compile(r"\s*/\*.*?\*/\s*", re.DOTALL)  # the notice of the license
# (function(root, factory) {...} (..., () => { BODY window.Plotly = Plotly; return Plotly; }))
_WRAPPED = re.compile(
    r"\(\s*function\(root, factory\).*?\(\) => \{\s*"
    r'(?P<body>"use strict";var Plotly=\(\(\)=>\{.*)'
    r"window\.Plotly = Plotly;\s*return Plotly;\s*\}\)\);?\s*",
    re.DOTALL,
)
# x.register([bar(), box(), heatmap(), ... 40 others]): the only list that long
_REGISTERED = re.compile(
    r"(?<=\.register\(\[)(?P<kept>(?:[\w$]+\(\),){3})(?:[\w$]+\(\),?){20,}(?=\]\))"
)


@cache
def plotly_script() -> str:
    """Return the script that draws charts of the kinds `TRACES`."""
    from plotly.offline import get_plotlyjs

    return lean(str(get_plotlyjs()))


def lean(script: str) -> str:
    """Take off the wrapper for other module systems, and leave out kinds of charts not used."""
    head = _HEAD.match(script)
    wrapped = _WRAPPED.fullmatch(script, head.end()) if head else None
    if head and wrapped:
        script = head[0] + wrapped["body"]
    cut, lists = _REGISTERED.subn(lambda match: match["kept"].rstrip(","), script)
    return cut if lists == 1 else script
