"""Every scenario that ships runs, and answers the question that it asks."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvsim.cli.main import app_with
from kvsim.tables import OUTCOMES

SCENARIOS = Path(__file__).parents[2] / "scenarios"

Figures = dict[str, dict[str, float]]


def chat(found: Figures) -> None:
    """Only paging serves this traffic: the slots of the contiguous layout are taken."""
    base, contiguous = found["base"], found["contiguous"]
    assert base["ttft_p99_s"] < 2
    assert contiguous["ttft_p99_s"] > 10 * base["ttft_p99_s"]
    assert contiguous["requests_per_s"] < 0.95 * base["requests_per_s"]
    assert 24 <= contiguous["running_seqs_max"] <= 26
    assert base["running_seqs_max"] > 3 * contiguous["running_seqs_max"]


def memory_pressure(found: Figures) -> None:
    """Requests are preempted and rejected; a watermark prevents most preemptions."""
    assert found["base"]["preemptions_total"] > 0
    assert found["base"]["requests_rejected"] > 0
    assert found["watermark"]["preemptions_total"] < found["base"]["preemptions_total"]
    assert found["contiguous"]["preemptions_total"] == 0


def code_completion(found: Figures) -> None:
    """Bursts need the second replica; a smaller budget smooths the stream."""
    assert found["one_replica"]["ttft_p99_s"] > 2 * found["base"]["ttft_p99_s"]
    assert found["budget_2048"]["itl_p99_s"] < found["base"]["itl_p99_s"]


def long_documents(found: Figures) -> None:
    """An fp8 cache holds twice the tokens."""
    ratio = found["fp8_kv_cache"]["kv_usage_mean"] / found["base"]["kv_usage_mean"]
    assert 0.35 < ratio < 0.65


def parallel_sampling(found: Figures) -> None:
    """Each of 2,000 prompts has four answers, and slots for them run out first if contiguous."""
    assert found["base"]["requests_total"] == 4 * 2000
    assert found["contiguous"]["queue_p99_s"] > 10 * found["base"]["queue_p99_s"]


def offline_batch(found: Figures) -> None:
    """Paging shortens the batch; knowing the answers' lengths would, too."""
    contiguous = found["contiguous"]["requests_per_s"]
    assert found["base"]["requests_per_s"] > 1.2 * contiguous
    assert found["contiguous_oracle"]["requests_per_s"] > 1.2 * contiguous


def llama2_70b_4xa100(found: Figures) -> None:
    """A second server halves the batches, so that answers come sooner."""
    assert found["two_replicas"]["e2e_p50_s"] < found["base"]["e2e_p50_s"]
    assert found["two_replicas"]["running_seqs_mean"] < found["base"]["running_seqs_mean"]


def conversations(found: Figures) -> None:
    """Affinity finds nearly all that was said; round robin half of it, at slower first tokens."""
    hits = {name: figures["prefix_hit_fraction"] or 0.0 for name, figures in found.items()}
    assert hits["base"] > 0.85 > 0.7 > hits["round_robin"] > hits["without_prefix_caching"] == 0
    assert hits["prefix_aware"] > 0.85
    ttft = {name: figures["ttft_p95_s"] or 0.0 for name, figures in found.items()}
    assert ttft["base"] < ttft["round_robin"] < ttft["without_prefix_caching"]


def mixed_traffic(found: Figures) -> None:
    """Going first cuts the chat's wait, at the cost of the batch job."""
    assert found["base"]["requests_rejected"] == 0
    assert (found["chat_first"]["ttft_p50_s"] or 0) < (found["base"]["ttft_p50_s"] or 0)


def retry_storm(found: Figures) -> None:
    """It goes on when the burst is over; a larger batch doesn't end it, a further server does."""
    for stormy in ("base", "larger_batch"):
        assert (found[stormy]["unanswered_fraction"] or 0) > 0.4
        assert (found[stormy]["retries_total"] or 0) > 3_000
    assert (found["two_replicas"]["unanswered_fraction"] or 0) < 0.02


ANSWERS = (
    chat,
    memory_pressure,
    code_completion,
    long_documents,
    parallel_sampling,
    offline_batch,
    llama2_70b_4xa100,
    conversations,
    mixed_traffic,
    retry_storm,
)
REACTING = {conversations, mixed_traffic, retry_storm}  # clients send by what servers do


def test_each_scenario_that_ships_has_an_answer_here():
    shipped = {path.stem for path in SCENARIOS.glob("*.yaml")}
    assert shipped == {answer.__name__ for answer in ANSWERS}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.__name__)
def test_it_runs_and_answers_its_question(answer: Callable[[Figures], None], tmp_path):
    scenario = SCENARIOS / f"{answer.__name__}.yaml"
    arguments = ["run", str(scenario), "--out", str(tmp_path / "run"), "--no-report", "--json"]
    result = CliRunner().invoke(app_with(), arguments)
    summaries = json.loads(result.stdout)
    assert next(iter(summaries)) == "base"
    assert result.exit_code == (1 if summaries["base"]["verdict"]["met"] is False else 0)
    found = {variant: summary["figures"] for variant, summary in summaries.items()}
    for figures in found.values():  # nobody is lost, and all variants face the same requests
        outcomes = sum(figures[f"requests_{outcome}"] for outcome in OUTCOMES)
        assert outcomes == figures["requests_total"]
        assert answer in REACTING or outcomes == found["base"]["requests_total"]
    answer(found)
