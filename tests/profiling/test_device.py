"""Which device is measured, and when none is; torch is a stub here."""

import sys
from types import SimpleNamespace

import pytest

from kvsim.errors import InputError
from kvsim.profiling.device import open_device
from kvsim.profiling.timing import CpuTimer, CudaTimer


def stub_torch(monkeypatch, available=True, capability=(9, 0)):
    about = SimpleNamespace(name="NVIDIA H100 80GB HBM3", L2_cache_size=52_428_800)
    cuda = SimpleNamespace(
        is_available=lambda: available,
        get_device_properties=lambda number: about,
        get_device_capability=lambda number: capability,
        mem_get_info=lambda number: (70_000_000_000, 80_000_000_000),
        device_count=lambda: 4,
    )
    torch = SimpleNamespace(__version__="2.13.0", cuda=cuda, set_num_threads=lambda number: None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"kvsim\[profile\]"):
        open_device("cpu")


def test_without_a_gpu_the_way_out_is_named(monkeypatch):
    stub_torch(monkeypatch, available=False)
    with pytest.raises(InputError, match="--device cpu"):
        open_device("cuda")


def test_a_gpu_is_called_as_its_driver_calls_it(monkeypatch):
    stub_torch(monkeypatch)
    device = open_device("cuda")
    assert device.name == "nvidia_h100_80gb_hbm3"
    assert device.full_name == "NVIDIA H100 80GB HBM3"
    assert isinstance(device.timer, CudaTimer)
    assert (device.cache_bytes, device.num_gpus) == (52_428_800, 4)
    assert 0 < device.usable_bytes < 70_000_000_000
    assert open_device("cuda", "ours_2").name == "ours_2"


@pytest.mark.parametrize(
    ("capability", "has_fp8"), [((8, 0), False), ((8, 9), True), ((12, 0), True)]
)
def test_fp8_is_for_ada_and_newer(monkeypatch, capability, has_fp8):
    stub_torch(monkeypatch, capability=capability)
    assert open_device("cuda").has_fp8 == has_fp8


@pytest.mark.parametrize("name", ["cpu", "my gpu", "../x", "é"])
def test_a_gpu_is_not_called_cpu_nor_anything_that_is_no_name(monkeypatch, name):
    stub_torch(monkeypatch)
    with pytest.raises(InputError, match="--name"):
        open_device("cuda", name)


def test_a_cpu_can_never_pass_for_a_gpu(monkeypatch):
    stub_torch(monkeypatch)
    device = open_device("cpu")
    assert device.name == "cpu"
    assert isinstance(device.timer, CpuTimer)
    with pytest.raises(InputError, match="--name"):
        open_device("cpu", "h100_sxm")
