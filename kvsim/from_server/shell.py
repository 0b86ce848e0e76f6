"""Shell text → commands as lists of words, as far as start-up scripts need it."""

import re
from collections.abc import Iterator, Mapping

from kvsim.errors import InputError

_TOKEN = re.compile(
    r"""
      (?P<continued>\\[ \t]*\r?\n)
    | (?P<space>[ \t\r]+)
    | (?P<comment>(?<![^\s;|&(])\#[^\n]*)
    | (?P<redirection>(?<![^\s;|&(])\d*(?:>>?|<)&?[ \t]*[^\s;|&<>]+)
    | (?P<end>\n|;|\|\|?|&&?|[()])
    | (?P<single>'[^']*')
    | (?P<double>"(?:\\.|[^"\\])*")
    | (?P<variable>\$\{[^}]*\}|\$\w+|\$\([^)]*\)|`[^`]*`)
    | (?P<escaped>\\.)
    | (?P<plain>[^\s\\'"$;|&<>()`\#]+|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_OPENING, _CLOSING = {"if", "case", "for", "while", "until"}, {"fi", "esac", "done"}
_BEFORE_ASSIGNMENT = {"export", "local", "declare", "readonly", "then", "else", "do"}
_REFERENCE = re.compile(r"\$\{(\w+)(?::?[-=]([^}]*))?\}|\$(\w+)|\$\((\w+)\)")


def commands(text: str, variables: Mapping[str, str] | None = None) -> Iterator[list[str]]:
    """Yield the words of each command.

    Quotes, line continuations, comments and redirections are understood; variables that the text
    sets before are put in. What is not known here, as `$HOME` or a variable that is set in a branch
    or a loop, stays as it is written.

    Args:
        text: A command line or a script.
        variables: Variables that are set already.

    Raises:
        InputError: A quote is not closed.
    """
    known = dict(variables or {})
    depth = 0
    for words in _split(text, known):
        depth += (words[0] in _OPENING) - (words[0] in _CLOSING)
        for word in words[1:] if words[0] in _BEFORE_ASSIGNMENT else words:
            assignment = _ASSIGNMENT.fullmatch(word)
            if assignment is None:
                break
            name, added, value = assignment.groups()
            if depth > 0:
                known.pop(name, None)
            else:
                known[name] = known.get(name, "") * bool(added) + value
        yield words


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Put in the variables that are known, and the defaults of `${NAME:-default}`."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3] or match[4]
        return variables.get(name, match[0] if match[2] is None else match[2])

    return _REFERENCE.sub(value, text)


def _split(text: str, variables: Mapping[str, str]) -> Iterator[list[str]]:
    words: list[str] = []
    inside = False  # a word has begun, perhaps an empty one in quotes
    for match in _TOKEN.finditer(text + "\n"):
        kind, token = str(match.lastgroup), match[0]
        if kind in {"continued", "space", "comment", "redirection"}:
            inside = False
        elif kind == "end":
            inside = False
            if words:
                yield words
                words = []
        else:
            first, *others = _meant(kind, token, variables)
            words[-1:] = [words[-1] + first] if inside else [*words[-1:], first]
            words += others
            inside = True


def _meant(kind: str, token: str, variables: Mapping[str, str]) -> list[str]:
    """Return what a part of a word stands for: several words if a variable holds several."""
    if kind == "single":
        return [token[1:-1]]
    if kind == "double":
        parts = re.split(r"\\([\n\"\\$`])", token[1:-1])  # every second is an escaped character
        parts[::2] = [expand(part, variables) for part in parts[::2]]
        parts[1::2] = [mark.strip("\n") for mark in parts[1::2]]
        return ["".join(parts)]
    if kind == "escaped":
        return [token[1:]]
    if kind == "variable":
        value = expand(token, variables)
        return [value] if value == token else value.split() or [""]
    if token in {"'", '"'}:
        raise InputError(f"the command has a quote ({token}) that is not closed")
    return [token]
