"""Packs the kernel timings into `kvsim/data/kernels`: one compressed array file for each GPU.

Usage: python tools/pack_kernels.py SOURCE_DIR [TARGET_DIR]

SOURCE_DIR holds the tidy Parquet tables and the `fit_*.csv` constants. What is left out, and why:

- n or k = 51,200 of the GEMM grid (absent on some GPUs; the grid is a full rectangle without it);
- fp8_block GEMM (timed eagerly: a floor of 60 to 290 µs that no engine sees; where it takes three
  times that and has over 1,024 tokens, the median is 0.85 to 1.1 times that of fp8 with scales per
  token on Hopper and Blackwell, 1.3 to 1.4 times on L40S);
- lone spikes of the GEMM tables, see `without_spikes`;
- decode attention but for plain heads of 128 (forms fitted on all rows cover the others);
- prefill attention on a prefix (a form covers it) and of several prompts but for the largest batch
  of each length;
- routing of experts by the power law with exponent 1.01 (within 10 % of 1.2 up to 1,024 tokens);
- three in four of the sizes of point-to-point copies, which are measured densely.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kvsim.calibrate.pack import (
    Arrays,
    by_bytes,
    decode_arrays,
    gemm_arrays,
    moe_arrays,
    prefill_arrays,
    spread,
)

# The A100's vLLM tables are sparse (GEMM) or have a floor of 95 µs (MoE); sglang's are dense.
DENSE_FRAMEWORK = {"a100_sxm": "sglang"}
NCCL_OPS = ("all_gather", "all_to_all", "reduce_scatter")
# SMs that the kernels use: DeepEP's default; the other mode has no such choice.
DEEPEP_SMS = {"normal": 20, "low_latency": -1}
# Topologies of the source that are whole: those of 8 GPUs with all-to-all NVLink.
SEND_RECV = {"dgx": "node", "dgx_internode": "network"}
SPIKE = 1.3
SETTLED_TOKENS, SETTLED_POINTS = 48, 5


def smooth_gemm_arrays(rows: pd.DataFrame) -> Arrays:
    """Return the cubes of one GPU without lone spikes, settled where there are few tokens."""
    arrays = gemm_arrays(rows[(rows.n != 51200) & (rows.k != 51200)])
    for name in [name for name in arrays if name.endswith("/us")]:
        m = arrays[f"{name.removesuffix('us')}m"]
        arrays[name] = settled(without_spikes(arrays[name]), m)
    return arrays


def without_spikes(us: Any) -> Any:
    """Return latencies [m, …] where none is over 1.3 times those of both neighbours in m.

    A lone reading that high is noise: no tile edge lies between it and both of its neighbours. It
    takes the larger of theirs. On B200, 3.5 % of the fp8 readings are so (1.3 to 3 times those of
    the three other data center Blackwells), elsewhere at most 1.1 %.
    """
    around = np.fmax(us[:-2], us[2:])
    inside = np.where(us[1:-1] > SPIKE * around, around, us[1:-1])
    return np.concatenate([us[:1], inside, us[-1:]])


def settled(us: Any, m: Any) -> Any:
    """Return latencies [m, …] of which those of few tokens are means over neighbours in m.

    Up to 48 tokens a product streams its weights, and its readings jump between two levels some
    17 % apart from one m to the next and back (H100, bf16, 16384 × 4096: 46.6 µs at 10 rows, 54.4
    at 11 and 12, 46.7 at 13): a state of the memory, not of m. An engine meets either.
    """
    smooth, few = us.copy(), int(np.searchsorted(m, SETTLED_TOKENS, side="right"))
    reach = SETTLED_POINTS // 2
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of combinations that nobody measured
        for place in range(few):
            near = us[max(0, place - reach) : place + reach + 1]
            smooth[place] = np.exp(np.nanmean(np.log(near), axis=0))
    return smooth


def prompts_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return vLLM's rows, of the source that has most of them if there are several."""
    chosen = rows[rows.framework == "vllm"]
    densest = chosen[chosen.source == "aiconfigurator"]
    return chosen if densest.empty else densest


def all_reduce_arrays(rows: pd.DataFrame) -> Arrays:
    """Return latencies by bytes for each number of GPUs, replayed in CUDA graphs."""
    chosen = rows[(rows.op == "all_reduce") & (rows.launch == "graph")]
    arrays: Arrays = {}
    for world, part in chosen.groupby("world_size"):
        has_vllm = (part.framework == "vllm").any()
        one = part[part.framework == ("vllm" if has_vllm else "sglang")]
        arrays |= by_bytes(f"all_reduce/{world}", one)
    return arrays


def nccl_arrays(rows: pd.DataFrame) -> Arrays:
    """Return latencies by bytes of NCCL's other collectives, for each number of GPUs."""
    chosen = rows[rows.op.isin(NCCL_OPS) & (rows.impl == "nccl") & (rows.dtype == "half")]
    arrays: Arrays = {}
    for (op, world), part in chosen.groupby(["op", "world_size"], observed=True):
        arrays |= by_bytes(f"{op}/{world}", part)
    return arrays


def send_recv_arrays(rows: pd.DataFrame) -> Arrays:
    """Return latencies by bytes of a copy from one GPU to another, in a node and between two."""
    arrays: Arrays = {}
    for topology, place in SEND_RECV.items():
        part = rows[(rows.op == "send_recv") & (rows.topology == topology)]
        if not part.empty:
            arrays |= by_bytes(f"send_recv/{place}", part, keep_every=4)
    return arrays


def deepep_arrays(rows: pd.DataFrame, gpus: int) -> Arrays:
    """Return latencies [(hidden, topk, experts), tokens of a GPU] of dispatch and combine."""
    arrays: Arrays = {}
    for mode, sms in DEEPEP_SMS.items():
        part = rows[(rows["mode"] == mode) & (rows.sms == sms)]
        if not part.empty:
            summed = part.assign(latency_us=part.dispatch_us + part.combine_us)
            table = spread(summed, ["hidden", "topk", "experts"], "tokens")
            names = (f"deepep/{gpus}/{mode}/{axis}" for axis in ("shapes", "tokens", "us"))
            arrays |= dict(zip(names, table, strict=True))
    return arrays


def quantize_arrays(rows: pd.DataFrame) -> Arrays:
    """Return what the dynamic scale of an fp8 activation [m, k] costs over a static one."""
    chosen = rows[rows.op == "compute_scale"]
    if chosen.empty:
        return {}
    keys, k, table = spread(chosen, ["m"], "k")
    return {"dynamic_scale/m": keys[:, 0], "dynamic_scale/k": k, "dynamic_scale/us": table}


def fit_tables(source: Path) -> dict[str, pd.DataFrame]:
    """Return the fitted constants of the physical forms, with the GPU's compute capability."""
    tables = {
        name: pd.read_csv(source / f"fit_{name}.csv")
        for name in ("gemm", "attention_decode", "attention_prefill")
    }
    comm = pd.read_csv(source / "fit_comm.csv")
    columns = ["gpu", "world_size", "alpha_us", "bus_eff"]
    graph = comm[(comm.op == "all_reduce") & (comm.launch == "graph")]
    wanted = graph.impl.str.startswith("vllm") | (
        (graph.gpu == "l40s") & graph.impl.str.startswith("sglang")
    )
    tables["all_reduce"] = graph[wanted][columns]
    for op in NCCL_OPS:
        nccl = comm[(comm.op == op) & (comm.impl == "nccl") & (comm.dtype == "half")]
        tables[op] = nccl[columns]
    arch = pd.read_csv(source / "gpus.csv").set_index("gpu").sm_arch
    for name, table in tables.items():
        dropped = [c for c in table if str(c).startswith("holdout") or c == "valid"]
        tables[name] = table.drop(columns=dropped)
        tables[name].insert(1, "sm_arch", table.gpu.map(arch))
    return tables


def main(source: Path, target: Path) -> None:
    """Write all files of the package's kernel data, and report their sizes."""
    target.mkdir(parents=True, exist_ok=True)
    names = (
        "gemm",
        "attention_prefill",
        "attention_decode",
        "moe",
        "comm",
        "comm_deepep",
        "quantize",
    )
    gpus = pd.read_csv(source / "gpus.csv").set_index("gpu")
    tables = {name: pd.read_parquet(source / f"{name}.parquet") for name in names}
    for gpu in sorted({gpu for table in tables.values() for gpu in table.gpu.unique()}):
        own = {name: table[table.gpu == gpu] for name, table in tables.items()}
        gemm, moe = (
            table[table.framework == DENSE_FRAMEWORK.get(gpu, "vllm")]
            for table in (own["gemm"], own["moe"])
        )
        decode = own["attention_decode"]
        arrays = smooth_gemm_arrays(gemm) | prefill_arrays(prompts_of(own["attention_prefill"]))
        arrays |= decode_arrays(decode[decode.framework == "vllm"])
        arrays |= moe_arrays(moe) | all_reduce_arrays(own["comm"])
        arrays |= nccl_arrays(own["comm"]) | send_recv_arrays(own["comm"])
        if not own["comm_deepep"].empty:
            arrays |= deepep_arrays(own["comm_deepep"], int(gpus.gpus_per_node[gpu]))
        arrays |= quantize_arrays(own["quantize"])
        if arrays:
            path = target / f"{gpu}.npz"
            np.savez_compressed(path, **arrays)
            print(f"{path.name}: {path.stat().st_size:,} bytes, {len(arrays)} arrays")
    for name, table in fit_tables(source).items():
        table.to_csv(target / f"fit_{name}.csv", index=False)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else here / "kvsim/data/kernels")
