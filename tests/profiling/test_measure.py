"""Going through the shapes: what is timed, what is left out and why, when nothing is written."""

import pytest

from kvsim.errors import InputError
from kvsim.profiling import measure as room
from kvsim.profiling.kernels import Work
from kvsim.profiling.shapes import AllReduce, AttentionCall, Gemm
from tests.profiling.stubs import AcceleratorError, fake_device

GEMMS = [Gemm(m, 64, 64, "bfloat16") for m in (1, 2, 4)]
PAGED = AttentionCall("decode", 4, 2, 64, 1, 1, 100, 16, True, True)
REDUCES = [AllReduce(2, 256), AllReduce(2, 512)]


class SumTimer:
    """Takes the sum of what the calls return for the time."""

    def median_us(self, calls):
        return float(sum(call() for call in calls))


@pytest.fixture
def device(monkeypatch):
    def work_of(device, shape):
        if shape is PAGED:
            raise NotImplementedError("Could not run it\nbacktrace")
        return Work("stub", [lambda: shape.m, lambda: 0.5])

    monkeypatch.setattr(room, "work_of", work_of)
    monkeypatch.setattr(room, "time_all_reduces", lambda device, shapes: [7.0] * len(shapes))
    return fake_device(timer=SumTimer())


def test_rows_keep_the_order_of_the_shapes(device):
    told = []
    measured = room.measure([*GEMMS, *REDUCES], device, told.append)
    assert [row["latency_us"] for row in measured.rows["gemm"]] == [1.5, 2.5, 4.5]
    assert [row["m"] for row in measured.rows["gemm"]] == [1, 2, 4]
    assert {row["kernel"] for row in measured.rows["gemm"]} == {"stub"}
    assert [row["bytes"] for row in measured.rows["comm"]] == [256, 512]
    assert {row["impl"] for row in measured.rows["comm"]} == {"torch_distributed_nccl"}
    assert told == [0, 1, 2, 3, 5]
    assert not measured.refused


def test_what_torch_refuses_is_counted_with_its_reason(device):
    measured = room.measure([PAGED, *GEMMS, PAGED], device)
    assert measured.refused == {("attention_layouts", "Could not run it"): 2}
    assert set(measured.rows) == {"gemm"}


def test_what_does_not_fit_is_not_tried(device):
    huge = Gemm(8, 10**6, 10**6, "bfloat16")
    measured = room.measure([huge, *GEMMS], device)
    ((table, reason),) = measured.refused
    assert table == "gemm"
    assert "memory" in reason
    assert huge.m not in {row["m"] for row in measured.rows["gemm"]}


def test_an_all_reduce_that_fails_leaves_the_rest(device, monkeypatch):
    def fail(device, shapes):
        raise RuntimeError("only one GPU here")

    monkeypatch.setattr(room, "time_all_reduces", fail)
    measured = room.measure([*GEMMS, *REDUCES], device)
    assert measured.refused == {("comm", "only one GPU here"): 2}
    assert set(measured.rows) == {"gemm"}


def test_nothing_timed_is_a_mistake_with_all_reasons(device):
    with pytest.raises(InputError) as caught:
        room.measure([PAGED], device)
    assert "attention_layouts: Could not run it" in str(caught.value)


def test_a_gpu_that_failed_ends_it_all(device, monkeypatch):
    def crash(device, shape):
        raise AcceleratorError("an illegal memory access was encountered")

    monkeypatch.setattr(room, "work_of", crash)
    with pytest.raises(InputError, match="the GPU failed"):
        room.measure(GEMMS, device)
