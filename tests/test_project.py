"""The project as a whole: what ships, what is named how, what the documents promise."""

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
import typing
import zipfile
from importlib import metadata
from pathlib import Path
from types import UnionType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel

import kvsim
from kvsim.tables import TABLES

ROOT = Path(__file__).parents[1]
MEGABYTE = 1_000_000


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


# What ships


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    from hatchling.builders.wheel import WheelBuilder

    directory = str(tmp_path_factory.mktemp("wheel"))
    (path,) = WheelBuilder(str(ROOT)).build(directory=directory, versions=["standard"])
    return zipfile.ZipFile(path)


def test_wheel_is_small(wheel):
    assert Path(wheel.filename).stat().st_size < 15 * MEGABYTE


def test_wheel_holds_the_whole_package_and_its_notices(wheel):
    names = wheel.namelist()
    package = {str(path.relative_to(ROOT)) for path in tracked_files() if in_package(path)}
    assert any(name.startswith("kvsim/data/") for name in package)
    assert package <= set(names)
    for notice in ("LICENSE", "NOTICE"):
        (shipped,) = [name for name in names if name.endswith(f"dist-info/licenses/{notice}")]
        assert wheel.read(shipped) == (ROOT / notice).read_bytes()


def in_package(path: Path) -> bool:
    return path.relative_to(ROOT).parts[0] == "kvsim"


# Written so that this file does not contain what it looks for.
PRIVATE = re.compile(
    r"/(wor[k]|roo[t]|hom[e]|User[s])/[\w.-]+|[C]:\\\\"  # paths of somebody's machine
    r"|pypi\.or[g]|pythonhosted\.or[g]|npmjs\.or[g]|deb\.debian\.or[g]",  # package registries
)


@pytest.mark.parametrize(
    ("text", "private"),
    [
        ("/".join(["", "home", "ann", "kvsim"]), True),
        ("/".join(["", "root", "x"]), True),
        (".".join(["files", "pythonhosted", "org"]), True),
        ("docs" + "/".join(["", "work", "more"]) + ", a home" + "/user", False),
        ("reports/chat", False),
    ],
)
def test_private_things_are_recognized(text, private):
    assert bool(re.search(rf"(?<!\w)(?:{PRIVATE.pattern})", text)) == private


def test_no_machine_paths_or_registry_hosts_in_tracked_files():
    pattern = re.compile(rf"(?<!\w)(?:{PRIVATE.pattern})".encode())
    contents = {path: path.read_bytes() for path in tracked_files()}
    found = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path, content in contents.items()
        if b"\0" not in content  # text
        for match in pattern.finditer(content)
    ]
    assert not found


# Dependencies


def declared_dependencies() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [Requirement(line) for line in sum(extras, project["dependencies"])]


def locked_versions() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    return {canonicalize_name(name): version for name, version in (p.split("==") for p in pins)}


def test_lock_pins_every_dependency_and_what_they_need():
    locked = locked_versions()
    to_visit, seen = declared_dependencies(), set()
    while to_visit:
        requirement = to_visit.pop()
        name = canonicalize_name(requirement.name)
        if name.startswith(("nvidia-", "cuda-", "triton")):  # of torch's builds for CUDA
            continue
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        assert name in locked, requirement
        assert requirement.specifier.contains(locked[name]), requirement
        if name not in seen and is_installed(name):  # the extras not installed here are not walked
            seen.add(name)
            to_visit += [Requirement(line) for line in metadata.requires(name) or []]
    assert "numpy" in seen


def is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def test_every_dependency_earns_its_place_in_the_decision_record():
    record = (ROOT / "docs/decisions/001-dependencies.md").read_text()
    rows = re.findall(r"^\| ([a-z][\w., -]+) \| (?!why)[^|]+ \|$", record, flags=re.MULTILINE)
    named = {canonicalize_name(name) for row in rows for name in row.split(", ")}
    assert named == {canonicalize_name(requirement.name) for requirement in declared_dependencies()}


# Set-up on a fresh machine


def run_venv_script(tmp_path: Path, *tools: str, python3: str | None = None):
    """Run tools/venv.sh where only these tools (and perhaps a given python3) can be found."""
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    for tool in ("rm", "id", *tools):
        (bin_directory / tool).symlink_to(shutil.which(tool) or "/bin/true")
    if python3 is not None:
        (bin_directory / "python3").write_text(f"#!/bin/sh\n{python3}\n")
        (bin_directory / "python3").chmod(0o755)
    return subprocess.run(
        ["/bin/sh", str(ROOT / "tools/venv.sh"), str(tmp_path / "venv")],
        env={"PATH": str(bin_directory), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )


# A Python that is new enough, but from which Debian has split off venv.
WITHOUT_VENV = 'case "$2" in *ensurepip*) exit 1;; esac'


@pytest.mark.skipif(os.name != "posix", reason="a POSIX shell script")
@pytest.mark.parametrize(
    ("tools", "python3", "install"),
    [
        ([], None, "curl "),
        (["apt-get"], None, "apt-get install python3-venv"),
        (["apt-get"], WITHOUT_VENV, "apt-get install python3-venv"),
        (["apt-get"], "exit 1", "curl "),  # too old, and so is the distribution's package
        (["dnf"], None, "dnf install python3.12"),
        (["brew"], None, "brew install python@3.13"),
    ],
)
def test_machine_without_python_is_told_one_command(tmp_path, tools, python3, install):
    done = run_venv_script(tmp_path, *tools, python3=python3)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("kvsim needs Python 3.11 or newer")
    assert install in line


@pytest.mark.skipif(os.name != "posix", reason="a POSIX shell script")
def test_venv_is_made_with_the_python_found(tmp_path):
    fake = 'case "$1" in --version) echo Python 3.11.0;; -m) echo "made $2 $3";; esac'
    done = run_venv_script(tmp_path, python3=fake)
    assert done.returncode == 0
    made = f"made venv {tmp_path / 'venv'}"
    assert done.stdout.splitlines() == [f"Making {tmp_path / 'venv'} with Python 3.11.0", made]


# Documents and scenarios


# A line of its own, perhaps with variables and a comment, or in backquotes.
NAMED_TARGET = re.compile(
    r"^(?:\$ )?make ([a-z]+)(?: +[A-Z]+=\S+)*(?: +#.*)?$|`make ([a-z]+)", flags=re.MULTILINE
)


def documents() -> list[Path]:
    return [path for path in tracked_files() if path.suffix == ".md"]


def test_make_targets_named_in_documents_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"run", "test", "lint", "prove", "bench", "report", "clean", "help"} <= targets
    for document in documents():
        named = set(NAMED_TARGET.findall(document.read_text()))
        assert {line or quoted for line, quoted in named} <= targets, document


@pytest.mark.parametrize("word", ["comon_1000", "--hug"])
def test_a_benchmark_that_does_not_exist_is_refused(word):
    command = [sys.executable, "benchmarks/bench.py", word]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"Not known: {word}. Benchmarks: common_1000, " in done.stdout


def test_readme_names_the_two_commands():
    readme = (ROOT / "README.md").read_text()
    assert "make run" in readme
    assert "make test" in readme


def test_links_between_documents_lead_somewhere():
    for document in documents():
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text()):
            if "://" not in link:
                assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_scenarios_begin_with_the_question_they_answer():
    scenarios = sorted((ROOT / "scenarios").glob("*.yaml"))
    assert ROOT / "scenarios/chat.yaml" in scenarios
    for scenario in scenarios:
        first, second = scenario.read_text().splitlines()[:2]
        assert re.match(r"# \S.{10,}", first), scenario.name
        assert re.match(r"# \S.{10,}", second), scenario.name


# Units stand in names

UNIT_SUFFIXES = (
    "_ns", "_s", "_bytes", "_gib", "_tokens", "_blocks", "_seqs", "_pairs", "_fraction",
    "_usd_per_gpu_hour",
)  # fmt: skip

# Counts, numbers and ratios: no unit.
DIMENSIONLESS = {
    "request", "group", "replica", "step", "preemptions",  # columns that number or count
    "session", "attempt", "beam_width", "beam_turnover",
    "users", "groups", "distinct_prompts", "turns_mean", "calls_mean", "max_retries", "multiplier",
    "jitter", "weight", "priority", "max_concurrency", "hour", "think_cv", "tool_cv", "noise_cv",
    "tool_result_cv", "zipf_exponent", "balance_abs", "balance_rel", "match_fraction",
    "prompt_scale", "output_scale", "sample_fraction", "skip_bad_rows",
    "seed", "replicas", "replications", "tensor_parallel_size", "num_requests", "n", "sm_arch",
    "sm_count",
    "rate_scale", "burstiness", "prompt_cv", "output_cv", "watermark", "pipeline_parallel_size",
    "data_parallel_size",
}  # fmt: skip

# vLLM's own names, which users know: tokens, sequences and blocks are told by its documentation.
VLLM_NAMES = {
    "max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size",
    "gpu_memory_utilization", "num_gpu_blocks_override", "long_prefill_token_threshold",
    "prefill_schedule_interval", "prefix_cache_retention_interval",
}  # fmt: skip


def has_unit(name: str) -> bool:
    return name.endswith(UNIT_SUFFIXES) or name in DIMENSIONLESS | VLLM_NAMES


def test_columns_carry_their_unit_in_their_name():
    for columns in TABLES.values():
        for column in columns:
            if column.unit == "count":
                assert column.name in DIMENSIONLESS, column
            elif column.unit != "code":
                assert f"_{column.name}".endswith(f"_{column.unit}"), column


def scenario_models() -> list[type[BaseModel]]:
    """Find the pydantic models in all modules: the schema and the policies' parameters.

    Those of recorded schedules have the names of their format; values of a sweep's axes have the
    units of what they vary.
    """
    found = {}
    for entry in pkgutil.walk_packages(kvsim.__path__, "kvsim."):
        if entry.name.startswith(("kvsim.conformance", "kvsim.studies.sweep")):
            continue
        module = importlib.import_module(entry.name)
        for item in vars(module).values():
            if isinstance(item, type) and issubclass(item, BaseModel):
                found[f"{item.__module__}.{item.__qualname__}"] = item
    return [item for name, item in sorted(found.items()) if name.startswith("kvsim.")]


def is_number(annotation: object) -> bool:
    """Tell whether a field may hold a number: `int`, `float | None`, `tuple[float, ...]`."""
    origin = typing.get_origin(annotation)
    if annotation in (int, float):
        return True
    if origin in (typing.Union, UnionType, typing.Annotated, tuple, list):
        return any(is_number(part) for part in typing.get_args(annotation))
    return False


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [(int, True), (float | None, True), (tuple[float, ...], True), (bool, False), (str, False)],
)
def test_numbers_are_recognized(annotation, expected):
    assert is_number(annotation) == expected


def scenario_numbers() -> dict[str, str]:
    """Return the fields that hold numbers: module, class and name → name."""
    return {
        f"{model.__module__}.{model.__name__}.{name}": name
        for model in scenario_models()
        for name, field in model.model_fields.items()
        if is_number(field.annotation)
    }


def test_numbers_of_scenarios_carry_their_unit_in_their_name():
    assert not [place for place, name in scenario_numbers().items() if not has_unit(name)]


def test_every_name_without_unit_is_in_use():
    columns = {column.name for columns in TABLES.values() for column in columns}
    assert columns | set(scenario_numbers().values()) >= DIMENSIONLESS | VLLM_NAMES
