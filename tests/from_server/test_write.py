import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from kvsim.errors import InputError
from kvsim.from_server.draft import _PRODUCTS, Additions, _scalar, draft_of
from kvsim.from_server.find import Server, find_server
from kvsim.from_server.write import write_scenario
from kvsim.gpu import gpu_names
from kvsim.model import model_names
from kvsim.scenario.load import load_scenario
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def written(tmp_path, server, **additions):
    """Return the scenario that is written, resolved, its requests drawn, and the sentences."""
    if isinstance(server, str):
        server = find_server(server)
    draft = draft_of(server, Additions(**additions), tmp_path)
    out = tmp_path / "scenario.yaml"
    write_scenario(draft, out)
    file = load_scenario(out)
    variants = resolve_all(file)
    draw_requests(file, variants)
    assert [path.name for path in tmp_path.glob("kvsim-init*")] == []
    text = " ".join(out.read_text().replace("\n#", " ").split())
    for sentence in draft.assumed:
        assert sentence in text
    return file.base, draft.assumed


def refused(tmp_path, server, out="scenario.yaml", **additions):
    if isinstance(server, str):
        server = find_server(server)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError) as told:
        write_scenario(draft_of(server, Additions(**additions), tmp_path), tmp_path / out)
    assert sorted(tmp_path.iterdir()) == before
    return [str(problem) for problem in told.value.problems]


def test_what_the_command_says_is_what_the_scenario_says(tmp_path):
    scenario, assumed = written(
        tmp_path,
        f"vllm serve {LLAMA} -tp 2 --max-model-len 16k --no-enable-prefix-caching "
        "--max-num-seqs 64 --gpu-memory-utilization 0.9 --api-key secret --port 80",
        gpu="a100_sxm",
    )
    assert scenario.model == LLAMA
    assert scenario.gpu == "a100_sxm"
    assert scenario.replicas == 1
    assert scenario.engine.model_dump(exclude_unset=True) == {
        "tensor_parallel_size": 2,
        "max_model_len": 16_000,
        "enable_prefix_caching": False,
        "max_num_seqs": 64,
        "gpu_memory_utilization": 0.9,
    }
    assert "secret" not in (tmp_path / "scenario.yaml").read_text()
    assert not any("gpu is" in sentence for sentence in assumed)


def test_nothing_but_a_model_is_enough(tmp_path):
    scenario, assumed = written(tmp_path, f"vllm serve {LLAMA}")
    assert scenario.engine.model_fields_set == set()
    subjects = ("gpu is h100_sxm", "costs", "default of vLLM", "the traffic", "the targets")
    for subject, sentence in zip(subjects, assumed, strict=True):
        assert subject in sentence


@pytest.mark.parametrize("length", [2, 7, 100, 4096])
def test_the_assumed_requests_fit_any_context(tmp_path, length):
    written(tmp_path, f"vllm serve {LLAMA} --max-model-len {length}")


def test_the_cluster_tells_the_gpu_and_the_replicas(tmp_path):
    server = Server([LLAMA], replicas=3, gpus=1, gpu_product="NVIDIA-L40S", image_tag="v0.33.0")
    scenario, assumed = written(tmp_path, server)
    assert (scenario.gpu, scenario.replicas) == ("l40s", 3)
    assert scenario.workload.arrivals.rate_per_s == 3.0
    assert not any("gpu is" in sentence or "vLLM" in sentence for sentence in assumed)


def test_the_users_word_on_the_gpu_counts_more(tmp_path):
    server = Server([LLAMA], gpu_product="NVIDIA-L40S")
    assert written(tmp_path, server, gpu="h200_sxm")[0].gpu == "h200_sxm"


def test_products_are_gpus_of_the_catalog():
    assert set(_PRODUCTS.values()) <= set(gpu_names())


def test_what_the_cluster_has_is_compared_with_what_the_command_uses(tmp_path):
    _, assumed = written(tmp_path, Server([LLAMA], "it", gpus=4, gpu_product="unheard-of"))
    assert any("it has 4 GPUs and uses 1" in sentence for sentence in assumed)
    assert any("known as unheard-of" in sentence for sentence in assumed)
    (tmp_path / "scenario.yaml").unlink()
    assert refused(tmp_path, Server([LLAMA, "-tp", "2"], "it", gpus=1)) == [
        "--tensor-parallel-size 2, but it has 1 GPUs"
    ]


def test_another_version_is_told(tmp_path):
    _, assumed = written(tmp_path, Server([LLAMA], image_tag="v0.8.5"))
    assert any("the image is v0.8.5" in sentence for sentence in assumed)


def test_a_trace_is_replayed_from_where_it_is(tmp_path):
    trace = tmp_path / "logs" / "my log.csv"
    trace.parent.mkdir()
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4,5\n")
    scenario, assumed = written(tmp_path, f"vllm serve {LLAMA}", trace=trace)
    assert scenario.workload.arrivals.file == "logs/my log.csv"
    assert not any("traffic" in sentence for sentence in assumed)


def test_the_startup_line_sizes_the_cache(tmp_path):
    line = "INFO [kv_cache_utils.py:864] GPU KV cache size: 432,000 tokens"
    scenario, _ = written(tmp_path, f"vllm serve {LLAMA}", kv_startup_line=line)
    assert scenario.engine.kv_startup_line == line


def test_a_model_of_the_users_own(tmp_path):
    import kvsim

    config = Path(kvsim.__file__).parent / "data" / "models" / "Qwen--Qwen3-8B.json"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(config.read_text())
    scenario, _ = written(tmp_path, "vllm serve me/mine", model=str(tmp_path / "mine"))
    assert scenario.model == "mine"
    (tmp_path / "scenario.yaml").unlink()
    assert written(tmp_path, "vllm serve $MODEL", model=LLAMA)[0].model == LLAMA


def test_a_quantization_that_the_checkpoint_says_itself(tmp_path):
    scenario, assumed = written(tmp_path, "vllm serve openai/gpt-oss-20b --quantization mxfp4")
    assert scenario.engine.quantization is None
    assert any("--quantization mxfp4: the checkpoint says it" in sentence for sentence in assumed)


@pytest.mark.parametrize("model", ["/models/Llama-3.1-8B-Instruct", "meta-llama/LLama-3.1-8B-Inst"])
def test_a_model_out_of_the_catalog_is_told_with_those_that_come_close(tmp_path, model):
    (problem,) = refused(tmp_path, f"vllm serve {model}")
    assert f"model '{model}' is not in the catalog; did you mean {LLAMA}" in problem
    assert "config.json" in problem


def test_problems_of_the_command_and_of_its_scenario_come_together(tmp_path):
    server = f"vllm serve {LLAMA} --enable-lora --typo --max-model-len 999999 --block-size 0"
    problems = refused(tmp_path, server, gpu="h1000")
    assert [problem.split(":")[0] for problem in problems] == [
        "--enable-lora",
        "--typo",
        "gpu",
        "--block-size",
    ]
    server = f"vllm serve {LLAMA} -tp 3 --max-model-len 999999 -dcp 2"
    assert [problem.split(":")[0] for problem in refused(tmp_path, server)] == [
        "-dcp",
        "--tensor-parallel-size",
        "--max-model-len",
    ]


@pytest.mark.parametrize(
    ("server", "additions", "message"),
    [
        ("vllm serve", {}, "no model: expected `vllm serve MODEL ...`"),
        (
            f"vllm serve {LLAMA} --quantization awq",
            {},
            "--quantization: should be 'fp8', 'int8', 'int4', 'nvfp4' or 'mxfp4', not 'awq'",
        ),
        (f"vllm serve {LLAMA}", {"trace": Path("no.csv")}, "no.csv: no such file"),
        (f"vllm serve {LLAMA}", {"gpu": "h100"}, "gpu: GPU 'h100' is not in the catalog"),
        (f"vllm serve {LLAMA}", {"kv_startup_line": "x"}, "kv_startup_line: "),
    ],
)
def test_one_mistake_is_one_message(tmp_path, server, additions, message):
    (problem,) = refused(tmp_path, server, **additions)
    assert message in problem


def test_a_model_too_large_for_the_assumed_gpu_says_that_it_was_assumed(tmp_path):
    fit, assumed = refused(tmp_path, "vllm serve meta-llama/Llama-3.1-70B-Instruct")
    assert "does not fit h100_sxm" in fit
    assert assumed == "the GPU is assumed: choose yours with --gpu"
    assert len(refused(tmp_path, "vllm serve meta-llama/Llama-3.1-70B-Instruct", gpu="l4")) == 1


def test_a_file_is_overwritten_only_if_asked(tmp_path):
    out = tmp_path / "scenario.yaml"
    out.write_text("mine")
    server = f"vllm serve {LLAMA}"
    assert refused(tmp_path, server) == [f"{out}: exists; --force overwrites it"]
    assert out.read_text() == "mine"
    draft = draft_of(find_server(server), Additions(), tmp_path)
    write_scenario(draft, out, force=True)
    assert out.read_text() == draft.text


@given(
    st.one_of(
        st.text(), st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)
    )
)
def test_scalars_are_read_back_as_they_were(value):
    read = YAML(typ="safe", pure=True).load(f"key: {_scalar(value)}\n")["key"]
    assert read == value
    assert isinstance(read, type(value))
    assert "\n" not in _scalar(value)


def test_names_of_the_catalog_stand_plain():
    plain = [name for name in [*model_names(), *gpu_names()] if name[0].isalpha()]
    assert plain == [_scalar(name) for name in plain]
    assert _scalar("no") == '"no"'


@pytest.mark.parametrize("words", ['"${ARGS[@]}"', '"$@"', "$*"])
def test_a_list_of_words_is_no_model(tmp_path, words):
    told = refused(tmp_path, f"vllm serve {words}", model="meta-llama/Llama-3.1-8B-Instruct")
    assert told == [f"{words.strip(chr(34))} is set somewhere else: put the words in its place"]


def test_a_variable_in_place_of_the_model_is_said_to_be_the_model(tmp_path):
    name = "meta-llama/Llama-3.1-8B-Instruct"
    draft = draft_of(find_server("vllm serve $M"), Additions(model=name), tmp_path)
    assert "$M holds the model, and no flags." in draft.assumed


def test_what_is_no_file_is_never_replaced(tmp_path):
    out = tmp_path / "pipe"
    os.mkfifo(out)
    draft = draft_of(find_server("vllm serve m"), Additions(), tmp_path)
    with pytest.raises(InputError, match="is no file that could be replaced"):
        write_scenario(draft, out, force=True)
