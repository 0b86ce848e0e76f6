"""GPUs: the catalog, prices with a source, and GPUs of the user's own."""

import pytest
from pydantic import ValidationError

from kvsim.errors import InputError
from kvsim.gpu import CustomGpu, GpuSpec, gpu_names, load_gpu, price_of

OWN = {"name": "mine", "hbm_bytes": 80e9, "hbm_bytes_per_s": 3e12, "bf16_flop_per_s": 9e14}


def test_every_gpu_of_the_catalog_is_plausible() -> None:
    assert len(gpu_names()) == 21
    for name in gpu_names():
        gpu = load_gpu(name)
        assert gpu.name == name
        assert 10e9 < gpu.hbm_bytes < 400e9
        assert 0.2e12 < gpu.hbm_bytes_per_s < 10e12
        assert gpu.source
        if gpu.usable_hbm_bytes is not None:
            assert gpu.usable_hbm_bytes == pytest.approx(gpu.hbm_bytes, rel=0.02)
        if gpu.fp8_flop_per_s is not None:
            assert gpu.fp8_flop_per_s == pytest.approx(2 * gpu.bf16_flop_per_s, rel=0.03)


def test_h100_is_the_data_sheets() -> None:
    gpu = load_gpu("h100_sxm")
    assert gpu.hbm_bytes == 80 * 2**30
    assert gpu.hbm_bytes_per_s == 3.35e12
    assert gpu.sm_count == 132
    assert gpu.sm_arch == 90
    assert gpu.link_bytes_per_s == 450e9


def test_a_gpu_is_never_replaced_by_another() -> None:
    with pytest.raises(InputError, match="did you mean h100_pcie or h100_sxm"):
        load_gpu("H100")
    with pytest.raises(InputError, match="a100_sxm, a100_sxm_40gb, l4"):
        load_gpu("quantum")


def test_prices_have_a_date_and_a_source_or_are_unknown() -> None:
    price = price_of("h100_sxm")
    assert price is not None
    assert price.low < price.usd_per_gpu_hour < price.high
    assert price.as_of
    assert price.source
    assert price_of("t4") is None
    assert price_of("mine") is None


def test_a_gpu_of_the_users_own_knows_only_what_was_said() -> None:
    spec = CustomGpu.model_validate(OWN).spec()
    assert spec == GpuSpec(
        name="mine", hbm_bytes=80_000_000_000, hbm_bytes_per_s=3e12, bf16_flop_per_s=9e14
    )
    assert isinstance(spec.hbm_bytes, int)
    assert spec.usable_hbm_bytes is None


@pytest.mark.parametrize(
    "change",
    [
        {"name": "h100_sxm"},
        {"name": ""},
        {"hbm_bytes": 0},
        {"hbm_bytes": -1.0},
        {"hbm_bytes_per_s": float("inf")},
        {"bf16_flop_per_s": "fast"},
        {"hbm_gb": 80},
        {"hbm_bytes": 1.1e14},
        {"hbm_bytes_per_s": 1e300},
        {"bf16_flop_per_s": 1.0},
        {"link_bytes_per_s": 1e-300},
        {"pcie_bytes_per_s": 2e18},
        {"usable_hbm_bytes": 81e9},
        {"sm_count": 10**20},
        {"name": "a\x1bb"},
    ],
)
def test_impossible_gpus_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CustomGpu.model_validate(OWN | change)
