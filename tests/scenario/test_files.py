from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from kvsim.copies import found_at, with_copies
from kvsim.errors import InputError
from kvsim.scenario.files import file_digests_of, files_of
from kvsim.scenario.load import ScenarioFile, load_scenario

Write = Callable[..., Path]
SHIPPED = Path(__file__).parents[2] / "scenarios"
CONFIG = Path(__file__).parents[2] / "kvsim" / "data" / "models" / "facebook--opt-13b.json"
TEXT = """\
model: tiny
gpu:
  name: mine
  hbm_bytes: 80.0e9
  hbm_bytes_per_s: 2.0e12
  bf16_flop_per_s: 4.0e14
  kernels: kernels.npz
cost: {profile: profile.yaml}
workload:
  arrivals: {kind: trace, file: a.csv}
  lengths: {kind: trace, file: b.csv}
  classes:
    one: {lengths: {kind: empirical, file: c.csv}}
    two: {lengths: {kind: trace, file: b.csv}}
"""


@pytest.fixture
def file(write: Write, tmp_path: Path) -> ScenarioFile:
    for name in ("a.csv", "b.csv", "c.csv", "kernels.npz", "profile.yaml"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_bytes(CONFIG.read_bytes())
    return load_scenario(write(text=TEXT))


def test_every_file_that_a_scenario_names_is_found(file: ScenarioFile, tmp_path: Path) -> None:
    assert files_of(file.base, file.base_dir) == {
        "a.csv": tmp_path / "a.csv",
        "b.csv": tmp_path / "b.csv",
        "c.csv": tmp_path / "c.csv",
        "tiny: config.json": tmp_path / "tiny" / "config.json",
        "profile.yaml": tmp_path / "profile.yaml",
        "kernels.npz": tmp_path / "kernels.npz",
    }


def test_modelopts_file_beside_a_model_belongs_to_it(file: ScenarioFile, tmp_path: Path) -> None:
    beside = tmp_path / "tiny" / "hf_quant_config.json"
    beside.write_text("{}", encoding="utf-8")
    assert files_of(file.base, file.base_dir)["tiny: hf_quant_config.json"] == beside


def test_what_ships_is_no_file_of_the_scenario() -> None:
    file = load_scenario(SHIPPED / "chat.yaml")
    (name,) = files_of(file.base, file.base_dir)
    assert name == "traces/AzureLLMInferenceTrace_conv.csv"


def test_digests_are_those_of_the_content_and_follow_it(file: ScenarioFile) -> None:
    path = file.base_dir / "c.csv"
    for text in ("first", "other", "third and longer"):
        path.write_text(text, encoding="utf-8")
        found = file_digests_of(file.base, file.base_dir)
        assert found["c.csv"] == sha256(text.encode()).hexdigest()
        assert found["a.csv"] == sha256(b"a.csv").hexdigest()


def test_a_file_that_is_missing_is_named(file: ScenarioFile) -> None:
    (file.base_dir / "b.csv").unlink()
    with pytest.raises(InputError, match=r"b\.csv: can't be read"):
        file_digests_of(file.base, file.base_dir)


def test_copies_are_found_in_their_place(file: ScenarioFile, tmp_path: Path) -> None:
    there = files_of(file.base, file.base_dir)
    copies = {path: tmp_path / "copies" / path.name for path in there.values()}
    with with_copies(copies):
        assert files_of(file.base, file.base_dir) == {
            name: copies[path] for name, path in there.items()
        }
    assert files_of(file.base, file.base_dir) == there


def test_copies_end_with_their_context_also_after_an_error() -> None:
    def fail() -> None:
        with with_copies({Path("a"): Path("b")}):
            assert found_at(Path("a")) == Path("b")
            assert found_at(Path("c")) == Path("c")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert found_at(Path("a")) == Path("a")
