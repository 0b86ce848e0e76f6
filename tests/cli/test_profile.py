"""`kvsim profile`: the shapes, the refusals, the tables on a CPU."""

import json
import sys

import pandas as pd
import pytest

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}
SMALL = ["--max-num-batched-tokens", 16, "--max-num-seqs", 1]


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return tmp_path / "config.json"


def test_dry_run_shows_the_shapes_and_needs_no_torch(command_line, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    done = command_line("profile", "--model", "Qwen/Qwen3-30B-A3B", "--dry-run")
    assert done.returncode == 0
    assert "bfloat16 n 151936 k 2048, m 1 2 4 " in done.stdout
    assert "heads 32/4 of 128" in done.stdout
    assert "Not timed: routed experts" in done.stdout


def test_without_torch_one_message_names_the_extra(command_line, tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    done = command_line("profile", "--model", tiny, "--out", "mine")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "kvsim[profile]" in line
    assert {path.name for path in tmp_path.iterdir()} == {"config.json"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "nobody/nothing"], "neither in the catalog"),
        (["--model", "meta-llama/Llama-3.1-8B-Instruct", "--tensor-parallel-size", 3], "divided"),
        (["--model", "Qwen/Qwen3-32B-FP8", "--quantization", "fp8"], "is quantized already"),
        (["--model", "Qwen/Qwen3-0.6B", "--device", "cpu", "--out", "."], "choose another --out"),
    ],
)
def test_mistakes_are_told_before_anything_is_timed(command_line, tmp_path, arguments, said):
    (tmp_path / "mine").write_text("notes")
    done = command_line("profile", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_machine_without_a_gpu_is_told_about_the_cpu(command_line, tiny, tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = command_line("profile", "--model", tiny, "--out", "mine")
    assert done.returncode == 2
    assert "--device cpu" in done.stderr
    assert not (tmp_path / "mine").exists()


def test_tables_of_a_cpu_have_the_format_and_say_cpu(command_line, tiny, tmp_path):
    pytest.importorskip("torch")
    asked = ["profile", "--model", tiny, "--device", "cpu", *SMALL, "--format", "csv"]
    done = command_line(*asked, "--quantization", "fp8", "--out", "mine")
    assert done.returncode == 0, done.stderr
    assert "Timed on a CPU" in done.stdout
    about = json.loads((tmp_path / "mine" / "profile.json").read_text())
    assert about["gpu"] == "cpu"
    assert [entry["table"] for entry in about["refused"]] == ["attention_layouts"]
    tables = {path.stem: pd.read_csv(path) for path in (tmp_path / "mine").glob("*.csv")}
    assert all(set(table.gpu) == {"cpu"} for table in tables.values())
    assert all((table.latency_us > 0).all() for table in tables.values())
    gemm = tables["gemm"]
    assert set(zip(gemm.n, gemm.k, gemm.dtype, strict=True)) == {
        (128, 64, "fp8"), (64, 64, "fp8"), (192, 64, "fp8"), (64, 96, "fp8"), (256, 64, "bfloat16"),
    }  # fmt: skip
    assert len(gemm) == 5 * 5  # rows of 1, 2, 4, 8 and 16 tokens
    layouts = tables["attention_layouts"]
    assert set(layouts.block_size) == {0, 1, 2, 4, 8, 16, 32, 64, 128, 256}
    assert set(layouts.kernel) == {"torch_sdpa_flash", "torch_gather_sdpa_flash"}
    assert "mine" in command_line(*asked, "--out", "mine").stderr  # is not replaced
