"""`kvsim plan`: the cheapest fleet that serves a scenario's demand within its SLO."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.cli.crew import Dask, Jobs, crew
from kvsim.cli.pages import beside, refuse_foreign, write_text
from kvsim.cli.text import aligned, as_json, wrapped

if TYPE_CHECKING:
    from kvsim.studies.plan.candidates import Options
    from kvsim.studies.plan.result import Plan
    from kvsim.study.tasks import Crew

MOST_VALUES = 100  # of one setting; more are rather a mistake


def plan(
    scenario: Annotated[
        Path, typer.Argument(help="Scenario file (YAML): its base is planned for.")
    ],
    gpus: Annotated[
        str, typer.Option(help="GPUs to choose from, with commas; by default all with a price.")
    ] = "",
    price: Annotated[
        list[str] | None, typer.Option(metavar="GPU=USD", help="Price of a GPU an hour; repeats.")
    ] = None,
    tp: Annotated[
        str, typer.Option("--tp", help="Tensor-parallel sizes, with commas.")
    ] = "1,2,4,8",
    weights: Annotated[
        str, typer.Option(help="auto: as the scenario says; fp8: quantized while loading.")
    ] = "auto,fp8",
    kv_cache_dtype: Annotated[
        str, typer.Option(help="auto: as the scenario says; fp8.")
    ] = "auto,fp8",
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH=VALUES", help="A setting and its values, with commas; repeats."),
    ] = None,
    growth: Annotated[float, typer.Option(help="So many times the scenario's demand.")] = 1.0,
    headroom: Annotated[float, typer.Option(help="0.2: a fifth more than that.")] = 0.0,
    spare: Annotated[
        int, typer.Option(min=0, max=1000, help="Replicas beyond those needed (N+1: 1).")
    ] = 0,
    replications: Annotated[
        int, typer.Option(min=1, max=50, help="Independent draws that a fleet is judged on.")
    ] = 3,
    also: Annotated[
        int, typer.Option(min=0, max=100, help="Dearer candidates to look at, for comparison.")
    ] = 3,
    budget_s: Annotated[
        float | None, typer.Option(min=0, help="No simulation begins after so many seconds.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="HTML page to write; the winner's scenario and JSON go beside it."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite other files there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")] = False,
    jobs: Jobs = None,
    dask: Dask = None,
) -> None:
    """Search the cheapest fleet: which GPUs, how many, in which layout, at what cost.

    Exit code: 0 found, 1 no fleet meets the SLO, 2 bad input.
    """
    from kvsim.scenario.load import load_scenario
    from kvsim.studies.plan.candidates import Options

    options = Options(
        gpus=_words(gpus),
        prices=_prices(price or []),
        tensor_parallel_sizes=_sizes(tp),
        weights=_words(weights),
        kv_cache_dtypes=_words(kv_cache_dtype),
        vary=_settings(vary or []),
        growth=growth,
        headroom=headroom,
        spare=spare,
        replications=replications,
        also=also,
        budget_s=budget_s,
    )
    file = load_scenario(scenario)
    if out is not None:
        others = [beside(out, ".yaml"), beside(out, ".json")]
        refuse_foreign(out, force, [scenario], others)
    with crew(jobs, dask) as workers:
        found = _found(file, options, workers, demands=out is not None)
    if out is not None:
        _write(found, out, _command(scenario, options))
    print(_as_json(found) if json else _as_text(found, out))
    raise typer.Exit(0 if found.winner is not None else 1)


# What the options say


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _prices(pairs: Sequence[str]) -> dict[str, float]:
    from kvsim.errors import InputError

    prices, problems = {}, []
    for pair in pairs:
        name, _, usd = pair.partition("=")
        try:
            prices[name] = float(usd)
        except ValueError:
            prices[name] = 0.0
        if not 0 < prices[name] <= 1e6:
            problems.append(f"--price {pair}: expected GPU=USD, such as h100_sxm=2.10")
    if problems:
        raise InputError(*problems)
    return prices


def _sizes(text: str) -> list[int]:
    from kvsim.errors import InputError

    words = _words(text)
    if not words or not all(word.isdecimal() and int(word) for word in words):
        raise InputError(f"--tp {text}: expected numbers of GPUs, such as 1,2,4")
    return [int(word) for word in words]


def _settings(pairs: Sequence[str]) -> dict[str, list[Any]]:
    from kvsim.errors import InputError

    settings, problems = {}, []
    for pair in pairs:
        path, _, values = pair.partition("=")
        words = _words(values)
        if not path or not 0 < len(words) <= MOST_VALUES:
            what = "expected PATH=VALUES, such as engine.max_num_seqs=64,128"
            problems.append(f"--vary {pair}: {what}")
        settings[path] = [_value(word) for word in words]
    if problems:
        raise InputError(*problems)
    return settings


def _value(word: str) -> Any:
    """Read a value as JSON: a number, true, false, null; else it is a text."""
    import json as json_format

    try:
        return json_format.loads(word)
    except ValueError:
        return word


# Search


def _found(file: Any, options: "Options", workers: "Crew", demands: bool) -> "Plan":
    """Search, with a bar on stderr if it is a terminal."""
    from kvsim.cli.progress import counted
    from kvsim.studies.plan.search import find_plan

    with counted("candidates") as tell:
        return find_plan(file, options, workers, demands, tell)


# Files


def _write(found: "Plan", out: Path, command: str) -> None:
    from kvsim.studies.plan.page import build_page
    from kvsim.studies.plan.winner import write_winner

    out.parent.mkdir(parents=True, exist_ok=True)
    if found.winner is not None:
        write_winner(found, beside(out, ".yaml"), force=True)
    else:
        beside(out, ".yaml").unlink(missing_ok=True)  # an older one would be no answer to this
    write_text(out, build_page(found, command))
    write_text(beside(out, ".json"), _as_json(found) + "\n")


def _command(scenario: Path, options: "Options") -> str:
    """Return what reproduces the plan, without options that have their usual value."""
    words = ["kvsim", "plan", str(scenario)]
    words += ["--gpus", ",".join(options.gpus)] if options.gpus else []
    for name, usd in options.prices.items():
        words += ["--price", f"{name}={usd:g}"]
    sizes = ",".join(map(str, options.tensor_parallel_sizes))
    words += ["--tp", sizes] if sizes != "1,2,4,8" else []
    for flag, values in (
        ("--weights", options.weights),
        ("--kv-cache-dtype", options.kv_cache_dtypes),
    ):
        words += [flag, ",".join(values)] if list(values) != ["auto", "fp8"] else []
    for path, values in options.vary.items():
        words += ["--vary", f"{path}={','.join(map(str, values))}"]
    usual = {"growth": 1.0, "headroom": 0.0, "spare": 0, "replications": 3, "also": 3}
    for name, value in usual.items():
        given = getattr(options, name)
        words += [f"--{name}", f"{given:g}"] if given != value else []
    return shlex.join(words)


# Text


def _as_json(found: "Plan") -> str:
    from kvsim.studies.plan.answer import as_dict

    return as_json(as_dict(found))


def _as_text(found: "Plan", out: Path | None) -> str:
    from kvsim.studies.plan.answer import candidate_table, demand_table, sentences, skipped_groups

    table = candidate_table(found)
    blocks = ["\n".join(wrapped(sentence) for sentence in sentences(found) if sentence)]
    if table.rows:
        marked = any(row[-1].endswith("*") for row in table.rows)
        note = "\n* most of its steps' time rests on forms, not on measurements" if marked else ""
        blocks.append(aligned([table.header, *table.rows]) + note)
    if found.demands:
        demands = demand_table(found)
        blocks.append(aligned([demands.header, *demands.rows]))
    groups = skipped_groups(found)
    if groups:
        blocks.append("Not tried:\n" + "\n".join(_group(*group) for group in groups))
    if out is not None:
        written = [f"Page: {out}", f"Numbers: {out.with_suffix('.json')}"]
        if found.winner is not None:
            yaml = beside(out, ".yaml")
            written.append(f"Scenario: {yaml}; next: kvsim run {yaml}")
        blocks.append("\n".join(written))
    return "\n\n".join(blocks)


def _group(reason: str, labels: Sequence[str]) -> str:
    return f"{wrapped(reason)}\n{wrapped('; '.join(labels), '    ')}"
