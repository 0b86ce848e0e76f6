from typing import Any

import pytest

import kvsim.cost.overheads
from kvsim.cost.overheads.async_engine import AsyncEngine
from kvsim.cost.overheads.synchronous import Synchronous
from kvsim.policy import policies_in

KINDS: dict[str, Any] = {
    policy.model_fields["kind"].default: policy.model_validate({})
    for policy in policies_in(kvsim.cost.overheads)
}

# Seconds of CPU time in a step of Sarathi-Serve, Llama-2-7B on A100: (GPUs, sequences).
VIDUR_S = {
    (1, 8): 2.127e-3, (1, 32): 4.728e-3, (1, 64): 8.049e-3,
    (2, 8): 5.457e-3, (2, 32): 7.953e-3, (2, 64): 15.139e-3,
    (4, 8): 5.640e-3, (4, 32): 9.914e-3, (4, 64): 17.492e-3,
}  # fmt: skip


def test_the_kinds_are_known() -> None:
    assert sorted(KINDS) == ["async_engine", "none", "synchronous"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_more_sequences_never_take_less_time(kind: str, gpus: int) -> None:
    times = [KINDS[kind].host_s(seqs, 0 if gpus == 1 else 65, gpus) for seqs in range(300)]
    assert times[0] >= 0
    assert times == sorted(times)
    assert KINDS[kind].source()


def test_the_residual_of_public_runs_is_met() -> None:
    engine = AsyncEngine()
    assert engine.host_s(12, 0, 1) == pytest.approx(0.46e-3, rel=0.05)
    assert engine.host_s(35, 0, 1) == pytest.approx(0.78e-3, rel=0.05)


def test_skew_between_gpus_counts_from_four_of_them() -> None:
    engine = AsyncEngine()
    assert engine.host_s(10, 65, 2) == engine.host_s(10, 0, 1)
    assert engine.host_s(10, 65, 4) - engine.host_s(10, 0, 1) == pytest.approx(65 * 5.5e-6)


@pytest.mark.parametrize(("gpus", "seqs"), VIDUR_S)
def test_the_synchronous_engine_is_near_its_measurements(gpus: int, seqs: int) -> None:
    measured_s = VIDUR_S[gpus, seqs]
    assert Synchronous().host_s(seqs, 65, gpus) == pytest.approx(measured_s, rel=0.28)
    if gpus == 1:
        assert Synchronous().host_s(seqs, 0, 1) == pytest.approx(measured_s, rel=0.05)
