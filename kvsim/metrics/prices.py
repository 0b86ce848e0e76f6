"""What the GPUs cost, in words."""

from collections.abc import Mapping
from typing import Any

from kvsim.metrics.catalog import format_figure
from kvsim.metrics.summary import Summary, estimate


def cost_in_words(summary: Summary, inputs: Mapping[str, Any]) -> str:
    """Say what the GPUs cost, by the hour and by the token; without a price, how to give one."""
    hourly = estimate(summary, "usd_per_hour")
    if hourly is None:
        return "No price of this GPU is known: set price_usd_per_gpu_hour in the scenario."
    words = f"{_usd(hourly)} an hour"
    a_million = estimate(summary, "usd_per_million_output_tokens")
    if a_million is None:
        words += "; no token was served, so there is no cost per token"
    else:
        words += f", {_usd(a_million)} per million output tokens"
    return f"{words}{_price_basis(inputs)}."


def _usd(amount: float) -> str:
    return format_figure("usd_per_hour", amount).removesuffix("/h")


def _price_basis(inputs: Mapping[str, Any]) -> str:
    price = inputs.get("price")
    if not price:
        return ""
    basis = f"at {_usd(price['usd_per_gpu_hour'])} a GPU hour"
    if price["as_of"]:
        basis += f" as of {price['as_of']}"
    if price["low"] < price["high"]:
        basis += f"; offers range from {_usd(price['low'])} to {_usd(price['high'])}"
    return f" ({basis})"
