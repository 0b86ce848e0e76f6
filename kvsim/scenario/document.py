"""A YAML 1.2 file as plain data that remembers its lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedBase, CommentedMap, CommentedSeq, TaggedScalar
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from kvsim.errors import InputError, Problem

Step = str | int  # a key of a mapping, or an index of a list

_DEEPEST = 50  # levels of mappings and lists
_TOO_DEEP = f"is nested deeper than {_DEEPEST} levels"
_MOST_NODES = 100_000  # with each alias counted as often as it is used


@dataclass(frozen=True, slots=True)
class Document:
    """A mapping read from a file.

    Attributes:
        file: Path as the user gave it.
        data: The content: dictionaries, lists, strings, numbers, booleans, None.
        comment: The comment lines at the top of the file, without their marks.
    """

    file: str
    data: dict[str, Any]
    comment: str
    _root: CommentedMap = field(repr=False)

    def line_of(self, path: Sequence[Step]) -> int | None:
        """Return the line (from 1) of the deepest part of `path` that the file has."""
        node: Any = self._root
        line: int | None = None
        for step in path:
            if not has_step(node, step):
                break
            line = _line(node, step) or line
            node = node[step]
        return line

    def located(self, problem: Problem, path: Sequence[Step]) -> Problem:
        """Return the problem with the file, and the line and name of `path`."""
        name = ".".join(_printable(str(step)) for step in path) or None
        return replace(problem, file=self.file, line=self.line_of(path), path=name)


def read_document(path: Path) -> Document:
    """Read a YAML file that holds one mapping.

    Raises:
        InputError: The file can't be read, is not YAML 1.2, has a key twice or a tag, is
            nested too deep or too large, or holds something else than a mapping; with the line.
    """
    file = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(Problem(f"can't be read: {error.strerror}", file)) from error
    except UnicodeDecodeError as error:
        raise InputError(Problem(f"is not UTF-8 text: {error.reason}", file)) from error
    root = _parse(text, file)
    if not isinstance(root, CommentedMap):
        raise InputError(Problem("must hold a mapping of keys to values", file, 1))
    problems: list[Problem] = []
    _refuse_bombs(root, file)
    data = _plain(root, file, 1, problems, ())
    if problems:
        raise InputError(*problems)
    return Document(file, data, _leading_comment(text), root)


def document_of(data: Mapping[str, Any], name: str) -> Document:
    """Return plain data as a document: it is called `name` in messages, and knows no lines.

    Raises:
        InputError: It is no mapping, a key is no text, or a value is none that a file could hold.
    """
    if not isinstance(data, Mapping):
        raise InputError(Problem(f"must be a dictionary, not {data!r:.80}", name))
    problems: list[Problem] = []
    plain = _plain_data(data, name, problems, ())
    if problems:
        raise InputError(*problems)
    return Document(name, plain, "", CommentedMap())


def has_step(node: Any, step: Step) -> bool:
    """Tell whether a mapping has this key, or a list this index; nothing else has any."""
    if isinstance(node, Mapping):
        return step in node
    return isinstance(node, list) and isinstance(step, int) and 0 <= step < len(node)


def _parse(text: str, file: str) -> Any:
    try:
        return YAML(typ="rt").load(StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = min(mark.line + 1, len(text.splitlines())) if mark else None
        raise InputError(Problem(f"is not valid YAML: {error.problem}", file, line)) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(Problem(f"is not valid YAML: {error.reason}", file, line)) from error
    except RecursionError as error:
        raise InputError(Problem(_TOO_DEEP, file)) from error
    except (YAMLError, ValueError) as error:
        raise InputError(Problem(f"is not valid YAML: {error}", file)) from error


def _refuse_bombs(root: Any, file: str) -> None:
    """Refuse a file too deep to be walked, or a few lines of aliases that stand for millions."""
    nodes = 0
    waiting: list[tuple[Any, tuple[int, ...]]] = [(root, ())]
    while waiting:
        node, above = waiting.pop()
        nodes += 1
        if nodes > _MOST_NODES:
            raise InputError(Problem(f"holds more than {_MOST_NODES} values", file))
        if len(above) > _DEEPEST:
            raise InputError(Problem(_TOO_DEEP, file))
        if isinstance(node, CommentedMap | CommentedSeq) and id(node) not in above:
            inner = node.values() if isinstance(node, CommentedMap) else node
            waiting += [(value, (*above, id(node))) for value in inner]


def _plain(node: Any, file: str, line: int, problems: list[Problem], above: tuple[int, ...]) -> Any:
    """Return a node as plain data; notes what a scenario can't hold."""
    if id(node) in above:
        problems.append(Problem("an alias refers to a part that contains it", file, line))
        return None
    if isinstance(node, TaggedScalar) or (isinstance(node, CommentedBase) and _tag(node)):
        problems.append(Problem(f"tags like {_tag(node)} are not understood", file, line))
        return None
    above = (*above, id(node))
    if isinstance(node, CommentedMap):
        problems.extend(
            Problem(f"the key {key!r} must be text", file, _line(node, key) or line)
            for key in node
            if not isinstance(key, str)
        )
        return {
            str(key): _plain(value, file, _line(node, key) or line, problems, above)
            for key, value in node.items()
        }
    if isinstance(node, CommentedSeq):
        return [
            _plain(value, file, _line(node, index) or line, problems, above)
            for index, value in enumerate(node)
        ]
    return _plain_scalar(node)


def _plain_data(node: Any, file: str, problems: list[Problem], path: tuple[str, ...]) -> Any:
    """Return a copy of plain data; notes what a scenario can't hold."""
    if len(path) > _DEEPEST:
        problems.append(Problem(_TOO_DEEP, file, path=".".join(path[:3])))
        return None
    if isinstance(node, Mapping):
        odd = [key for key in node if not isinstance(key, str)]
        problems.extend(Problem(f"the key {key!r} must be text", file) for key in odd)
        return {
            str(key): _plain_data(value, file, problems, (*path, str(key)))
            for key, value in node.items()
        }
    if isinstance(node, list | tuple):
        items = enumerate(node)
        return [_plain_data(item, file, problems, (*path, str(place))) for place, item in items]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if isinstance(node, Real):  # of numpy
        return int(node) if isinstance(node, Integral) else float(node)
    what = f"a {type(node).__name__} is no value; use numbers, text, lists and dictionaries"
    problems.append(Problem(what, file, path=".".join(path)))
    return None


def _plain_scalar(value: Any) -> Any:
    """Return a scalar as Python's own type instead of ruamel's subclass of it."""
    if isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def _printable(text: str) -> str:
    """Return the text with escapes for what would garble a terminal."""
    return text if text.isprintable() else repr(text)[1:-1]


def _tag(node: Any) -> str:
    value = getattr(getattr(node, "tag", None), "value", None)
    return str(value) if value else ""


def _line(node: CommentedMap | CommentedSeq, step: Any) -> int | None:
    """Return the line of a key or an item; None for one that a merge (`<<`) brought in."""
    place = (node.lc.data or {}).get(step)
    return place[0] + 1 if place else None


def _leading_comment(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("#").strip())
    return " ".join(lines)
