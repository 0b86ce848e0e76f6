"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` with the closest known word, or nothing if none comes close."""
    words = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), words, n=1, cutoff=0.6)
    return f"; did you mean {words[close[0]]}?" if close else ""
