"""Every GPU and every model of the catalogue has a price, or is refused by name."""

import pytest

from kvsim.cost.kernels import Deployment, build_cost
from kvsim.cost.overheads.none import NoOverhead
from kvsim.cost.step import KernelCost
from kvsim.cost.tables import load_arrays
from kvsim.errors import InputError
from kvsim.gpu import GpuSpec, gpu_names, load_gpu
from kvsim.model import load_model, model_names

REFUSED = {
    "linear attention": ("Qwen/Qwen3.5-",),
    "sparse attention": ("zai-org/GLM-5",),
}


def priced(model: str, gpu: GpuSpec, gpus: int = 1) -> KernelCost:
    return build_cost(load_model(model), gpu, Deployment(gpus, "auto", 256, 64, 2048), NoOverhead())


def gemm_basis(cost: KernelCost) -> set[str]:
    return {basis for component, basis, _ in cost.basis if component == "gemm"}


@pytest.mark.parametrize("gpu", gpu_names())
def test_every_gpu_has_a_price_and_says_whether_it_was_measured(gpu: str) -> None:
    cost = priced("meta-llama/Llama-3.1-8B-Instruct", load_gpu(gpu))
    measured = "gemm/bfloat16/us" in load_arrays(load_gpu(gpu))
    assert gemm_basis(cost) == ({"measured", "interpolated"} if measured else {"physical"})
    # A decode step streams the weights: it takes 1 to 2.2 times the time of that.
    stream_s = 15.0e9 / load_gpu(gpu).hbm_bytes_per_s
    assert stream_s < cost.step_ns(1, 1, 1, 500, 0.0) / 1e9 < 2.2 * stream_s


@pytest.mark.parametrize("model", model_names())
def test_every_model_has_a_price_or_is_refused_by_name(model: str) -> None:
    spec = load_model(model)
    reason = next((why for why, names in REFUSED.items() if model.startswith(names)), None)
    if reason:
        with pytest.raises(InputError, match=reason):
            priced(model, load_gpu("h100_sxm"), 2)
        return
    cost = priced(model, load_gpu("h100_sxm"), 2)
    stream_s = 2 * spec.active_parameters() / 3.35e12 / 2  # in 16 bit, half of it on each GPU
    one, many = (cost.step_ns(n, n, n, n * 1000, 0.0) / 1e9 for n in (1, 64))
    assert 0.2 * stream_s < one < 2 * stream_s + 5e-3
    assert one < many < 20 * one


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_sharing_a_layer_saves_time_on_nvlink_but_less_than_its_share(gpus: int) -> None:
    alone = priced("meta-llama/Llama-3.1-8B-Instruct", load_gpu("h100_sxm"))
    shared = priced("meta-llama/Llama-3.1-8B-Instruct", load_gpu("h100_sxm"), gpus)
    ratio = shared.step_ns(32, 32, 32, 32_000, 0.0) / alone.step_ns(32, 32, 32, 32_000, 0.0)
    assert 1 / gpus < ratio < 1


def test_the_users_own_gpu_is_priced_by_its_numbers_alone() -> None:
    slow = GpuSpec("mine", 2**36, 1e12, 2e14)
    fast = GpuSpec("mine too", 2**36, 2e12, 4e14)
    times = [
        priced("meta-llama/Llama-3.1-8B-Instruct", gpu).step_ns(1, 1, 1, 1000, 0.0)
        for gpu in (slow, fast)
    ]
    assert 1.7 < times[0] / times[1] < 2.0


def test_heads_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(InputError, match="can't be divided"):
        priced("meta-llama/Llama-3.1-8B-Instruct", load_gpu("h100_sxm"), 3)


def test_fp8_weights_decode_faster() -> None:
    plain = priced("Qwen/Qwen3-32B", load_gpu("h100_sxm"))
    small = priced("Qwen/Qwen3-32B-FP8", load_gpu("h100_sxm"))
    ratio = small.step_ns(8, 8, 8, 8000, 0.0) / plain.step_ns(8, 8, 8, 8000, 0.0)
    assert 0.5 < ratio < 0.75
