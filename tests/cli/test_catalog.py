import json

from typer.testing import CliRunner

from kvsim.cli.main import app_with
from kvsim.gpu import gpu_names, load_gpu
from kvsim.model import load_model, model_names


def listed(*arguments):
    done = CliRunner().invoke(app_with(), ["catalog", *arguments])
    assert done.exit_code == 0
    return done.stdout


def test_every_model_and_every_gpu_has_its_line():
    models, gpus = listed().split("\n\n")
    assert [line.split()[0] for line in models.splitlines()[1:]] == model_names()
    assert [line.split()[0] for line in gpus.splitlines()[1:]] == gpu_names()


def test_the_columns_stand_below_their_headings():
    models, gpus = listed().split("\n\n")
    _, *rows = models.splitlines()
    assert {len(row.rsplit("  ", 1)[0]) for row in rows} == {models.splitlines()[0].index("  type")}
    heading, *rows = gpus.splitlines()
    assert {len(row) for row in rows} == {heading.index("  (")}


def test_the_figures_are_those_of_the_models_and_gpus():
    lines = {line.split()[0]: line.split() for line in listed().splitlines() if line}
    llama = " ".join(lines["meta-llama/Llama-3.1-8B-Instruct"][1:])
    assert llama == "8.0 B 7.5 B 14.96 GiB 128.00 KiB bfloat16"
    # Data sheet: 80 GB, 3.35 TB/s, 989 TFLOP/s bf16 and 1,979 fp8, dense.
    assert lines["h100_sxm"][1:6] == ["80", "GiB", "3,350", "989", "1,978"]
    assert lines["a30"][5:] == ["-", "-"]


def test_json_has_the_same_with_all_digits():
    data = json.loads(listed("--json"))
    assert [model["name"] for model in data["models"]] == model_names()
    assert [gpu["name"] for gpu in data["gpus"]] == gpu_names()
    for model in data["models"]:
        spec = load_model(model["name"])
        assert model["weight_bytes"] == sum(spec.weight_bytes().values())
        assert model["active_parameters"] <= model["parameters"]
    for gpu in data["gpus"]:
        assert gpu["hbm_bytes_per_s"] == load_gpu(gpu["name"]).hbm_bytes_per_s
