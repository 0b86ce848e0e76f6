"""The law of lengths that was read from one bar: it gives that bar back, and the paper's means."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from kvsim.paper.printed import printed
from kvsim.rng import stream
from kvsim.scenario.load import load_scenario

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "fit_paper_lengths.py"))
WORKLOADS = printed()["setup"]["workloads"]


def drawn(trace: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw lengths as the scenario says, cut as the engine cuts them."""
    workload = load_scenario(
        ROOT / "scenarios" / "paper" / f"block_sizes_{trace}.yaml"
    ).base.workload
    prompts, answers = workload.lengths.lengths_tokens(400_000, stream(1, "lengths"))
    return prompts, np.minimum(answers, 2048 - prompts)


@pytest.mark.parametrize("trace", WORKLOADS)
def test_scenarios_have_the_means_of_the_paper(trace: str):
    prompts, answers = drawn(trace)
    assert prompts.mean() == pytest.approx(WORKLOADS[trace]["mean_input_tokens"], rel=0.01)
    assert answers.mean() == pytest.approx(WORKLOADS[trace]["mean_output_tokens"], rel=0.01)
    assert (prompts + answers).max() <= 2048


def test_the_shape_gives_the_bar_back_that_it_was_read_from():
    """Seven requests stay as long as their answers are: longer ones are met more often."""
    prompts, answers = drawn("sharegpt")
    bar, slots = printed()["figure2_kv_memory_share_percent"]["orca_max"], 12 * 2**30 // 819_200
    to_come = (answers * answers / 2).sum() / answers.sum()
    held = (answers * (prompts + answers / 2)).sum() / answers.sum()
    assert 100 * 7 * to_come / slots == pytest.approx(bar["reservation"], rel=0.02)
    assert 100 * 7 * held / slots == pytest.approx(bar["token_states"], rel=0.02)


def test_all_scenarios_of_sharegpt_have_the_law_that_the_tool_finds():
    prompt_mean, prompt_cv, answer_mean, answer_cv = TOOL["solved"](
        (161.31, 337.99), 2048, None, 597.7
    )
    for path in (ROOT / "scenarios" / "paper").glob("*.yaml"):
        lengths = load_scenario(path).base.workload.lengths
        if "fit_paper_lengths" in path.read_text(encoding="utf-8"):
            assert lengths.prompt_mean_tokens == pytest.approx(prompt_mean, rel=0.002)
            assert lengths.prompt_cv == pytest.approx(prompt_cv, rel=0.002)
            assert lengths.output_mean_tokens == pytest.approx(answer_mean, rel=0.002)
            assert lengths.output_cv == pytest.approx(answer_cv, rel=0.002)
