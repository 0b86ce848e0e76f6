import numpy as np
import pytest

from kvsim.cost.collectives import collective_curve, deepep_curve, gather_curve, hop_curve
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


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_to_all"])
def test_other_collectives_have_tables_and_a_ring_without_them(op):
    h100 = load_gpu("h100_sxm")
    arrays = load_arrays(h100)
    sizes = arrays[f"{op}/4/bytes"].astype(np.float64)
    curve = collective_curve(op, h100, 4, sizes)
    assert curve.ns == pytest.approx(1e3 * arrays[f"{op}/4/us"], rel=1e-5)
    assert curve.part.basis == "measured"
    ring = collective_curve(op, load_gpu("a100_sxm_40gb"), 4, SIZES)
    like = fit(op, h100, "4")
    expected_us = like["alpha_us"] + SIZES * 0.75 / (like["bus_eff"] * 3e11) * 1e6
    assert ring.ns[1:] == pytest.approx(expected_us[1:] * 1e3)
    assert op.replace("_", "-") in ring.part.note


def test_an_all_reduce_takes_about_a_reduce_scatter_and_an_all_gather():
    large = np.array([2.5e8])
    for gpu in ("h100_sxm", "b200_sxm"):
        one, *two = (
            float(collective_curve(op, load_gpu(gpu), 8, large).ns[0])
            for op in ("all_reduce", "all_gather", "reduce_scatter")
        )
        assert one == pytest.approx(sum(two), rel=0.35)


def test_hops_are_measured_or_latency_and_bytes():
    sizes = np.array([0.0, 1e6, 5e7])
    for between_nodes, rate in ((False, 9e11), (True, 1e11)):
        b200 = hop_curve(load_gpu("b200_sxm"), sizes, between_nodes)
        assert b200.ns == pytest.approx([0, 1e4 + 1e15 / rate, 1e4 + 5e16 / rate])
        assert b200.part.basis == "physical"
        h100 = hop_curve(load_gpu("h100_sxm"), sizes, between_nodes)
        assert h100.part.basis == "measured"
        ratio = h100.ns[2] / (5e16 / (4.5e11 if not between_nodes else 5e10))
        assert 1 < ratio < 2


def test_a_network_that_is_not_known_is_a_mistake_of_the_user():
    gpu = GpuSpec("mine", 2**34, 1e12, 1e14, link_bytes_per_s=1e11)
    hop_curve(gpu, SIZES, between_nodes=False)
    with pytest.raises(InputError, match="network_bytes_per_s"):
        hop_curve(gpu, SIZES, between_nodes=True)


def test_deepep_is_measured_for_its_sizes_and_refused_beyond_its_node():
    h100 = load_gpu("h100_sxm")
    arrays = load_arrays(h100)
    tokens = np.array([0.0, 8.0, 64.0, 512.0])
    for mode in ("normal", "low_latency"):
        sizes = tuple(arrays[f"deepep/8/{mode}/shapes"][3].tolist())
        curve = deepep_curve(h100, 8, mode, tokens, sizes)
        grid = arrays[f"deepep/8/{mode}/tokens"].tolist()
        row = arrays[f"deepep/8/{mode}/us"][3]
        assert curve.ns[1:] == pytest.approx([1e3 * row[grid.index(n)] for n in (8, 64, 512)])
        assert curve.part.basis == "measured"
        hidden, topk, experts = sizes
        near = deepep_curve(h100, 8, mode, tokens, (hidden + 64, topk, experts))
        assert near.part.basis == "extrapolated"
        assert near.ns[1:] == pytest.approx(curve.ns[1:], rel=0.3)
        with pytest.raises(InputError, match="not measured among 4"):
            deepep_curve(h100, 4, mode, tokens, sizes)


@pytest.mark.parametrize(
    ("gpu", "gpus", "doubt"),
    [("l40s", 2, "PCIe"), ("l40s", 8, "far slower"), ("rtx4090", 2, "PCIe"), ("h100_sxm", 8, "")],
)
def test_doubts_about_a_link_are_told(gpu, gpus, doubt):
    note = collective_curve("all_reduce", load_gpu(gpu), gpus, SIZES).part.note
    assert (doubt in note) if doubt else note == ""
