"""Mistakes in a sweep file: each with its place, all in one go, before anything runs."""

from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.studies.sweep.load import load_sweep
from kvsim.studies.sweep.schema import Sweep

RATE = "workload.arrivals.rate_per_s"


def problems(folder, text: str) -> list[str]:
    with pytest.raises(InputError) as told:
        folder.load(text).points()
    return [str(problem).removeprefix(f"{folder.path}/") for problem in told.value.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "axes: {engine.max_num_seq: [1, 2]}",
            "mine.yaml:2: axes.engine.max_num_seq: unknown key; did you mean max_num_seqs?",
        ),
        ("axes: {engine.max_num_seqs: []}", "mine.yaml:2: axes.engine.max_num_seqs: is empty"),
        ("axes: {engine.max_num_seqs: 3}", "should be a list of values, or a range"),
        ("axes: {}", "mine.yaml:2: axes: nothing is varied"),
        ("set: {seed: 1}", "mine.yaml: axes: nothing is varied"),
        ("axes: {seed: [1, 2, 1]}", "mine.yaml:2: axes.seed.2: 1 is there already"),
        ("axes: {seed: {from: 1, to: 3}}", "needs a step or a count, or `samples`"),
        ("axes: {seed: {from: 3, to: 1, step: 1}}", "from 3 to 1 is no range"),
        ("axes: {seed: {from: 1, to: 3, step: 1, count: 3}}", "a step or a count, not both"),
        ("axes: {seed: {from: 0, to: 3, count: 3, scale: log}}", "a log range begins above 0"),
        ("axes: {seed: {from: 1, too: 3}}", "unknown key; did you mean to?"),
        ("axes: {seed: {from: 1, to: 2, zzz: 3}}", "known are count, from, scale, step, to, whole"),
        ("axes: {seed: [1]}\nsamples: {count: 4}", "samples: finds nothing to sample"),
        (
            "axes: {warmup_s: {from: 0.0, to: 1.0}}\nsamples: {count: 100}",
            "100 is no power of two: Sobol points are even only in such numbers; take 64 or 128",
        ),
        ("variants: [contigous]", "variants.0: the scenario has no variant 'contigous'; did you"),
        ("variants: [base, base]", "variants.1: 'base' is there already"),
        ("axes: {name: [a, b]}", "axes.name: can't be varied: it changes no result"),
        ("axes: {replications: [1, 3]}", "say how many by the sweep's own `replications`"),
        ("axes: {seed: [1]}\nset: {replications: 3}", "mine.yaml:3: set.replications: can't be"),
        ("axes: {warmup_s: [0, 1, 1.0]}", "mine.yaml:2: axes.warmup_s.2: 1.0 is there already"),
        ("axes: {seed: [1]}\nname: " + "a" * 81, "name: should have at most 80 characters"),
        ("axes: {seed: {from: 1, to: 2, step: 1.0e-320}}", "axes.seed: has more than 10,000,000"),
        (
            "axes: {seed: {from: 1, to: 100000, step: 1}}\nreplications: 10000",
            "mine.yaml: its axes span 1,000,000,000 points, more than 10,000,000 can be",
        ),
        (
            "axes: {workload.classes.nobody.weight: [1, 2]}",
            "mine.yaml:2: axes.workload.classes.nobody.weight.0: there is no class 'nobody'",
        ),
        ("axes: {variants.x: [1, 2]}", "choose some by the sweep's own `variants`"),
        ("axes: {seed: [1, 2]}\nset: {seed: 3}", "mine.yaml:2: axes.seed: is set already"),
        ("axes: {engine: [{}], engine.block_size: [8]}", "axes.engine.block_size: overlaps with"),
        (
            "zipped: {two: [{seed: 1, warmup_s: 0.0}, {seed: 2}]}",
            "mine.yaml:2: zipped.two.1: must set the same paths as the first row: seed, warmup_s",
        ),
        ("zipped: {two: []}", "zipped.two: is empty"),
        ("axes: {seed: [1, 2]}\nreplications: 0", "greater than or equal to 1, not 0"),
        ("axes: {seed: [1]}\nset: {engine.x: 1}", "mine.yaml:3: set.engine.x: unknown key"),
        ("axes: {seed: [1]}\naxis: 1", "mine.yaml:3: axis: unknown key; did you mean axes?"),
        (
            "axes: {seed: [1, 2]}\nwhere: [{left: sed, op: '<', right: 2}]",
            "mine.yaml:3: where.0: 'sed' is nothing that this sweep sets; did you mean seed?",
        ),
        (
            "axes: {seed: [1, 2]}\nwhere: [{left: seed, op: '>', right: 2}]",
            "mine.yaml:3: where: no point passes these conditions",
        ),
        ("axes: {seed: [1]}\nscenario: nowhere.yaml", "is not valid YAML"),
    ],
)
def test_mistakes_are_told_with_their_place(folder, text, expected):
    assert expected in "\n".join(problems(folder, text))


def test_each_wrong_value_is_told_with_its_line_before_anything_runs(folder):
    text = """
        axes:
          engine.max_num_seqs:
            - 8
            - 0
            - many
          engine.gpu_memory_utilization: {from: 0.5, to: 1.5, step: 0.25}
          kv_cache: [paged, pagd]
        zipped:
          both:
            - {gpu: h100_sxm, seed: 1}
            - {gpu: nothing, seed: -1}
    """
    told = problems(folder, text)
    assert sorted(one.partition(" ")[0] for one in told) == [
        "mine.yaml:13:",
        "mine.yaml:13:",
        "mine.yaml:6:",
        "mine.yaml:7:",
        "mine.yaml:8:",
        "mine.yaml:9:",
    ]
    assert any("axes.engine.max_num_seqs.1: should be greater than or equal" in one for one in told)
    assert any("axes.kv_cache.1" in one and "paged" in one for one in told)
    assert any("zipped.both.1.gpu: GPU 'nothing' is not in the catalog" in one for one in told)


def test_a_range_of_what_must_be_whole_says_so_once(folder):
    (told,) = problems(folder, "axes: {engine.max_num_seqs: {from: 16, to: 256, count: 40}}")
    assert "whole: true` rounds" in told


def test_extremes_of_samples_are_checked(folder):
    text = "axes: {engine.watermark: {from: -0.5, to: 0.9}}\nsamples: {count: 8}"
    (told,) = problems(folder, text)
    assert "mine.yaml:2: axes.engine.watermark: should be greater than or equal to 0" in told


def test_a_value_that_no_condition_lets_in_is_no_part_of_the_sweep(folder):
    text = """
        axes:
          kv_cache: [paged, contiguous]
          engine.max_num_seqs: [4, 0]
        where: [{left: engine.max_num_seqs, op: "!=", right: 0}]
    """
    assert len(folder.load(text).points()) == 2


def test_every_field_is_described():
    schema = Sweep.model_json_schema()
    for part in (schema, *schema["$defs"].values()):
        for name, field in part.get("properties", {}).items():
            assert field["description"], name
    assert set(schema["$defs"]["Range"]["properties"]) >= {"from", "to", "step", "count"}


def test_a_scenario_that_is_not_there_or_wrong_is_told(folder):
    (folder.path / "bad.yaml").write_text("scenario: nowhere.yaml\naxes: {seed: [1, 2]}")
    with pytest.raises(InputError, match=r"bad.yaml:1: scenario: there is no file 'nowhere.yaml'"):
        load_sweep(folder.path / "bad.yaml")
    (folder.path / "scenario.yaml").write_text("model: nothing\n")
    with pytest.raises(InputError, match=r"scenario.yaml:1: model: "):
        folder.load("axes: {seed: [1, 2]}")


ROOT = Path(__file__).parents[3]
SHIPPED = [*(ROOT / "scenarios" / "sweeps").glob("*.yaml"), ROOT / "benchmarks" / "sweep.yaml"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_shipped_sweeps_say_what_they_ask_and_load(path):
    sweep = load_sweep(path)
    assert sweep.question.endswith("?")
    assert len(sweep.points()) == sweep.largest_size
