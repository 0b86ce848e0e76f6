"""What the documents show is what happens: commands, tables, rules, the committed example."""

import importlib
import inspect
import json
import re
import runpy
import shutil
import struct
from pathlib import Path

import pytest
import typer
from pyarrow import parquet
from typer.testing import CliRunner

from kvsim.cli.main import app_with
from kvsim.rundir.read import MANIFEST, REPLICATIONS, REPORT, SUMMARY
from kvsim.tables import MAP_TABLES, TABLES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXAMPLE = ROOT / "reports" / "example"


def tool(name: str) -> dict:
    return runpy.run_path(str(ROOT / "tools" / f"{name}.py"))


# Commands


@pytest.mark.skipif(shutil.which("bash") is None, reason="the documents' commands are for bash")
@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md", "docs/how-to.md"])
def test_commands_print_what_the_page_shows(name: str, tmp_path: Path):
    page, documents = ROOT / name, tool("renew_documents")
    blocks = []

    def compare(shown: list[str], printed: list[str]) -> list[str]:
        assert not documents["missing"](shown, printed), "run tools/renew_documents.py"
        blocks.append(printed)
        return shown

    assert documents["run_page"](page, tmp_path, compare) == page.read_text(encoding="utf-8")
    assert blocks


@pytest.mark.parametrize(
    ("shown", "lacking"),
    [
        (["a", "c"], []),
        (["a", "...", "c", ""], []),
        (["c", "a"], ["a"]),
        (["a", "d"], ["d"]),
    ],
)
def test_lines_must_be_printed_in_order(shown, lacking):
    assert tool("renew_documents")["missing"](shown, ["a", "b", "c"]) == lacking


def test_pages_are_renewed_with_what_is_printed():
    renewed = tool("renew_documents")["renewed"]
    assert renewed(["a 1", "b"], ["a 2", "b"]) == ["a 2", "b"]
    assert renewed(["...", "size is 1"], ["x", "size is 2", "y"]) == ["...", "size is 2"]


def test_python_in_the_how_to_guide_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / "how-to.md").read_text(), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    reports = tmp_path / "reports"
    reports.mkdir()
    shutil.copytree(EXAMPLE, reports / "flags")
    exec(compile(code, "how-to.md", "exec"), {})  # our own document
    assert "ms a step" in capsys.readouterr().out


def test_readme_lists_all_commands_and_scenarios():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = set(re.findall(r"^\| `kvsim (\w+)", readme, flags=re.MULTILINE))
    assert commands == set(typer.main.get_command(app_with()).commands)
    scenarios = set(re.findall(r"^\| \[\w+\]\((scenarios/\w+\.yaml)\)", readme, flags=re.MULTILINE))
    assert scenarios == {f"scenarios/{path.name}" for path in (ROOT / "scenarios").glob("*.yaml")}


def test_readme_quotes_the_figures_of_the_how_to_guide():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    row = re.search(
        r"^TTFT p99 +(\S+ ms) +(\S+ ms)$", (DOCS / "how-to.md").read_text("utf-8"), re.M
    )
    assert f"TTFT p99 is {row[1]} paged and {row[2]} contiguous" in readme


def test_readme_names_proofs_that_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    proofs = re.findall(r"`(tests/[\w/.]+)`", readme)
    assert len(proofs) >= 4
    assert not [proof for proof in proofs if not (ROOT / proof).exists()]


# Pages written from the code


@pytest.mark.parametrize("name", ["scenario", "results"])
def test_page_is_what_the_code_says(name: str):
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert page == tool(f"write_{name}_doc")["render"](), f"run tools/write_{name}_doc.py"


def test_links_to_headings_lead_somewhere():
    found = []
    for page in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for file, anchor in re.findall(r"\]\(([\w/.-]*\.md)?#([\w-]+)\)", page.read_text("utf-8")):
            target = page.parent / file if file else page
            headings = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), flags=re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
            found += [f"{page.name}: {file}#{anchor}"] if anchor not in slugs else []
    assert not found


# vLLM's rules

RULES = (DOCS / "vllm-rules.md").read_text(encoding="utf-8")
HOMES = (
    "kvsim.engine.content",
    "kvsim.engine.allocators._prefix_cache",
    "kvsim.engine.schedulers.vllm",
    "kvsim.engine.queues",
    "kvsim.engine.allocators._hybrid",
    "kvsim.engine.allocators._hybrid_lookup",
    "kvsim.engine.allocators.paged",
    "kvsim.engine.allocators.contiguous",
    "kvsim.memory.kv_groups",
    "kvsim.engine.replica",
    "kvsim.engine.unfilled",
    "kvsim.engine.fleet",
    "kvsim.engine.reader",
    "kvsim.engine.cluster",
    "kvsim.engine.clients",
)


def expand(first: str, last: str) -> range:
    return range(int(first), int(last or first) + 1)


def test_each_rule_is_followed_or_named_as_not_followed():
    followed = {int(n) for n in re.findall(r"^\| R(\d+) \| [^|]+ \| `", RULES, flags=re.MULTILINE)}
    lines = RULES.partition("## Not followed")[2].splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| R")]
    spans = re.findall(r"R(\d+)(?: to R(\d+))?", " ".join(cells))
    others = {number for span in spans for number in expand(*span)}
    assert not followed & others
    assert followed | others == set(range(1, 43))


def test_rules_live_where_the_page_says():
    modules = [importlib.import_module(name) for name in HOMES]
    names = set(re.findall(r"`((?:[A-Z]\w+\.)?_*[a-z]\w+)`(?= \(|,| \||\))", RULES))
    names -= {name for name in names if "." not in name and not name.startswith(("read", "why"))}
    assert len(names) > 10
    for name in names:
        owner, _, attribute = name.rpartition(".")
        homes = [getattr(module, owner, None) if owner else module for module in modules]
        assert any(inspect.isfunction(getattr(home, attribute, None)) for home in homes), name


def test_rules_named_in_the_code_are_on_the_page():
    for path in (ROOT / "kvsim").rglob("*.py"):
        for number in re.findall(r"\bR(\d+)\b", path.read_text(encoding="utf-8")):
            assert f"| R{number} |" in RULES, path


# The committed example


def same_versions() -> bool:
    import platform
    from importlib.metadata import version

    made_with = dict(json.loads((EXAMPLE / MANIFEST).read_text())["versions"])
    made_with.pop("kvsim")
    python = made_with.pop("python")
    return python == platform.python_version() and all(
        version(package) == number for package, number in made_with.items()
    )


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory) -> Path:
    """The example made anew, as `make report` does."""
    if not same_versions():
        pytest.skip("bytes are promised for the versions the example was made with")
    folder = tmp_path_factory.mktemp("example") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        arguments = ["run", "docs/assistant.yaml", "--out", str(folder)]
        assert CliRunner().invoke(app_with(), arguments).exit_code == 0
    return folder


def test_example_has_all_files_and_is_small():
    files = {path.name: path.stat().st_size for path in EXAMPLE.iterdir()}
    tables = {REPLICATIONS, *(f"{table}.parquet" for table in (*TABLES, *MAP_TABLES))}
    assert set(files) == {MANIFEST, SUMMARY, REPORT, *tables}
    assert sum(files.values()) < 6_000_000


@pytest.mark.parametrize("table", [*TABLES, *MAP_TABLES])
def test_example_has_the_same_decisions_and_times_on_any_machine(rebuilt: Path, table: str):
    name = f"{table}.parquet"
    assert parquet.read_table(rebuilt / name).equals(parquet.read_table(EXAMPLE / name))
    assert (rebuilt / name).read_bytes() == (EXAMPLE / name).read_bytes()


def leaves(value: object, path: str = "") -> dict[str, object]:
    if isinstance(value, dict):
        inner = [leaves(item, f"{path}.{key}") for key, item in value.items()]
    elif isinstance(value, list):
        inner = [leaves(item, f"{path}.{index}") for index, item in enumerate(value)]
    else:
        return {path: value}
    return {key: item for part in inner for key, item in part.items()}


@pytest.mark.parametrize("name", [MANIFEST, SUMMARY])
def test_example_has_the_same_figures(rebuilt: Path, name: str):
    now, then = (leaves(json.loads((folder / name).read_text())) for folder in (rebuilt, EXAMPLE))
    assert now.keys() == then.keys()
    for path, value in now.items():  # sums of floats depend on the processor, in the last digits
        figure = isinstance(value, float) and name == SUMMARY
        assert value == (pytest.approx(then[path], rel=1e-9) if figure else then[path]), path


def test_example_is_rebuilt_byte_for_byte(rebuilt: Path):
    if (rebuilt / SUMMARY).read_bytes() != (EXAMPLE / SUMMARY).read_bytes():
        pytest.skip("this processor rounds sums otherwise: bytes are promised on the same machine")
    assert (rebuilt / MANIFEST).read_bytes() == (EXAMPLE / MANIFEST).read_bytes()
    assert (rebuilt / REPORT).read_bytes() == (EXAMPLE / REPORT).read_bytes()


def test_tutorial_ends_with_the_scenario_of_the_example():
    tutorial = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml assistant\.yaml\n(.*?)^```$", tutorial, flags=re.M | re.S)
    assert blocks[-1] == (DOCS / "assistant.yaml").read_text(encoding="utf-8")


def test_picture_of_the_report_is_small():
    picture = (DOCS / "images" / "report.png").read_bytes()
    assert len(picture) < 300_000
    width, _ = struct.unpack(">II", picture[16:24])
    assert width == 1280
