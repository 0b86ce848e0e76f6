from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import InputError
from kvsim.scenario.change import changed, number_at
from kvsim.scenario.load import ScenarioFile, load_scenario
from kvsim.scenario.schema import BASE

FOLDER = Path(__file__).parents[2] / "scenarios"
SHIPPED = sorted(path for path in FOLDER.rglob("*.yaml") if path.parent.name != "sweeps")
Write = Callable[..., Path]


def leaves(node: Any, steps: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the dotted path of every scalar, and its value."""
    inner = node.items() if isinstance(node, dict) else enumerate(node)
    for step, value in inner:
        if isinstance(value, dict | list):
            yield from leaves(value, (*steps, str(step)))
        elif "." not in str(step):
            yield ".".join((*steps, str(step))), value


def refused(file: ScenarioFile, changes: dict[str, Any], variant: str = BASE) -> list[Any]:
    with pytest.raises(InputError) as refusal:
        changed(file, changes, variant)
    return list(refusal.value.problems)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_value_laid_over_itself_changes_nothing(path: Path) -> None:
    file = load_scenario(path)
    data = {key: value for key, value in file.document.data.items() if key != "variants"}
    found = dict(leaves(data))
    assert found
    for place, value in found.items():
        same = changed(file, {place: value})
        assert same.base == file.base.model_copy(update={"variants": {}}), place
    assert changed(file, found).base == changed(file, {}).base


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_number_of_a_shipped_scenario_can_be_changed_and_nothing_else_does(path: Path) -> None:
    file = load_scenario(path)
    data = {key: value for key, value in file.document.data.items() if key != "variants"}
    for place, value in leaves(data):
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        near = value + 1 if isinstance(value, int) else value * (1.01 if value >= 1 else 0.99)
        other = changed(file, {place: near})
        assert other.base != changed(file, {}).base, place
        # It is laid over the file each time: changes don't add up.
        assert changed(other, {place: value}).base == changed(file, {}).base


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_variant_alone_is_itself(path: Path) -> None:
    file = load_scenario(path)
    for name, scenario in file.variants.items():
        alone = changed(file, {}, name)
        assert list(alone.variants) == [BASE]
        assert alone.base == scenario.model_copy(update={"variants": {}})


VARIANTS = """\
engine: {max_num_seqs: 8}
variants:
  many: {engine: {max_num_seqs: 64}, kv_cache: {kind: contiguous}}
"""


def test_a_change_comes_after_the_overrides_of_its_variant(write: Write) -> None:
    file = load_scenario(write(VARIANTS))
    many = changed(file, {"engine.block_size": 32}, "many").base
    assert (many.engine.max_num_seqs, many.engine.block_size) == (64, 32)
    assert many.kv_cache.kind == "contiguous"
    assert changed(file, {"engine.max_num_seqs": 9}, "many").base.engine.max_num_seqs == 9
    assert file.base.engine.max_num_seqs == 8


def test_a_variant_that_is_not_there(write: Write) -> None:
    file = load_scenario(write(VARIANTS))
    (problem,) = refused(file, {}, "mny")
    assert problem.message == "there is no variant 'mny'; did you mean many?"
    assert problem.file == file.document.file


def test_values_that_the_file_does_not_mention(write: Write) -> None:
    file = load_scenario(write())
    base = changed(
        file, {"engine.max_num_seqs": 3, "slo.ttft_p99_s": 1.5, "replicas": 2, "seed": 9}
    ).base
    assert base.engine.max_num_seqs == 3
    assert base.slo == {"ttft_p99_s": 1.5, "max_failed_fraction": 0.001}
    assert (base.replicas, base.seed) == (2, 9)


def test_a_mapping_is_merged_unless_its_kind_changes(write: Write) -> None:
    file = load_scenario(write())
    merged = changed(file, {"workload.lengths": {"output_tokens": 7}}).base.workload.lengths
    assert merged is not None
    assert merged.model_dump() == {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 7}
    arrivals = {"kind": "constant", "rate_per_s": 5.0}
    replaced = changed(file, {"workload.arrivals": arrivals}).base.workload.arrivals
    assert replaced is not None
    assert replaced.kind == "constant"


def test_a_bare_kind_stands_for_a_policy_without_parameters(write: Write) -> None:
    file = load_scenario(write("kv_cache: contiguous\n"))
    other = changed(file, {"kv_cache.reservation": "oracle"}).base.kv_cache
    assert (other.kind, other.model_dump()["reservation"]) == ("contiguous", "oracle")
    assert changed(file, {"kv_cache": "paged"}).base.kv_cache.kind == "paged"


STAGES = """\
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
workload:
  arrivals:
    kind: stages
    stages:
      - {duration_s: 10.0, rate_per_s: 1.0}
      - {duration_s: 20.0, rate_per_s: 2.0}
  lengths: {kind: fixed, prompt_tokens: 100, output_tokens: 20}
"""


def test_a_step_into_a_list_is_its_place(write: Write) -> None:
    file = load_scenario(write(text=STAGES))
    place = "workload.arrivals.stages"
    arrivals = changed(file, {f"{place}.1.rate_per_s": 9.0}).base.workload.arrivals
    assert arrivals is not None
    rates = [stage["rate_per_s"] for stage in arrivals.model_dump()["stages"]]
    assert rates == [1.0, 9.0]
    for step in ("2", "-1", "first"):
        (problem,) = refused(file, {f"{place}.{step}.rate_per_s": 9.0})
        assert "is no place in a list of 2" in problem.message
        assert problem.path == f"{place}.{step}.rate_per_s"


@pytest.mark.parametrize(
    ("changes", "path", "said"),
    [
        ({"engine.max_num_seq": 4}, "engine.max_num_seq", "did you mean max_num_seqs?"),
        ({"engin.max_num_seqs": 4}, "engin", "did you mean engine?"),
        ({"engine.max_num_seqs": 0}, "engine.max_num_seqs", "greater than or equal to 1"),
        ({"engine.max_num_seqs": 4.5}, "engine.max_num_seqs", "integer"),
        ({"engine.max_num_seqs": "4"}, "engine.max_num_seqs", "integer"),
        ({"engine.max_num_seqs.x": 4}, "engine.max_num_seqs", ""),
        ({"seed.x": 4}, "seed", ""),
        ({"model": "meta-llama/Llama-3.1-8B"}, "model", "did you mean"),
        ({"gpu": "h100"}, "gpu", "did you mean"),
        ({"kv_cache": "pagd"}, "kv_cache", ""),
        ({"workload.arrivals.rate": 3.0}, "workload.arrivals", "rate_per_s"),
        ({"": 1}, "", ""),
        ({"engine.": 1}, "engine.", ""),
        ({"engine..x": 1}, "engine", ""),
    ],
)
def test_a_mistake_has_the_path_of_its_change(
    write: Write, changes: dict[str, Any], path: str, said: str
) -> None:
    problems = refused(load_scenario(write()), changes)
    assert all((problem.path or "").startswith(path) for problem in problems)
    assert any(said in problem.message for problem in problems)
    assert all(problem.file is None for problem in problems)


def test_all_mistakes_are_told_at_once(write: Write) -> None:
    problems = refused(
        load_scenario(write()), {"engine.max_num_seq": 4, "seed": -1, "workload.n": 0}
    )
    paths = {problem.path for problem in problems}
    assert paths == {"engine.max_num_seq", "seed", "workload.n"}


def test_a_scalar_has_nothing_within(write: Write) -> None:
    file = load_scenario(write("replicas: 3\n"))
    (problem,) = refused(file, {"replicas.x": 4})
    assert str(problem) == "replicas.x: there is nothing within the value 3"


def test_a_value_that_contradicts_another_one_is_told_by_the_change(write: Write) -> None:
    file = load_scenario(write("  n: 2\n"))
    (problem,) = refused(file, {"workload.beam_width": 4})
    assert problem.path == "workload.beam_width"
    assert "n and beam_width" in problem.message


def test_a_mistake_of_the_file_itself_is_located_there(write: Write) -> None:
    # A variant may be wrong only together with a change: the file's line is told for the rest.
    file = load_scenario(write("replicas: 2\nclass_slos: {}\n"))
    problems = refused(file, {"model": "no/model", "seed": -1})
    assert {problem.path for problem in problems} == {"model", "seed"}
    assert all(problem.file is None for problem in problems)


def test_the_number_at_a_path_is_found_in_plain_data():
    values = {"a": {"b": [1, {"c": 2.5}], "d": None, "e": True, "f": "text"}}
    assert (number_at(values, "a.b.0"), number_at(values, "a.b.1.c")) == (1, 2.5)
    for unset in ("a.d", "a.x", "a.b.2", "a.f.g", "x.y"):
        assert number_at(values, unset) is None
    for other in ("a", "a.b", "a.e", "a.f"):
        with pytest.raises(InputError, match=f"{other}: is no number"):
            number_at(values, other)
