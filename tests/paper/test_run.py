"""Chapters together: every scenario is used and starts, tasks can be sent, the command writes."""

import json
import pickle
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kvsim.paper.run as paper
from kvsim.cli.main import app_with
from kvsim.errors import InputError
from kvsim.paper import kv_shares, memory_sizes, swapping
from kvsim.paper.chapter import Chapter, Finding
from kvsim.paper.printed import printed
from kvsim.paper.tasks import Task
from kvsim.scenario.load import load_scenario
from kvsim.scenario.resolve import resolve_all

FOLDER = Path(__file__).parents[2] / "scenarios" / "paper"


def all_tasks(quick: bool) -> dict[str, Task]:
    return {
        f"{key}/{name}": task
        for key, module in paper.CHAPTERS.items()
        for name, task in module.tasks(FOLDER, quick).items()
    }


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_scenario_says_what_it_asks_and_starts(path: Path):
    file = load_scenario(path)
    assert file.question.endswith(("?", "."))
    assert "base" in resolve_all(file)


@pytest.mark.parametrize("quick", [False, True])
def test_tasks_name_files_and_variants_that_are_there(quick: bool):
    load = cache(load_scenario)
    for name, task in all_tasks(quick).items():
        path, *rest = task.arguments
        assert pickle.loads(pickle.dumps(task)) == task, name
        if rest:
            assert rest[0] in load(path).variants, name


class Sum:
    """A chapter of two tasks."""

    def tasks(self, folder: Path, quick: bool):
        return {name: Task(pow, (base, 2)) for name, base in (("b", 4), ("a", 3))}

    def chapter(self, results):
        assert list(results) == ["b", "a"]  # as asked for, not as done
        found = Finding("sum", "", 25.0, results["a"] + results["b"], (25, 25))
        return Chapter("sum", "Sum", "A sum", "Of squares.", [found])


@pytest.fixture
def only_sums(monkeypatch):
    monkeypatch.setattr(paper, "CHAPTERS", {"table1": memory_sizes, "sum": Sum()})


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_go_to_their_chapters(only_sums, jobs: int):
    told = []
    chapters = paper.run_chapters(FOLDER, jobs=jobs, tell=lambda done, of: told.append((done, of)))
    assert [chapter.key for chapter in chapters] == ["table1", "sum"]
    assert chapters[1].findings[0].ours == 25
    assert told == [(1, 2), (2, 2)]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no folder"):
        paper.run_chapters(tmp_path / "none")
    with pytest.raises(InputError):
        paper.run_chapters(tmp_path)


def test_the_command_writes_a_page_and_its_numbers(only_sums, tmp_path: Path):
    page, numbers = tmp_path / "new" / "paper.html", tmp_path / "new" / "paper.json"
    arguments = ["paper", str(FOLDER), "--out", str(page), "--jobs", "1"]
    result = CliRunner().invoke(app_with(), arguments)
    assert result.exit_code == 0
    assert "A sum" in page.read_text(encoding="utf-8")
    assert json.loads(numbers.read_text(encoding="utf-8"))["sum"]["findings"][0]["holds"] is True
    again = CliRunner().invoke(app_with(), [*arguments, "--json"])
    assert json.loads(again.stdout)["table1"]["findings"]
    page.write_text("mine", encoding="utf-8")
    refused = CliRunner().invoke(app_with(), arguments)
    assert isinstance(refused.exception, InputError)
    assert page.read_text(encoding="utf-8") == "mine"


def test_table_1_holds():
    chapter = memory_sizes.chapter({})
    bound = [found for found in chapter.findings if found.bounds]
    assert len(bound) == len(printed()["table1"]) == 3
    assert all(found.holds for found in bound)


def test_figure_2_holds_for_the_longest_reservation():
    """Ten minutes are enough: seven reservations are always there, whatever the engine's speed."""
    task = kv_shares.tasks(FOLDER, quick=True)["orca_max"]
    call, (path, variant, _) = task.call, task.arguments
    shorter = {"workload.duration_s": 600.0, "max_simulated_s": 600.0}
    summary = call(path, variant, shorter)
    said = printed()["figure2_kv_memory_share_percent"]["orca_max"]
    for part, share in kv_shares.shares_of(summary).items():
        assert share == pytest.approx(said[part], abs=3)
    assert summary["figures"]["running_seqs_max"] == 7


def test_figure_19_holds():
    costs = swapping.costs_of_one(FOLDER / swapping.FILE)
    assert len(set(costs.recompute.values())) == 1
    swaps = list(costs.swap.values())
    assert swaps == sorted(swaps, reverse=True)
    most = (
        1
        + printed()["figure19_swap_vs_recompute"][
            "recompute_overhead_at_most_this_fraction_above_swap"
        ]
    )
    for size in swapping.SIZES:
        assert costs.recompute[size] <= most * costs.swap[size]
