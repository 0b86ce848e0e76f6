"""A run as a few lines of markdown, for a pull request or a chat: answer, reasons, comparison."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvsim.metrics.catalog import format_figure
from kvsim.metrics.classes import all_targets, met_word
from kvsim.metrics.prices import cost_in_words
from kvsim.metrics.summary import certainty, compare
from kvsim.names import short_name
from kvsim.report import advice, headline, sections
from kvsim.report.inputs import ReportInput, Variant

# The comparison's rows; with that of the SLO they are twelve.
SHOWN = (
    *("kv_utilization_mean", "running_seqs_mean", "requests_per_s", "output_tokens_per_s"),
    *("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "e2e_p99_s"),
    *("preemptions_total", "failed_fraction"),
)
MOST_VARIANTS, MOST_TARGETS, MOST_NOTES = 6, 10, 6
LONGEST_NAME = 40

Rows = Sequence[Sequence[str]]


def as_markdown(run: ReportInput) -> str:
    """Return the summary, fewer than 60 lines in GitHub's markdown.

    Names of the user can't become markup: they are code, or escaped.

    Raises:
        ValueError: The run has no variant.
    """
    if not run.variants:
        raise ValueError("a summary needs at least one variant")
    base = run.variants[0]
    summary = base.summary
    blocks = [
        f"## {code(short_name(run.scenario, LONGEST_NAME))}: {met_word(summary['verdict'])}",
        f"**Verdict.** {escaped(summary['verdict']['sentence'])}",
        *(f"**Mind.** {escaped(caveat)}" for caveat in summary["caveats"]),
        f"**Limit.** {escaped(summary['limits']['sentence'])}",
        f"**What to change next.** {escaped(advice.finding(run.advice))}" if run.advice else "",
        _targets(base),
        *_facts(base),
        _side_by_side(run.variants),
        _variants(run.variants),
        _accuracy(run),
        _notes(run.variants),
        _command(run.command),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _facts(base: Variant) -> list[str]:
    told = (
        ("Cost", cost_in_words(base.summary, base.inputs)),
        ("Deployment", headline.deployment(base)),
        ("Load", headline.load(base)),
    )
    return [f"**{word}.** {escaped(words)}" for word, words in told if words]


def _targets(base: Variant) -> str:
    """Return the SLO as a table, what is missed first if it can't hold all."""
    if not all_targets(base.summary):
        return ""
    rows = sections.target_rows(base)
    if len(rows) > MOST_TARGETS:
        rows = sorted(rows, key=lambda row: row["met"] is not False)
    header = ["Target", "Found", "95 % interval", "At most", "Margin", ""]
    cells = [
        [_label(row), row["value"], row["interval"], row["bound"], row["margin"], met_word(row)]
        for row in rows[:MOST_TARGETS]
    ]
    return markdown_table(header, cells) + _more(len(rows) - MOST_TARGETS, "target")


def _label(row: Mapping[str, Any]) -> str:
    """Name a target, and the class of traffic that it bounds."""
    of_class = row["of_class"]
    return f"{short_name(of_class, LONGEST_NAME)}: {row['label']}" if of_class else row["label"]


def _side_by_side(variants: Sequence[Variant]) -> str:
    """Return the variants as a table, with ratios to the base."""
    shown = variants[:MOST_VARIANTS]
    names = [variant.name for variant in shown]
    rows = []
    if all_targets(variants[0].summary):
        rows.append(["SLO", *(met_word(variant.summary["verdict"]) for variant in shown)])
    for row in compare({variant.name: variant.summary for variant in shown}):
        if row["name"] in SHOWN:
            rows.append([row["label"], *(_beside_base(row, name) for name in names)])
    header = ["", *(short_name(name, LONGEST_NAME) for name in names)]
    return markdown_table(header, rows) + _more(len(variants) - MOST_VARIANTS, "variant")


def _beside_base(row: Mapping[str, Any], name: str) -> str:
    value, ratio = format_figure(row["name"], row["values"][name]), row["ratios"][name]
    is_base = name == next(iter(row["values"]))
    return value if is_base or ratio is None else f"{value} ({sections.times(ratio)})"


def _variants(variants: Sequence[Variant]) -> str:
    """Say how each other variant does by its own tightest target."""
    if not all_targets(variants[0].summary):
        return ""
    return "\n".join(
        f"- {code(short_name(variant.name, LONGEST_NAME))}: "
        f"{escaped(variant.summary['verdict']['sentence'])}"
        for variant in variants[1:MOST_VARIANTS]
    )


def _accuracy(run: ReportInput) -> str:
    base = run.variants[0]
    rows = sections.basis_shares(run.variants[:1]).rows
    rests = ", ".join(f"{share} {name.lower()}" for name, share in rows)
    basis = f" The price of the engine's steps is {rests}." if rests else ""
    return f"**Accuracy.** Simulated, not measured.{basis} {escaped(certainty(base.summary))}"


def _notes(variants: Sequence[Variant]) -> str:
    notes = sections.notes(variants)
    lines = "\n".join(f"- {escaped(note)}" for note in notes[:MOST_NOTES])
    return lines + _more(len(notes) - MOST_NOTES, "note")


def _command(command: str) -> str:
    if not command:
        return ""
    fence = "`" * max(3, _longest_run(command) + 1)
    return f"{fence}sh\n{command}\n{fence}"


def _more(count: int, what: str) -> str:
    return (
        f"\n\n{count} more {what}{'s' if count > 1 else ''}: see the report." if count > 0 else ""
    )


def markdown_table(header: Sequence[str], rows: Rows) -> str:
    """Return a table whose first column names the row; cells can't become markup."""
    rule = [":--", *("--:" for _ in header[1:])]
    lines = [[escaped(cell) for cell in header], rule]
    lines += [[escaped(cell) for cell in row] for row in rows]
    return "\n".join(_row(line) for line in lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def code(text: str) -> str:
    """Return a text as a code span: nothing in it is markup, and nobody is notified."""
    plain = " ".join(text.split()) or " "
    fence = "`" * (_longest_run(plain) + 1)
    room = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{room}{plain}{room}{fence}"


def escaped(text: str) -> str:
    r"""Return a text as markdown that shows it: `a|b` → `a\|b`.

    An underscore between two letters or digits is left alone: there it is no markup.
    """
    line = re.sub(r"[^\S\u00a0]+", " ", text).strip()
    line = re.sub(r"([\\`*\[\]<>|~$&]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", line)
    return re.sub(r"@(?=\w)", "@\u2060", line)  # else GitHub would notify whoever has that name


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
