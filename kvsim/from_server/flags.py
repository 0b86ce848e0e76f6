"""The arguments of `vllm serve` → settings of a scenario; nothing is ignored without a reason.

The flags stand in `data/vllm_serve_flags.csv`: those of vLLM 0.33.0, and older ones that commands
still have. A flag is a setting of the scenario, or one that it refuses by name; `noted`: its effect
is not modeled, and small; `refused`: not modeled; `irrelevant`: capacity does not depend on it;
`file`: holds further settings.
"""

import csv
import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.from_server.settings_file import words_of
from kvsim.scenario.refusals import REFUSED, refuse_unmodeled
from kvsim.scenario.schema import Engine

Setting = str | int | float | bool | None
Given = str | bool | list[str]  # as the command says it

# What vLLM reads by its `human_readable_int`.
_HUMAN = frozenset(
    {
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "kv_cache_memory_bytes",
    }
)
_UNITS: dict[str, int] = {
    **{unit: 1000**power for power, unit in enumerate(" kmgt")},
    **{unit: 1024**power for power, unit in enumerate(" KMGT")},
}
_ELSEWHERE = "is set somewhere else: put its value in its place"
_SWITCHED = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of `vllm serve`, as the table has it."""

    name: str
    values: Literal["switch", "one", "many", "optional"]
    setting: str
    treatment: Literal["scenario", "noted", "refused", "irrelevant", "file"]
    neutral: tuple[str, ...]
    remark: str


@dataclass(slots=True)
class Arguments:
    """What the arguments of a server say.

    Attributes:
        model: The model, if one is named, perhaps by a variable.
        settings: Of the section `engine`.
        notes: What is not modeled and has a small effect.
        irrelevant: Flags that capacity does not depend on, in their order.
        problems: Everything that can't be translated.
        file: The file of settings that `--config` names.
    """

    model: str | None = None
    settings: dict[str, Setting] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    irrelevant: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    file: str | None = None

    def fall_back_on(self, other: "Arguments") -> None:
        """Take from others what these don't say."""
        self.model = self.model or other.model
        self.settings = other.settings | self.settings
        self.notes += other.notes
        self.irrelevant += other.irrelevant
        self.problems += other.problems


def read_arguments(words: Sequence[str]) -> Arguments:
    """Read what follows `vllm serve`, and the file of settings that it may name.

    Mistakes are collected, not raised.
    """
    said = _read(words)
    if said.file is not None:
        try:
            said.fall_back_on(_read(list(words_of(Path(said.file)))))
        except InputError as error:
            said.problems += error.problems
    return said


def _read(words: Sequence[str]) -> Arguments:
    said = Arguments()
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if not _looks_like_flag(word):
            _take_model(word, said)
            continue
        word = re.sub(r"^-O(?=[^=.])", "-O=", word)  # -O3
        written, equals, inline = word.partition("=")
        flag, negated = _find(written)
        if flag is None:
            said.problems.append(Problem(f"{written}: unknown flag{_hint(written)}"))
            _drop_values(rest)
            continue
        try:
            given = _values(flag, rest, inline if equals else None, "." in written)
            _apply(flag, written, not given if negated else given, said)
        except ValueError as error:
            said.problems.append(Problem(f"{written}: {error}"))
    return said


def is_set_elsewhere(text: str) -> bool:
    """Tell whether a variable stands in it, as in `$MODEL`, or the output of a command."""
    return re.search(r"\$[\w{(@*]|`", text) is not None


def human_readable_int(text: str) -> int:
    """Read a whole number as vLLM does: 32k is 32,000, 32K is 32,768, 1.5M is refused.

    Raises:
        ValueError: It is none.
    """
    match = re.fullmatch(r"(\d+)(\.\d+)?([kmgtKMGT]?)", text.strip())
    if match is None or (match[2] and not match[3]):
        raise ValueError(f"{text!r} is not a whole number")
    number, fraction, unit = match.groups()
    if not unit:
        return int(number)
    if unit.islower():
        return int(float(number + (fraction or "")) * _UNITS[unit])
    if fraction:
        raise ValueError(f"{text!r}: no decimals before {unit}; did you mean {text.lower()}?")
    return int(number) * _UNITS[unit]


@cache
def flags() -> dict[str, Flag]:
    """Return the flags by all their spellings, `--` and `-` included, underscores as dashes."""
    table = Path(str(resources.files("kvsim"))) / "data" / "vllm_serve_flags.csv"
    known: dict[str, Flag] = {}
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            setting = row["setting"] or row["flag"].replace("-", "_")
            neutral = tuple(row["neutral"].split("|"))
            flag = Flag(
                row["flag"],
                row["values"],  # type: ignore[arg-type]
                setting,
                row["treatment"],  # type: ignore[arg-type]
                neutral,
                row["remark"],
            )
            known[f"--{flag.name}"] = flag
            known |= {f"-{short}": flag for short in row["short"].split()}
    return known


def _looks_like_flag(word: str) -> bool:
    return re.match(r"--?[A-Za-z]", word) is not None


def _take_model(word: str, said: Arguments) -> None:
    if said.model is None:
        said.model = word
    elif is_set_elsewhere(word):
        said.problems.append(Problem(f"{word} {_ELSEWHERE}"))
    else:
        said.problems.append(Problem(f"'{word}' is neither a flag nor the value of one"))


def _spelling(written: str) -> str:
    """Return a flag without the key of a JSON value (`--compilation-config.mode`), in dashes."""
    name = written.partition(".")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _find(written: str) -> tuple[Flag | None, bool]:
    """Return the flag, and whether it is written as the opposite (`--no-x`, `--disable-x`)."""
    name = _spelling(written)
    if name in flags():
        return flags()[name], False
    opposites = (
        name.replace("--no-", "--", 1),
        name.replace("--disable-", "--enable-", 1),
        name.replace("--enable-", "--disable-", 1),
    )
    for opposite in opposites:
        flag = flags().get(opposite)
        if opposite != name and flag is not None and flag.values == "switch":
            return flag, True
    return None, False


def _hint(written: str) -> str:
    names = [name[2:] for name in flags() if name.startswith("--")]
    return did_you_mean(_spelling(written).lstrip("-"), names).replace("mean ", "mean --")


def _drop_values(rest: deque[str]) -> None:
    """Pass over what may be the values of an unknown flag, so that it is told once."""
    while rest and not _looks_like_flag(rest[0]):
        rest.popleft()


def _values(flag: Flag, rest: deque[str], inline: str | None, has_key: bool) -> Given:
    """Take the values of a flag from the words.

    Raises:
        ValueError: It lacks one, or has one that a switch doesn't take.
    """
    if flag.values == "switch" and not has_key:
        if inline is None and rest and rest[0].lower() in _SWITCHED:  # older versions
            inline = rest.popleft()
        if inline is not None and inline.lower() not in _SWITCHED:
            raise ValueError(f"takes no value, not {inline!r}")
        return _SWITCHED[inline.lower()] if inline is not None else True
    if inline is not None:
        return inline
    if flag.values == "many":
        return list(_until_next_flag(rest))
    if rest and not _looks_like_flag(rest[0]):
        return rest.popleft()
    if flag.values == "optional":
        return True
    raise ValueError("needs a value")


def _until_next_flag(rest: deque[str]) -> Iterator[str]:
    while rest and not _looks_like_flag(rest[0]):
        yield rest.popleft()


def _apply(flag: Flag, written: str, given: Given, said: Arguments) -> None:
    """Put one flag where it belongs.

    Raises:
        ValueError: It is refused, or its value can't be read.
    """
    if flag.treatment == "irrelevant":
        said.irrelevant.append(written)
        return
    if flag.name == "model":
        said.model = str(given)
        return
    if isinstance(given, str) and is_set_elsewhere(given):
        raise ValueError(f"{given} {_ELSEWHERE}")
    if flag.treatment == "noted":
        said.notes.append(f"{written}: {flag.remark}.")
    elif flag.treatment == "file":
        said.file = str(given)
    elif flag.setting in Engine.model_fields:
        said.settings[flag.setting] = _engine_value(flag.setting, given)
    elif flag.setting in REFUSED:
        _, refused = refuse_unmodeled({flag.setting: _plain(given)})
        if refused:
            raise ValueError(refused[flag.setting])
    elif str(given).lower() not in flag.neutral:
        raise ValueError(flag.remark)


def _engine_value(name: str, given: Given) -> Setting:
    """Read a value in the type that the scenario has for it; its limits are checked there."""
    if isinstance(given, bool | list):
        return given if isinstance(given, bool) else ",".join(given)
    if given.lower() in {"none", "null"}:
        return None
    if name == "max_model_len" and given.lower() in {"auto", "-1"}:
        raise ValueError("auto fits it to the memory: put in the length that the server logged")
    kinds = set(_types_in(Engine.model_fields[name].annotation))
    if int in kinds:
        return human_readable_int(given) if name in _HUMAN else _number(int, given)
    return _number(float, given) if float in kinds else given


def _number(kind: type[int] | type[float], text: str) -> int | float:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{text!r} is not {what}") from None


def _types_in(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _types_in(part)


def _plain(given: Given) -> Any:
    """Return a value as a scenario file would have it: JSON is read, 0.0 is 0."""
    if not isinstance(given, str):
        return given
    if given.lower() in {"none", "null"}:
        return None
    try:
        value = json.loads(given)
    except ValueError:
        return given
    return int(value) if isinstance(value, float) and value.is_integer() else value
