"""Compare forms of prefill attention with measured calls: the data set's own and kvsim's.

Usage: python tools/check_attention.py SOURCE_DIR

SOURCE_DIR holds `gpus.csv`, `attention_decode.parquet`, `attention_mixed.parquet` (a chunk on a
prefix and decodes, FlashAttention 2 on RTX PRO 6000 and RTX 4090) and `attention_prefill.parquet`
(a chunk on a prefix alone, on the same GPUs; several prompts without prefix, on all; the largest
batch of each length is packed, so left out).
The figures in `kvsim.cost.attention.price_prefill` are this tool's.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kvsim.cost import prefill as pricing
from kvsim.cost.attention import Heads, price_decode
from kvsim.cost.prefill import PrefillPrice, price_prefill
from kvsim.cost.tables import Floats, fit
from kvsim.gpu import GpuSpec, load_gpu
from kvsim.units import NS_PER_S, NS_PER_US

LONGEST = 16_384
TOKENS = np.arange(LONGEST + 1)
OTHERS_L2_MB = 126.0  # where a GPU's cache is unknown
KEYS = {"gpu", "prompts", "head_dim", "window", "kv_dtype"}
LENGTHS = (15, 64, 512, LONGEST)


@dataclass(frozen=True, slots=True)
class PublishedForm:
    """t_fix + max(4·q·d·c128·(p + c/2)/(e·peak), t_key·(p + c)·waves) for each chunk."""

    fixed_ns: float
    compute_eff: float
    key_ns: float

    def chunk_ns(self, gpu: GpuSpec, heads: Heads, new: Any, prefix: Any) -> Floats:
        """Return the time of chunks, each with the fixed cost of a call."""
        tiles = np.ceil(new / pricing.ROWS)
        flops = heads.flop_per_pair * tiles * pricing.ROWS * (prefix + new / 2)
        by_flops = flops / (self.compute_eff * gpu.bf16_flop_per_s) * NS_PER_S
        sm_count = gpu.sm_count or pricing.OTHERS_SM_COUNT
        by_loop = self.key_ns * (prefix + new) * np.ceil(heads.q_heads * tiles / sm_count)
        return np.asarray(self.fixed_ns + np.maximum(by_flops, by_loop), np.float64)


# The constants that the data set gives for prefixes on RTX PRO 6000 (e is 0.45 to 0.53).
ON_RTX_PRO = PublishedForm(7_000.0, 0.49, 21.0)


def main(source: Path) -> None:
    """Print the comparisons."""
    prefill = pd.read_parquet(source / "attention_prefill.parquet")
    mixed = pd.read_parquet(source / "attention_mixed.parquet")
    on_prefix = prefill[prefill.prefix_tokens > 0].assign(n_decode=0, kv_decode=0)
    names = {"new_tokens": "prefill_chunk", "prefix_tokens": "kv_prefill"}
    print(_errors("a chunk on a prefix alone", _chunks(on_prefix.rename(columns=names))))
    print(_errors("a chunk and decodes in one call", _chunks(mixed)))
    several = _several(prefill)
    _print_groups("several prompts in one call", several, ["prompts"])
    _print_groups("several prompts in one call", several, ["gpu", "prompts"])
    decode = _decode(pd.read_parquet(source / "attention_decode.parquet"), source)
    _print_groups("decode, KV beyond L2", decode, ["gpu", "kv_dtype"])
    _print_groups("decode, KV beyond L2", decode, ["head_dim", "window", "kv_dtype"])


def _chunks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return predicted / measured time by form, of calls with one chunk and some decodes."""
    return pd.concat([_calls(str(gpu), q, kv, part) for (gpu, q, kv), part in _by_call(rows)])


def _calls(name: str, q_heads: int, kv_heads: int, part: pd.DataFrame) -> pd.DataFrame:
    gpu, heads = load_gpu(name), _heads(q_heads, kv_heads)
    price = price_decode(gpu, heads, LONGEST)
    new, prefix = part.prefill_chunk.to_numpy(), part.kv_prefill.to_numpy()
    seqs_ns = part.n_decode.to_numpy() * price.seq_ns[part.kv_decode.to_numpy()]
    decode_ns = (price.fixed_ns + seqs_ns) * price.mixed_factor * (part.n_decode > 0)
    forms = {
        "published, constants of RTX PRO 6000": ON_RTX_PRO.chunk_ns(gpu, heads, new, prefix),
        "published, fitted constants": _published(gpu, heads).chunk_ns(gpu, heads, new, prefix),
        "kvsim without slower prefixes": _kvsim_ns(gpu, heads, new, prefix, slowdown=1.0),
        "kvsim": _kvsim_ns(gpu, heads, new, prefix, pricing.FA2_PREFIX_SLOWDOWN),
    }
    measured_ns = part.latency_us.to_numpy() * NS_PER_US
    return pd.DataFrame({form: (ns + decode_ns) / measured_ns for form, ns in forms.items()})


def _several(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the same of calls with several prompts: sharing the GPU, or one after the other."""
    chosen = rows[(rows.framework == "vllm") & (rows.source == "aiconfigurator")]
    chosen = chosen[(chosen.window == 0) & (chosen.head_dim == 128) & (chosen.new_tokens >= 16)]
    chosen = chosen[(chosen.kv_dtype == "bfloat16") & (chosen.batch > 1)]
    parts = []
    for (name, q_heads, kv_heads), part in _by_call(chosen):
        part = part[part.batch < part.groupby("new_tokens").batch.transform("max")]
        price = price_prefill(load_gpu(str(name)), _heads(q_heads, kv_heads), TOKENS)
        new, batch = part.new_tokens.to_numpy(), part.batch.to_numpy()
        alone_ns = _chunk_ns(price, new, np.zeros(len(new)))
        share_ns = price.share_ns[new] + price.pair_ns[new] * new / 2
        measured_ns = part.latency_us.to_numpy() * NS_PER_US
        ratios = {
            "gpu": str(name),
            "prompts": pd.cut(new, LENGTHS),
            "kvsim": (price.fixed_ns + np.maximum(alone_ns, batch * share_ns)) / measured_ns,
            "one after the other": (price.fixed_ns + batch * alone_ns) / measured_ns,
            "a call for each": batch * (price.fixed_ns + alone_ns) / measured_ns,
        }
        parts.append(pd.DataFrame(ratios))
    return pd.concat(parts)


def _decode(rows: pd.DataFrame, source: Path) -> pd.DataFrame:
    """Return predicted / measured time of decode calls whose KV is twice the L2 cache or more."""
    rows = rows[(rows.framework == "vllm") & (rows.source == "aiconfigurator")]
    l2_mb = pd.read_csv(source / "gpus.csv").set_index("gpu").l2_mb.fillna(OTHERS_L2_MB)
    keys = ["gpu", "head_dim", "window", "kv_dtype"]
    parts = []
    for (name, size, window, kv_dtype, q_heads, kv_heads), part in rows.groupby(
        [*keys, "q_heads", "kv_heads"], observed=True
    ):
        flop, kv_bytes = 4.0 * q_heads * size, kv_heads * size * (2 if kv_dtype == "fp8" else 4)
        heads = Heads(q_heads, kv_heads, size, flop, flop, kv_bytes, str(kv_dtype), window)
        read = part.kv_len.clip(upper=window or None) * part.batch * kv_bytes
        cold = part[read >= 2e6 * l2_mb[name]]
        price = price_decode(load_gpu(str(name)), heads, int(part.kv_len.max()))
        seqs_ns = cold.batch.to_numpy() * price.seq_ns[cold.kv_len.to_numpy()]
        ratio = (price.fixed_ns + seqs_ns) / (cold.latency_us.to_numpy() * NS_PER_US)
        parts.append(cold[keys].assign(kvsim=ratio))
    return pd.concat(parts)


def _print_groups(title: str, ratios: pd.DataFrame, keys: list[str]) -> None:
    named = [column for column in ratios if column in KEYS]
    for names, part in ratios.groupby(keys, observed=True):
        print(_errors(", ".join([title, *map(str, names)]), part.drop(columns=named)))


def _heads(q_heads: int, kv_heads: int) -> Heads:
    flop = 4.0 * q_heads * 128
    return Heads(q_heads, kv_heads, 128, flop, flop, 4.0 * kv_heads * 128, "bfloat16")


def _published(gpu: GpuSpec, heads: Heads) -> PublishedForm:
    constants = fit("attention_prefill", gpu, heads.kv_dtype)
    names = ("t_fix_us", "compute_eff", "serial_ns_per_key")
    fixed_us, compute_eff, key_ns = (constants[name] for name in names)
    return PublishedForm(fixed_us * NS_PER_US, compute_eff, key_ns)


def _kvsim_ns(gpu: GpuSpec, heads: Heads, new: Any, prefix: Any, slowdown: float) -> Floats:
    """Return kvsim's price of one chunk in a call, with a slowdown of prefixes on FA2."""
    own = pricing.FA2_PREFIX_SLOWDOWN
    pricing.FA2_PREFIX_SLOWDOWN = slowdown
    price = price_prefill(gpu, heads, TOKENS)
    pricing.FA2_PREFIX_SLOWDOWN = own
    return price.fixed_ns + _chunk_ns(price, new, prefix)


def _chunk_ns(price: PrefillPrice, new: Any, prefix: Any) -> Floats:
    keys = prefix + new / 2
    by_loop = price.key_ns[new] * keys + price.tail_ns * new / 2
    return np.asarray(price.base_ns[new] + np.maximum(price.pair_ns[new] * keys, by_loop))


def _by_call(rows: pd.DataFrame) -> Any:
    return rows.groupby(["gpu", "q_heads", "kv_heads"], observed=True)


def _errors(title: str, ratios: pd.DataFrame) -> str:
    """Return median and 90th percentile of the error, and the median bias, in percent."""
    lines = [f"{title} ({len(ratios):,} calls): error, 90th percentile, bias in percent"]
    for form in ratios:
        error = 100 * (ratios[form] - 1)
        figures = (error.abs().median(), error.abs().quantile(0.9), error.median())
        lines.append(f"  {form:38}" + "".join(f"{figure:9.1f}" for figure in figures))
    return "\n".join(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
