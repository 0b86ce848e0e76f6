"""What `kvsim run` prints: in the order of the report, and readable in 80 columns."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from kvsim.cli.text import WIDTH, columns_of
from kvsim.cli.verdict import as_text
from kvsim.metrics.catalog import format_figure
from kvsim.metrics.summary import compare
from kvsim.rundir.write import run_into
from kvsim.scenario.load import load_scenario
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all

LONG = "a variant whose name goes on and on, " + "日本語" * 12
SCENARIO = """\
model: meta-llama/Llama-3.1-8B-Instruct
gpu: {gpu}
workload:
  arrivals: {{kind: poisson, rate_per_s: {rate}}}
  lengths: {{kind: fixed, prompt_tokens: {prompt}, output_tokens: 8}}
  num_requests: {count}
engine: {{max_model_len: 1024, num_gpu_blocks_override: 300}}
oversized_requests: reject
"""
SLO = "slo: {ttft_p99_s: 0.5, tpot_p99_s: 0.05, max_failed_fraction: 0.01}\n"
STRICT = "slo: {ttft_p99_s: 1.0e-9, e2e_p99.9_s: 1.0e-6}\n"


def scenario(gpu="l40s", rate=5.0, prompt=100, count=20):
    return SCENARIO.format(gpu=gpu, rate=rate, prompt=prompt, count=count)


def variants(names):
    return "variants:\n" + "".join(
        f"  {name!r}: {{engine: {{max_num_seqs: {2 + place}}}}}\n"
        for place, name in enumerate(names)
    )


CLASSES = (
    scenario().replace(
        "  num_requests",
        "  classes:\n    " + "c" * 40 + ": {weight: 1}\n    chat: {weight: 2}\n  num_requests",
    )
    + "class_slos: {"
    + "c" * 40
    + ": {ttft_p99_s: 0.5, normalized_p99_s: 12.0}}\n"
)

SCENARIOS = {
    "alone": scenario(),
    "with an SLO": scenario() + SLO,
    "missed by far": scenario() + STRICT,
    "two": scenario("h100_sxm") + SLO + variants(["other"]),
    "six": scenario("h100_sxm") + SLO + variants([f"variant number {i}" for i in range(5)]),
    "long names": scenario() + SLO + variants([LONG, "x" * 80, LONG + "2"]),
    "classes": CLASSES + variants(["small"]),
    "one request": scenario(count=1) + SLO,
    "all rejected": scenario(prompt=1020) + SLO,
    "cut off": scenario(rate=1e5, count=60) + SLO + "max_simulated_s: 0.05\n",
    "nothing ran": scenario().replace("kind: poisson, rate_per_s: 5.0", "kind: all_at_once")
    + SLO
    + "max_simulated_s: 1.0e-9\n",
    "warm-up": scenario() + SLO + "warmup_s: 1.0e+9\n",
    "a dear price": scenario() + SLO + "price_usd_per_gpu_hour: 999999.99\n",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    known = {}

    def run_of(name):
        if name not in known:
            folder = tmp_path_factory.mktemp("run")
            (folder / "s.yaml").write_text(SCENARIOS[name], encoding="utf-8")
            file = load_scenario(folder / "s.yaml")
            resolved = resolve_all(file)
            (folder / "run").mkdir()
            known[name] = run_into(
                folder / "run", file, resolved, draw_requests(file, resolved)
            ).run
        return known[name]

    return run_of


def text_of(run):
    return as_text(run, Path("reports/x"), with_report=True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_line_is_too_wide_and_no_figure_broken(runs, name):
    run = runs(name)
    text = text_of(run)
    for line in text.splitlines():
        assert columns_of(line) <= WIDTH, line
    for row in compare(run.summaries):
        for value in row["values"].values():
            assert format_figure(row["name"], value) in text
    sentence = run.summaries["base"]["verdict"]["sentence"]
    assert " ".join(text.split()).startswith(" ".join(sentence.split()))
    for line, after in pairwise(text.splitlines()):
        if re.search(r"\d$", line):
            assert not re.match(r"([mµ]?s|min|h|%|×|requests|tokens|seqs|to) ?\b", after)


def test_the_order_is_that_of_the_page(runs):
    text = text_of(runs("two"))
    beginnings = [
        *("Meets its SLO", "Limit: ", "target ", "Cost: ", "TTFT mean lies within", "    "),
        *("other: Meets its SLO", "Note: ", "20 requests over"),
    ]
    places = [re.search(f"^{words}", text, re.MULTILINE).start() for words in beginnings]
    assert places == sorted(places)
    assert text.endswith("tables in reports/x/\nReport: reports/x/report.html")


def test_the_cost_is_told_or_how_to_tell_a_price(runs):
    assert "Cost: $999,999.99 an hour, $" in text_of(runs("a dear price"))
    assert re.search(r"Cost: \$[\d.]+ an hour, \$[\d.,]+ per million", text_of(runs("two")))
    assert "set price_usd_per_gpu_hour in the" in text_of(runs("alone"))


def test_many_variants_stand_in_blocks(runs):
    """Each has all rows once; long names are told shortened."""
    text = text_of(runs("six"))
    assert len(re.findall(r"^TTFT p99 ", text, re.MULTILINE)) == 2
    assert len(re.findall(r"^SLO ", text, re.MULTILINE)) == 2
    assert "…" in text_of(runs("long names"))
    assert "x" * 50 not in text_of(runs("long names"))


def test_a_long_path_is_not_cut(runs):
    target = Path("reports") / ("p" * 100)
    text = as_text(runs("alone"), target, with_report=False)
    assert text.splitlines()[-1] == f"tables in {target}/"


def test_differences_stand_beside_a_second_variant(runs):
    run = runs("two")
    difference = {"mean": -0.1, "low": -0.2, "high": 0.1, "count": 5}
    other = {**run.summaries["other"], "differences": {"ttft_p99_s": difference}}
    text = text_of(replace(run, summaries={**run.summaries, "other": other}))
    assert "difference" in text
    assert "-200 to 100 ms" in text
    assert all(columns_of(line) <= WIDTH for line in text.splitlines())
