import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.scenario.load import deep_merge, load_scenario
from kvsim.scenario.profiles import DEFAULT_PROFILE
from kvsim.scenario.refusals import REFUSED
from kvsim.scenario.schema import AffineStepCost, Engine, Scenario


def problems_of(path: Path) -> list[tuple[int | None, str | None, str]]:
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    assert {problem.file for problem in caught.value.problems} == {str(path)}
    return [(p.line, p.path, p.message) for p in caught.value.problems]


def only_problem(path: Path) -> tuple[int | None, str | None, str]:
    (problem,) = problems_of(path)
    return problem


def test_a_bare_kind_within_the_workload_is_told_how_it_is_written(write):
    good = write().read_text()
    bare = write(text=good.replace("{kind: poisson, rate_per_s: 2.0}", "all_at_once"))
    line, path, message = only_problem(bare)
    assert (line, path) == (4, "workload.arrivals")
    assert message == "should be a mapping; a kind is written as {kind: all_at_once} here"


def test_a_good_scenario_has_its_defaults(write):
    file = load_scenario(write(name="my chat.yaml"))
    assert list(file.variants) == ["base"]
    assert file.base.name == "my chat"
    assert file.base.kv_cache.kind == "paged"
    assert file.base.cost.profile == DEFAULT_PROFILE
    assert file.base.cost.overhead is None
    assert file.base.slo is None
    assert file.base.oversized_requests == "refuse"


# The good scenario has 6 lines, so the first line that is added is line 7.
@pytest.mark.parametrize(
    ("more", "line", "path", "message"),
    [
        ("replcas: 2", 7, "replcas", "unknown key; did you mean replicas?"),
        ("zzz: 2", 7, "zzz", "unknown key; known are class_slos, cost"),
        ("replicas: 0", 7, "replicas", "greater than or equal to 1, not 0"),
        ("replicas: two", 7, "replicas", "should be a valid integer, not 'two'"),
        ("replicas: 1.5", 7, "replicas", "should be a valid integer, not 1.5"),
        ("replicas: true", 7, "replicas", "should be a valid integer, not True"),
        ("seed: -1", 7, "seed", "greater than or equal to 0, not -1"),
        ("warmup_s: .inf", 7, "warmup_s", "should be a finite number, not inf"),
        ("warmup_s: -1", 7, "warmup_s", "greater than or equal to 0, not -1"),
        ("name: a/b", 7, "name", "no dot at its start"),
        ("name: ..", 7, "name", "no dot at its start"),
        ("engine: 3", 7, "engine", "should be a mapping"),
        ("engine:\n  max_num_seq: 3", 8, "engine.max_num_seq", "did you mean max_num_seqs?"),
        ("engine:\n  max-num-seqs: 3", 8, "engine.max-num-seqs", "did you mean max_num_seqs?"),
        ("engine:\n  max_num_seqs: -3", 8, "engine.max_num_seqs", "or equal to 1, not -3"),
        ("engine: {watermark: 1.0}", 7, "engine.watermark", "less than 1, not 1.0"),
        ("engine: {dtype: float32}", 7, "engine.dtype", "'half', not 'float32'"),
        ("engine: {quantization: awq}", 7, "engine.quantization", "or 'mxfp4', not 'awq'"),
        ("kv_cache: contigous", 7, "kv_cache.kind", "did you mean contiguous?"),
        ("kv_cache:\n  kind: zzz", 8, "kv_cache.kind", "known are contiguous, paged"),
        ("kv_cache:\n  reservation: oracle", 8, "kv_cache.reservation", "unknown key"),
        (
            "kv_cache: {kind: contiguous, placement: buddy,\n  compaction: true}",
            7, "kv_cache", "buddy chunks can't slide",
        ),
        (
            "kv_cache:\n  kind: contiguous\n  compaction: true\n  compaction_bytes_per_s: .inf",
            10, "kv_cache.compaction_bytes_per_s", "should be a finite number, not inf",
        ),
        (
            "engine: {num_gpu_blocks_override: 9, kv_cache_memory_bytes: 9}",
            7, "engine", "num_gpu_blocks_override and kv_cache_memory_bytes each give the size",
        ),
        (
            "variants: {a: {max_simulated_s: 3}}",
            7, "variants.a.max_simulated_s", "can't differ between variants: all variants face",
        ),
        ("routing: {kind: round_robbin}", 7, "routing.kind", "did you mean round_robin?"),
        ("cost:\n  overhead:\n    fixd_s: 1", 9, "cost.overhead.fixd_s", "did you mean fixed_s?"),
        ("cost: {kind: affine, per_token_s: 1}", 7, "cost.per_token_s", "mean per_token_ns?"),
        ("slo: {ttft_p99: 1}", 7, "slo.ttft_p99", "did you mean ttft_p99_s?"),
        ("slo: {tfft_p99_s: 1}", 7, "slo.tfft_p99_s", "did you mean ttft_p99_s?"),
        ("slo:\n  ttft_p99_s: -1", 8, "slo.ttft_p99_s", "or equal to 0, not -1"),
        ("slo:\n  max_failed_fraction: 2", 7, "slo", "at most 1"),
        ("name: \"a\\u202Eb\"", 7, "name", "'a\\u202eb' has characters that don't print"),
        ("name: \"a\\u2028b\"", 7, "name", "don't print"),
        ("name: \"a\\x7Fb\"", 7, "name", "don't print"),
        ("name: \"a\\eb\"", 7, "name", "don't print"),
        ("variants: {\"a\\eb\": {}}", 7, "variants.a\\x1bb", "don't print"),
        ("slo: {ttft_p٩٩_s: 1}", 7, "slo.ttft_p٩٩_s", "plain ASCII; did you mean"),
        ("routing: 5", 7, "routing", "should be a kind (least_"),
        ("cost: 5", 7, "cost", "should be a kind (kernels, affine) or a mapping"),
        ("replicas: 1025", 7, "replicas", "less than or equal to 1024, not 1025"),
        ("cost: {kind: affine, fixed_ns: 1.0e+18}", 7, "cost.fixed_ns", "less than or equal to"),
        ("cost: {kind: affine, per_seq_ns: 1.0e+10}", 7, "cost.per_seq_ns", "less than or equal"),
        (
            "engine: {num_gpu_blocks_override: 100000001}",
            7, "engine.num_gpu_blocks_override", "less than or equal to 100000000",
        ),
        (
            "engine: {kv_cache_memory_bytes: 100000000000001}",
            7, "engine.kv_cache_memory_bytes", "less than or equal to 100000000000000",
        ),
        ("variants: 3", 7, "variants", "should be a mapping"),
        ("variants:\n  a: 3", 8, "variants.a", "should be a mapping"),
        ("variants:\n  base: {}", 8, "variants.base", "names the scenario without overrides"),
        ("variants:\n  a:\n    replicas: 0", 9, "variants.a.replicas", "not 0"),
        ("variants:\n  a:\n    engine: {x: 1}", 9, "variants.a.engine.x", "unknown key"),
        ("variants:\n  a:\n    seed: 3", 9, "variants.a.seed", "face the same requests"),
        (
            "variants:\n  a:\n    workload: {n: 3}",
            9, "variants.a.workload", "can't differ between variants: all variants face the same",
        ),
        (
            "variants:\n  a:\n    gpu: {name: x, hbm_bytes: 8.0e10, hbm_bytes_per_s: 2.0e12}",
            9, "variants.a.gpu.bf16_flop_per_s", "is required",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_line_and_path(write, more, line, path, message):
    found = only_problem(write(more + "\n"))
    assert found[:2] == (line, path)
    assert message in found[2]


@pytest.mark.parametrize(
    ("old", "new", "line", "path", "message"),
    [
        ("Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instrct", 1, "model", "did you mean meta-llama"),
        ("h100_sxm", "h100sxm", 2, "gpu", "did you mean h100_sxm"),
        ("h100_sxm", "{name: h100_sxm, hbm_bytes: 1.0, hbm_bytes_per_s: 1.0, bf16_flop_per_s: 1.0}",
         2, "gpu.name", "choose another name"),
        ("h100_sxm", "5", 2, "gpu", "name of the catalog or a mapping of figures, not 5"),
        ("num_requests", "max_tokens: 9223372036854775808\n  num_requests",
         6, "workload.max_tokens", "must be from 1 to 1000000000"),
        ("num_requests: 10", "num_requests: 60000000\n  n: 2", 3, "workload", "1.2e+08 requests"),
        ("{kind: fixed, prompt_tokens: 100, output_tokens: 20}",
         '{kind: empirical, file: "a\\0b"}', 5, "workload.lengths.file", "don't print"),
        ("h100_sxm", '"a\\0b"', 2, "gpu", "'a\\x00b' has characters that don't print"),
        ("meta-llama/Llama-3.1-8B-Instruct", '"a\\0b"', 1, "model", "don't print"),
        ("h100_sxm", "''", 2, "gpu", "is empty"),
        ("meta-llama/Llama-3.1-8B-Instruct", "''", 1, "model", "is empty"),
        ("gpu: h100_sxm\n", "", None, "gpu", "is required"),
        ("model:", "modell:", 1, "modell", "did you mean model?"),
        ("kind: poisson", "kind: poison", 4, "workload.arrivals.kind", "did you mean poisson?"),
        ("kind: poisson, ", "", 4, "workload.arrivals.kind", "is required"),
        ("rate_per_s: 2.0", "rate_per_s: -2", 4, "workload.arrivals.rate_per_s", "not -2"),
        ("rate_per_s: 2.0", "rate_per_s: 0", 4, "workload.arrivals.rate_per_s", "0.0001, not 0"),
        (", output_tokens: 20", "", 5, "workload.lengths.output_tokens", "is required"),
        ("num_requests", "num_prompts", 6, "workload.num_prompts", "did you mean num_requests?"),
        ("num_requests: 10", "max_tokens: all", 6, "workload.max_tokens", "'output'"),
        ("kind: fixed, prompt_tokens: 100, output_tokens: 20", "kind: trace",
         3, "workload", "need a file"),
        ("kind: poisson, rate_per_s: 2.0", "kind: stages, stages: [{qps: 2, duration_s: 5}]",
         4, "workload.arrivals.stages.0.qps", "did you mean rate_per_s?"),
        ("num_requests: 10", "num_requests: 10\n  classes: {chat: {}}\nclass_slos:\n  chatt: {}",
         8, "class_slos", "no class 'chatt'; did you mean chat?"),
        ("num_requests: 10", "num_requests: 10\nclass_slos:\n  chat: {ttft_p99_s: 1}",
         7, "class_slos", "no class 'chat'; known are none"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_good_lines(write, tmp_path, old, new, line, path, message):
    text = write().read_text()
    assert old in text
    found = problems_of(write(text=text.replace(old, new)))
    assert any(
        place == line and name == path and message in words for place, name, words in found
    ), found


def test_all_mistakes_are_told_in_one_go_in_the_order_of_the_file(write):
    more = "replicas: 0\nengine:\n  max_num_seqs: -1\n  enable_lora: true\nslo: {x: 1}\nbad: 1\n"
    text = write().read_text().replace("h100_sxm", "h1000").replace("2.0", "-2.0")
    found = problems_of(write(more, text=text))
    assert [(line, path) for line, path, _ in found] == [
        (2, "gpu"),
        (4, "workload.arrivals.rate_per_s"),
        (7, "replicas"),
        (9, "engine.max_num_seqs"),
        (10, "engine.enable_lora"),
        (11, "slo.x"),
        (12, "bad"),
    ]


def test_a_mistake_of_the_base_is_told_once_though_variants_inherit_it(write):
    more = "engine: {max_num_seqs: -1, enable_lora: true}\nvariants: {a: {engine: {}}, b: {}}\n"
    found = problems_of(write(more))
    assert [path for _, path, _ in found] == ["engine.enable_lora", "engine.max_num_seqs"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_modeled_is_refused_by_name(write, name):
    found = problems_of(write(f"engine:\n  block_size: 16\n  {name}: 17\n"))
    assert found == [(9, f"engine.{name}", REFUSED[name].why)]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_saying_that_such_a_feature_is_off_changes_nothing(write, name):
    for value in REFUSED[name].neutral:
        file = load_scenario(write(f"engine:\n  {name}: {json.dumps(value)}\n"))
        assert file.base.engine == Engine()


def test_what_is_not_modeled_is_refused_in_variants_too(write):
    more = "variants:\n  ahead:\n    engine:\n      enable_lora: true\n"
    line, path, message = only_problem(write(more))
    assert (line, path) == (10, "variants.ahead.engine.enable_lora")
    assert "not modeled" in message


def test_variants_are_merged(write):
    more = """\
engine: {max_num_seqs: 64, block_size: 32}
kv_cache: {kind: contiguous, reservation: max_tokens}
cost: {kind: affine, fixed_ns: 5.0}
variants:
  more_seqs: {engine: {max_num_seqs: 128}}
  paged: {kv_cache: {kind: paged, null_block: false}}
  best_fit: {kv_cache: {placement: best_fit}}
  own_gpu: {gpu: {name: x, hbm_bytes: 8.0e10, hbm_bytes_per_s: 2.0e12, bf16_flop_per_s: 1.0e15}}
  slower: {cost: {per_token_ns: 3}}
  routed: {routing: least_requests, replicas: 2}
"""
    variants = load_scenario(write(more)).variants
    base = variants["base"]
    assert list(variants)[1:] == ["more_seqs", "paged", "best_fit", "own_gpu", "slower", "routed"]
    assert variants["more_seqs"].engine == Engine(max_num_seqs=128, block_size=32)
    assert variants["paged"].kv_cache.model_dump() == {"kind": "paged", "null_block": False}
    assert variants["best_fit"].kv_cache.reservation == "max_tokens"
    assert variants["best_fit"].kv_cache.placement == "best_fit"
    assert variants["own_gpu"].gpu.name == "x"
    assert variants["slower"].cost == AffineStepCost(fixed_ns=5.0, per_token_ns=3)
    assert variants["routed"].routing.kind == "least_requests"
    for variant in variants.values():
        assert variant.workload == base.workload
        assert variant.variants == {} or variant is base


@pytest.mark.parametrize(
    ("base", "override", "merged"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}),
        ({"a": {"b": 1}}, {"a": None}, {"a": None}),
        ({"a": "x"}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"k": {"kind": "p", "x": 1}}, {"k": {"kind": "q"}}, {"k": {"kind": "q"}}),
        ({"k": {"kind": "p", "x": 1}}, {"k": {"kind": "p"}}, {"k": {"kind": "p", "x": 1}}),
        ({"k": {"kind": "p", "x": 1}}, {"k": {"x": 2}}, {"k": {"kind": "p", "x": 2}}),
    ],
)
def test_deep_merge_by_example(base, override, merged):
    assert deep_merge(base, override) == merged


TREES = st.recursive(
    st.none() | st.integers(0, 3) | st.text("ab", max_size=1),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "c", "kind"]), inner, max_size=3),
    max_leaves=12,
)
MAPPINGS = st.dictionaries(st.sampled_from(["a", "b", "c"]), TREES, max_size=3)


@given(base=MAPPINGS, override=MAPPINGS)
def test_deep_merge_keeps_what_is_not_overridden(base, override):
    before = repr(base), repr(override)
    merged = deep_merge(base, override)
    assert (repr(base), repr(override)) == before
    assert deep_merge(base, {}) == base
    assert deep_merge({}, override) == override
    assert deep_merge(merged, override) == merged
    assert merged.keys() == base.keys() | override.keys()
    for key in merged:
        if key not in override:
            assert merged[key] == base[key]


def test_paths_start_at_the_scenario_file(write, tmp_path):
    (tmp_path / "lengths.csv").write_text("prompt_tokens,output_tokens\n3,4\n")
    lengths = "lengths: {kind: empirical, file: lengths.csv}"
    text = (
        write()
        .read_text()
        .replace("lengths: {kind: fixed, prompt_tokens: 100, output_tokens: 20}", lengths)
    )
    base = load_scenario(write(text=text)).base
    prompt, _ = base.workload.lengths.lengths_tokens(2, np.random.default_rng(0))
    assert prompt.tolist() == [3, 3]
    assert base.workload.lengths.model_dump()["file"] == "lengths.csv"


def test_every_scenario_that_ships_loads_and_asks_its_question():
    files = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
    assert len(files) >= 7
    for path in files:
        file = load_scenario(path)
        assert file.question.endswith("?"), path
        assert file.base.name == path.stem


def test_programs_may_write_scenarios_too():
    data = {
        "model": "m",
        "gpu": "g",
        "routing": "least_requests",
        "workload": {
            "arrivals": {"kind": "all_at_once"},
            "lengths": {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1},
            "num_requests": 1,
        },
        "slo": {"ttft_p99.9_s": 1, "e2e_max_s": 2},
    }
    scenario = Scenario.model_validate(data)
    assert scenario.slo == {"max_failed_fraction": 0.001, "ttft_p99.9_s": 1, "e2e_max_s": 2}
    assert Scenario.model_validate(scenario.model_dump()) == scenario
