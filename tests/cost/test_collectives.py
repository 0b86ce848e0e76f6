import numpy as np
import pytest

from kvsim.cost.collectives import collective_curve, gather_curve
from kvsim.cost.tables import fit, load_arrays
from kvsim.errors import InputError
from kvsim.gpu import GpuSpec, load_gpu

SIZES = np.array([0.0, 1e3, 1e5, 1e7, 1e9])


@pytest.mark.parametrize(("gpu", "gpus"), [("h100_sxm", 8), ("a100_sxm", 4), ("l40s", 2)])
def test_a_measured_size_is_its_own_price(gpu: str, gpus: int) -> None:
    arrays = load_arrays(load_gpu(gpu))
    sizes = arrays[f"all_reduce/{gpus}/bytes"].astype(np.float64)
    curve = collective_curve("all_reduce", load_gpu(gpu), gpus, sizes, times=3)
    assert curve.ns == pytest.approx(3e3 * arrays[f"all_reduce/{gpus}/us"], rel=1e-5)
    assert curve.part.basis == "measured"


def test_without_a_table_latency_and_ring_bandwidth() -> None:
    gpu = load_gpu("a100_sxm_40gb")
    curve = collective_curve("all_reduce", gpu, 4, SIZES)
    like = fit("all_reduce", load_gpu("h100_sxm"), "4")
    expected_us = like["alpha_us"] + SIZES * 1.5 / (like["bus_eff"] * 3e11) * 1e6
    assert curve.ns[1:] == pytest.approx(expected_us[1:] * 1e3)
    assert curve.ns[0] == 0
    assert curve.part.basis == "physical"


def test_pcie_is_not_priced_like_nvlink() -> None:
    over_pcie = collective_curve("all_reduce", load_gpu("rtx4090"), 4, SIZES)
    over_nvlink = collective_curve("all_reduce", load_gpu("v100_sxm"), 4, SIZES)
    assert np.all(over_pcie.ns[1:] > 2 * over_nvlink.ns[1:])
    assert "rtx_pro_6000_server" in over_pcie.part.note


def test_an_unknown_link_is_a_mistake_of_the_user() -> None:
    gpu = GpuSpec("mine", 2**34, 1e12, 1e14)
    with pytest.raises(InputError, match="link_bytes_per_s"):
        collective_curve("all_reduce", gpu, 2, SIZES)
    with pytest.raises(InputError, match="link_bytes_per_s"):
        gather_curve(gpu, SIZES)
