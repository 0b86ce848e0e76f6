import re
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.from_server.flags import flags, human_readable_int, read_arguments
from kvsim.scenario.refusals import REFUSED
from kvsim.scenario.schema import Engine

SAID_OTHERWISE = {"kv_startup_line"}  # by an option of kvsim init: the server only logs it


def said(command):
    arguments = read_arguments(command.split())
    assert arguments.problems == []
    return arguments


def problems(command):
    return [str(problem) for problem in read_arguments(command.split()).problems]


def literals(annotation):
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in literals(part)]


def flat(annotation):
    return {annotation} | {kind for part in get_args(annotation) for kind in flat(part)}


def values_of(name):
    """Return what the field may hold besides None, by its own type and limits."""
    field = Engine.model_fields[name]
    kinds = flat(field.annotation)
    if literals(field.annotation):
        return st.sampled_from(literals(field.annotation))
    if bool in kinds:
        return st.booleans()
    if float in kinds:
        return st.floats(0.001, 0.999)
    assert int in kinds, f"no strategy for {name}"
    return st.integers(1, 1024)


@st.composite
def settings(draw):
    names = [name for name in Engine.model_fields if name not in SAID_OTHERWISE]
    one_size = ["num_gpu_blocks_override", "kv_cache_memory_bytes"]
    chosen = draw(st.sets(st.sampled_from(names)))
    if chosen >= set(one_size):
        chosen -= {draw(st.sampled_from(one_size))}
    return {name: draw(values_of(name)) for name in sorted(chosen)}


@given(settings(), st.booleans(), st.booleans(), st.randoms())
def test_every_setting_of_a_replica_can_be_said_by_a_flag_and_comes_back(
    engine, underscores, glued, random
):
    words = []
    for name, value in engine.items():
        flag = name if underscores else name.replace("_", "-")
        if isinstance(value, bool):
            words.append([f"--{flag}" if value else f"--no-{flag}"])
        else:
            words.append([f"--{flag}={value}"] if glued else [f"--{flag}", str(value)])
    words.insert(random.randint(0, len(words)), ["owner/model"])
    arguments = read_arguments([word for group in words for word in group])
    assert arguments.problems == []
    assert arguments.model == "owner/model"
    assert arguments.settings == engine
    assert Engine.model_validate(arguments.settings).model_dump(include=set(engine)) == engine


@given(st.sampled_from(sorted(set(flags()))), st.sampled_from(["", "1", "x", '{"a": 1}', "None"]))
def test_any_flag_of_the_table_is_read_without_a_crash(flag, value):
    read_arguments(["m", flag, value] if value else ["m", flag])
    read_arguments([f"{flag}={value}"])


@given(st.lists(st.text(max_size=12)))
def test_any_words_are_read_or_told(words):
    read_arguments(words)


def test_the_table_knows_every_setting_that_a_scenario_has_or_refuses():
    settings = {flag.setting for flag in flags().values()}
    in_files_only = {"no_enable_prefix_caching"}
    assert (set(Engine.model_fields) | set(REFUSED)) - settings == SAID_OTHERWISE | in_files_only


def test_each_flag_of_the_table_has_its_treatment_and_its_reason():
    for flag in flags().values():
        assert flag.values in {"switch", "one", "many", "optional"}
        assert re.fullmatch(r"[a-z0-9-]+", flag.name)
        if flag.treatment == "scenario":
            assert flag.setting in {"model", *Engine.model_fields, *REFUSED}
        else:
            assert flag.setting not in {*Engine.model_fields, *REFUSED}
        assert bool(flag.remark) == (flag.treatment in {"noted", "refused"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("1k", 1000),
        ("1K", 1024),
        ("25.6k", 25_600),
        ("1.5M", None),
        ("1.5m", 1_500_000),
        ("2M", 2**21),
        ("40G", 40 * 2**30),
        ("1.5", None),
        ("-1", None),
        ("k", None),
        ("1kk", None),
        ("", None),
    ],
)
def test_numbers_are_read_as_vllm_reads_them(text, value):
    if value is None:
        with pytest.raises(ValueError, match=re.escape(repr(text))):
            human_readable_int(text)
    else:
        assert human_readable_int(text) == value


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("m -tp 2 -q fp8", {"tensor_parallel_size": 2, "quantization": "fp8"}),
        ("m -tp=2", {"tensor_parallel_size": 2}),
        ("m --device-memory-utilization .9", {"gpu_memory_utilization": 0.9}),
        ("m --max-model-len 32k", {"max_model_len": 32_000}),
        ("m --max-model-len 1 --max-model-len 2", {"max_model_len": 2}),
        ("m --max-num-batched-tokens 16K", {"max_num_batched_tokens": 16_384}),
        ("m --kv-cache-memory-bytes 40G", {"kv_cache_memory_bytes": 40 * 2**30}),
        ("m --enable-chunked-prefill=False", {"enable_chunked_prefill": False}),
        ("m --enable-chunked-prefill false", {"enable_chunked_prefill": False}),
        ("m --disable-chunked-prefill", {"enable_chunked_prefill": False}),
        ("m --no-enforce-eager", {"enforce_eager": False}),
        ("m --quantization None", {"quantization": None}),
    ],
)
def test_spellings(command, settings):
    assert said(command).settings == settings


@pytest.mark.parametrize(
    "command",
    [
        "--port 8000 m --host 0.0.0.0",
        "--model m --served-model-name a b c --seed 0",
        "--api-key $KEY --hf-token m",
        "m --hf-token --trust-remote-code",
        "--enable-auto-tool-choice m --tool-call-parser hermes",
        'm --override-generation-config {"temperature":0}',
        "m --default-chat-template-kwargs.enable_thinking false",
    ],
)
def test_what_capacity_does_not_depend_on(command):
    arguments = said(command)
    assert arguments.settings == {}
    assert arguments.notes == []
    assert arguments.model == ("m" if "--hf-token m" not in command else None)
    assert arguments.irrelevant == [
        word for word in command.split() if word.startswith("--") and word != "--model"
    ]


@pytest.mark.parametrize("flags", ["-O3", "-O 3", "-O.mode=3", "-cc.mode 3", "--moe-backend x"])
def test_a_small_effect_is_noted(flags):
    assert len(said(f"m {flags}").notes) == 1


@pytest.mark.parametrize(
    "flags",
    [
        "-dcp 1 --swap-space 0 --cpu-offload-gb 0.0 --no-enable-lora",
        "--speculative-config None --limit-mm-per-prompt {}",
        "--task generate --runner auto --load-format safetensors --nnodes 1",
    ],
)
def test_a_feature_that_is_off_is_no_problem(flags):
    assert said(f"m {flags}").settings == {}


@pytest.mark.parametrize(
    ("flags", "setting"),
    [
        ("--decode-context-parallel-size 2", "decode_context_parallel_size"),
        ("-dcp=4", "decode_context_parallel_size"),
        ('--speculative-config {"method":"ngram"}', "speculative_config"),
        ("-sc.method ngram", "speculative_config"),
        ("--speculative-model x", "speculative_config"),
        ("--enable-lora", "enable_lora"),
        ("--lora-modules a=b c=d", "enable_lora"),
        ('--kv-transfer-config {"kv_connector":"NixlConnector"}', "kv_transfer_config"),
        ("--swap-space 4", "swap_space"),
    ],
)
def test_what_is_not_modeled_is_refused_in_the_words_of_a_scenario(flags, setting):
    written = re.split("[ =]", flags, maxsplit=1)[0]
    assert problems(f"m {flags}") == [f"{written}: {REFUSED[setting].why}"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--max-num-seq 3", "--max-num-seq: unknown flag; did you mean --max-num-seqs?"),
        ("--xyzzy 3 4", "--xyzzy: unknown flag"),
        ("--max-num-seqs 1k", "--max-num-seqs: '1k' is not a whole number"),
        ("--max-num-seqs", "--max-num-seqs: needs a value"),
        ("--max-num-seqs --port 8000", "--max-num-seqs: needs a value"),
        ("--watermark much", "--watermark: 'much' is not a number"),
        ("--enforce-eager=maybe", "--enforce-eager: takes no value, not 'maybe'"),
        ("--max-model-len auto", "--max-model-len: auto fits it to the memory"),
        ("--max-model-len $LEN", "--max-model-len: $LEN is set somewhere else"),
        ("$MORE_ARGS", "$MORE_ARGS is set somewhere else"),
        ("--config no/x.yaml", "no/x.yaml: can't be read: No such file or directory"),
        ("--task embed", "--task: only generation is modeled"),
        ("--load-format gguf", "--load-format: weights in this format are not modeled"),
        ("more", "'more' is neither a flag nor the value of one"),
    ],
)
def test_mistakes(flags, message):
    (problem,) = problems(f"m {flags}")
    assert problem.startswith(message)


def test_a_file_of_settings_counts_less_than_the_command(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        """\
model: a/b
tensor-parallel-size: 4
max_num_seqs: 8
enable-prefix-caching: false
enforce-eager: true
served-model-name: [x, y]
compilation-config: {mode: 3}
speculative-config: {method: ngram}
port: 8000
"""
    )
    for command in (f"--config {file} -tp 2 m", f"m -tp 2 --config={file}", f"--config {file}"):
        arguments = read_arguments(command.split())
        assert arguments.model == ("m" if "m" in command.split() else "a/b")
        assert arguments.settings == {
            "tensor_parallel_size": 2 if "-tp" in command else 4,
            "max_num_seqs": 8,
            "enable_prefix_caching": False,
            "enforce_eager": True,
        }
        assert arguments.irrelevant == ["--served-model-name", "--port"]
        assert len(arguments.notes) == 1
        assert [str(problem) for problem in arguments.problems] == [
            f"--speculative-config: {REFUSED['speculative_config'].why}"
        ]


def test_all_mistakes_are_told_at_once():
    assert len(problems("m x --max-num-seqs a --enable-lora -dcp 2 --typo 1 --block-size 16")) == 5
