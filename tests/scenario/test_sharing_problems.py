"""What the scheduler and the sequences of a workload must agree on."""

import pytest

from kvsim.errors import InputError
from kvsim.scenario.resolve import resolve
from kvsim.scenario.schema import Scenario

LENGTHS = {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 20}
WORKLOAD = {"arrivals": {"kind": "poisson", "rate_per_s": 1.0}, "lengths": LENGTHS}
PREFIXES = {"kind": "shared_prefix", "prefix_tokens": 50}
V0, SWAPS, DECLARED = (
    {"kind": "vllm_v0", **more}
    for more in ({}, {"preemption": "recompute"}, {"declared_prefixes": True})
)


def scenario(scheduler, gpu="a100_sxm", max_num_seqs=8, **workload):
    return Scenario(
        model="facebook/opt-13b",
        gpu=gpu,
        scheduler=scheduler,
        engine={"max_num_seqs": max_num_seqs},
        workload={**WORKLOAD, "num_requests": 5, **workload},
    )


def problems(*arguments, **options):
    with pytest.raises(InputError) as caught:
        resolve(scenario(*arguments, **options))
    return {problem.path: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize("kind", ["vllm", "sarathi"])
def test_beams_need_an_engine_that_searches(kind):
    found = problems({"kind": kind}, beam_width=4)
    assert "knows no beam search" in found["workload.beam_width"]


def test_a_group_has_to_fit_the_batch():
    assert "at most max_num_seqs (8)" in problems(V0, n=9)["workload.n"]
    assert "at most max_num_seqs (8)" in problems(V0, beam_width=9)["workload.beam_width"]
    resolve(scenario(V0, n=8))


def test_groups_are_swapped_so_the_link_has_to_be_known():
    assert "can't be computed again" in problems(SWAPS, n=2)["scheduler.preemption"]
    gpu = {
        "name": "mine",
        "hbm_bytes": 80 * 10**9,
        "hbm_bytes_per_s": 2e12,
        "bf16_flop_per_s": 3e14,
    }
    assert "pcie_bytes_per_s of mine" in problems(V0, gpu, n=2)["gpu"]
    resolve(scenario(SWAPS))


def test_declared_prefixes_need_prompts_that_have_them():
    found = problems(DECLARED)
    assert "begin with a system prompt" in found["scheduler.declared_prefixes"]
    resolve(scenario(DECLARED, prompts=PREFIXES))
