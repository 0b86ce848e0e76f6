"""Chapters on sharing: what they ask for, and what they make of it."""

from pathlib import Path

import pytest

from kvsim.paper import documents, four_samples, sharing, system_prompt
from kvsim.paper.tasks import summary_of

FOLDER = Path(__file__).parents[2] / "scenarios" / "paper"
FIGURES = {
    "kv_saved_by_sharing": 0.25,
    "unanswered_fraction": 0.4,
    "e2e_p95_s": 50.0,
    "running_seqs_mean": 3.0,
}


@pytest.mark.parametrize("module", [sharing, four_samples, documents, system_prompt])
def test_each_task_leads_to_a_finding(module):
    tasks = module.tasks(FOLDER, quick=True)
    summary = {"figures": FIGURES}
    trials = [(8.0, 0.05), (10.0, 0.1), (11.0, 0.2)]
    results = {name: summary if task.call is summary_of else trials for name, task in tasks.items()}
    chapter = module.chapter(results)
    assert len(chapter.findings) >= len(tasks) - 1 - len(system_prompt.PREFIXES)
    assert all(finding.ours is not None for finding in chapter.findings)
    assert chapter.charts


def test_a_third_needs_answers_of_a_quarter_of_the_prompt():
    """(P + 4 A / 2) / 4 (P + A / 2) is a third where A is P / 4."""
    assert four_samples.on_paper(four_samples.PROMPT_TOKENS / 4) == pytest.approx(100 / 3)
    assert four_samples.on_paper(0.0) == pytest.approx(25)
    assert four_samples.needed({"figures": FIGURES}) == pytest.approx(75)


def test_longer_answers_and_more_samples_tell():
    found = {
        name: task.run()["figures"]["kv_saved_by_sharing"]
        for name, task in four_samples.tasks(FOLDER, quick=True).items()
        if name in {"base/25", "base/200"}
    }
    assert found["base/200"] < found["base/25"] < 0.75
    for answer in (25, 200):
        on_paper = 1 - four_samples.on_paper(answer) / 100
        assert found[f"base/{answer}"] == pytest.approx(on_paper, abs=0.12)
