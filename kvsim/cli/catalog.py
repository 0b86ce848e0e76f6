"""`kvsim catalog`: the models and the GPUs that a scenario can name."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

_UNKNOWN = "-"


def catalog(
    json: Annotated[bool, typer.Option("--json", help="For machines: JSON on stdout.")] = False,
) -> None:
    """List the models and the GPUs that a scenario can name."""
    from kvsim.gpu import gpu_names
    from kvsim.model import model_names

    models = [_model(name) for name in model_names()]
    gpus = [_gpu(name) for name in gpu_names()]
    if json:
        import json as json_format

        print(json_format.dumps({"models": models, "gpus": gpus}, indent=2))
    else:
        print("\n".join([*_model_lines(models), "", *_gpu_lines(gpus)]))


def _model(name: str) -> dict[str, Any]:
    from kvsim.model import load_model

    spec = load_model(name)
    stored = spec.quantization.weight_dtype if spec.quantization else spec.dtype
    return {
        "name": name,
        "parameters": sum(spec.parameters().values()),
        "active_parameters": spec.active_parameters(),
        "weight_dtype": stored,
        "weight_bytes": sum(spec.weight_bytes().values()),
        "kv_bytes_per_token": spec.kv_bytes_per_token(1),
        "max_position_embeddings": spec.max_position_embeddings,
    }


def _gpu(name: str) -> dict[str, Any]:
    from kvsim.gpu import load_gpu, price_of

    price = price_of(name)
    return load_gpu(name).as_dict() | {"usd_per_gpu_hour": price and price.usd_per_gpu_hour}


def _model_lines(models: Sequence[dict[str, Any]]) -> Iterator[str]:
    from kvsim.units import format_bytes

    width = max(len(model["name"]) for model in models)
    yield f"{'model':<{width}}{'params':>10}{'active':>9}{'weights':>12}{'KV/token':>12}  type"
    for model in models:
        yield (
            f"{model['name']:<{width}}{_billions(model['parameters']):>10}"
            f"{_billions(model['active_parameters']):>9}"
            f"{format_bytes(model['weight_bytes']):>12}"
            f"{format_bytes(model['kv_bytes_per_token']):>12}  {model['weight_dtype']}"
        )


def _gpu_lines(gpus: Sequence[dict[str, Any]]) -> Iterator[str]:
    from kvsim.units import GIB

    yield f"{'GPU':<22}{'memory':>9}{'GB/s':>8}{'bf16':>8}{'fp8':>8}{'USD/h':>8}  (dense TFLOP/s)"
    for gpu in gpus:
        price = gpu["usd_per_gpu_hour"]
        yield (
            f"{gpu['name']:<22}{gpu['hbm_bytes'] / GIB:>5.0f} GiB"
            f"{gpu['hbm_bytes_per_s'] / 1e9:>8,.0f}{_tera(gpu['bf16_flop_per_s']):>8}"
            f"{_tera(gpu['fp8_flop_per_s']):>8}{_UNKNOWN if price is None else f'{price:.2f}':>8}"
        )


def _billions(count: int) -> str:
    return f"{count / 1e9:,.1f} B"


def _tera(rate: float | None) -> str:
    return _UNKNOWN if rate is None else f"{rate / 1e12:,.0f}"
