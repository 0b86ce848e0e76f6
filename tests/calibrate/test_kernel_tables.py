"""Kernel timings of a user's own: packed, named by a scenario, and what steps cost then."""

import numpy as np
import pandas as pd
import pytest

from kvsim.calibrate import kernel_tables
from kvsim.calibrate.kernel_tables import pack_kernels
from kvsim.cost.formats import sixteen_bit
from kvsim.cost.gemm import gemm_curves
from kvsim.cost.tables import load_arrays
from kvsim.errors import InputError
from kvsim.gpu import CustomGpu
from kvsim.profiling.tables import TABLES
from kvsim.scenario.load import load_scenario
from kvsim.scenario.resolve import resolve_all
from kvsim.scenario.schema import BASE
from tests.calibrate.benchmarks import WORKLOAD

FIGURES = {"hbm_bytes": 80e9, "hbm_bytes_per_s": 2e12, "bf16_flop_per_s": 400e12, "sm_arch": 90}
TOKENS = (1, 4, 16, 64, 256, 1024, 4096)
SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))


def _gemm_us(m, n, k):
    return 5.0 + n * k * 2 / 1.6e6 + m * n * k * 2 / 3e8


def _gemm(gpu="my_gpu", shapes=SHAPES, tokens=TOKENS):
    rows = [
        {"gpu": gpu, "framework": "torch", "dtype": "bfloat16", "kernel": "cublas"}
        | {"m": m, "n": n, "k": k, "latency_us": _gemm_us(m, n, k)}
        for m in tokens
        for n, k in shapes
    ]
    return pd.DataFrame(rows)


def _attention(phase):
    heads = {"gpu": "my_gpu", "attn_dtype": "bfloat16", "kv_dtype": "bfloat16", "head_dim": 128}
    heads |= {"window": 0, "q_heads": 32, "kv_heads": 8}
    if phase == "prefill":
        calls = [(b, new) for b in (1, 8) for new in (16, 256, 4096)]
        more = [{"new_tokens": new, "prefix_tokens": 0} for _, new in calls]
        times = [8 + b * new * new * 2e-5 for b, new in calls]
    else:
        calls = [(b, kv) for b in (1, 16, 64) for kv in (128, 1024, 8192)]
        more = [{"kv_len": kv} for _, kv in calls]
        times = [6 + b * kv * 4096 / 1.7e6 for b, kv in calls]
    rows = zip(calls, more, times, strict=True)
    return pd.DataFrame([heads | {"batch": b, "latency_us": t} | m for (b, _), m, t in rows])


def _folder(tmp_path, form="parquet", **tables):
    folder = tmp_path / "timings"
    folder.mkdir()
    for name, table in tables.items():
        if form == "csv":
            table.to_csv(folder / f"{name}.csv", index=False)
        else:
            for column in ("gpu", "dtype", "kv_dtype"):
                if column in table:
                    table[column] = table[column].astype("category")
            table.to_parquet(folder / f"{name}.parquet")
    (folder / "profile.json").write_text("{}")
    return folder


def _spec(tmp_path, file="mine.npz"):
    values = {"name": "my_gpu", **FIGURES, "kernels": file}
    return CustomGpu.model_validate(values, context={"base_dir": tmp_path}).spec()


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_measured_products_cost_what_was_measured(tmp_path, form):
    folder = _folder(tmp_path, form, gemm=_gemm())
    name, packed = pack_kernels(folder, None, tmp_path / "mine.npz")
    assert (name, packed) == ("my_gpu", ["gemm: 35 rows"])
    gpu = _spec(tmp_path)
    curves = gemm_curves("qkv", gpu, sixteen_bit(gpu), np.arange(4097), 6144, 4096)
    assert {curve.part.basis for curve in curves} == {"measured"}
    total_us = sum(curve.ns for curve in curves)[list(TOKENS)] / 1e3
    assert total_us == pytest.approx([_gemm_us(m, 6144, 4096) for m in TOKENS], rel=1e-5)


def test_readings_of_a_shape_become_their_median(tmp_path):
    table = pd.concat([_gemm().assign(latency_us=us) for us in (10.0, 30.0, 11.0)])
    pack_kernels(_folder(tmp_path, gemm=table), None, tmp_path / "mine.npz")
    assert np.unique(load_arrays(_spec(tmp_path))["gemm/bfloat16/us"][:, 0, 0]) == [11.0]


def test_sizes_that_not_all_shapes_have_are_left_out(tmp_path):
    large = _gemm()
    large = large[(large.n < 100000) | (large.m < 1000)]
    pack_kernels(_folder(tmp_path, gemm=large), None, tmp_path / "mine.npz")
    assert load_arrays(_spec(tmp_path))["gemm/bfloat16/m"].tolist() == [1, 4, 16, 64, 256]


def test_vllms_own_kernels_go_before_others(tmp_path):
    both = pd.concat([_gemm(), _gemm().assign(framework="vllm", latency_us=7.0)])
    pack_kernels(_folder(tmp_path, gemm=both), None, tmp_path / "mine.npz")
    cube = load_arrays(_spec(tmp_path))["gemm/bfloat16/us"]
    assert np.unique(cube[np.isfinite(cube)]) == [7.0]


def test_collectives_are_taken_from_graphs(tmp_path):
    rows = [
        {"gpu": "my_gpu", "op": "all_reduce", "launch": launch, "world_size": 2}
        | {"bytes": size, "latency_us": us}
        for launch, us in (("graph", 9.0), ("eager", 90.0))
        for size in (1024, 4096)
    ]
    pack_kernels(_folder(tmp_path, comm=pd.DataFrame(rows)), None, tmp_path / "mine.npz")
    arrays = load_arrays(_spec(tmp_path))
    assert arrays["all_reduce/2/us"].tolist() == [9.0, 9.0]


def test_a_scenario_is_priced_from_the_file_beside_it(tmp_path):
    tables = {f"attention_{phase}": _attention(phase) for phase in ("prefill", "decode")}
    pack_kernels(_folder(tmp_path, gemm=_gemm(), **tables), None, tmp_path / "mine.npz")
    path = tmp_path / "mine.yaml"
    gpu = ", ".join(f"{key}: {value:.1f}" for key, value in FIGURES.items() if key != "sm_arch")
    path.write_text(
        f"model: meta-llama/Llama-3.1-8B-Instruct\ngpu: {{name: my_gpu, {gpu}, sm_arch: 90, "
        f"kernels: mine.npz}}\nengine: {{max_model_len: 8192}}\n{WORKLOAD}"
    )
    variant = resolve_all(load_scenario(path))[BASE]
    bases = {component: basis for component, basis, _ in variant.cost.basis}
    assert {bases[name] for name in ("gemm", "logits", "attention_decode")} == {"measured"}
    facts = variant.as_dict()["gpu"]["kernels"]
    assert facts["file"] == "mine.npz"
    assert len(facts["sha256"]) == 64
    assert str(tmp_path) not in str(facts)


@pytest.mark.parametrize("content", [None, b"", b"no array", b"PK\x03\x04broken"])
def test_files_without_timings_are_refused_with_their_place(tmp_path, content):
    if content is not None:
        (tmp_path / "mine.npz").write_bytes(content)
    path = tmp_path / "mine.yaml"
    path.write_text(
        "model: meta-llama/Llama-3.1-8B-Instruct\ngpu:\n  name: my_gpu\n  hbm_bytes: 80.0e9\n"
        "  hbm_bytes_per_s: 2.0e12\n  bf16_flop_per_s: 4.0e14\n  kernels: mine.npz\n"
        f"engine: {{max_model_len: 8192}}\n{WORKLOAD}"
    )
    with pytest.raises(InputError) as caught:
        resolve_all(load_scenario(path))
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.path) == (str(path), 7, "gpu.kernels")
    assert "mine.npz" in problem.message


def _without(column):
    return lambda: _gemm().drop(columns=column)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (_without("latency_us"), "lacks the columns latency_us"),
        (lambda: _gemm().assign(latency_us=0.0), "latency_us: must be a number above 0, not '0.0'"),
        (lambda: _gemm().assign(m="many"), "gemm.csv:2: m: must be a number above 0, not 'many'"),
        (lambda: _gemm(gpu="cpu"), "measured on a CPU"),
        (lambda: pd.concat([_gemm(), _gemm("other")]), "several GPUs, say --gpu: my_gpu, other"),
        (lambda: _gemm().assign(dtype="int3"), "nothing that steps are priced from"),
    ],
)
def test_tables_that_cannot_be_used_leave_no_file(tmp_path, table, message):
    folder = _folder(tmp_path, "csv", gemm=table())
    with pytest.raises(InputError, match=message):
        pack_kernels(folder, None, tmp_path / "mine.npz")
    assert not (tmp_path / "mine.npz").exists()


@pytest.mark.parametrize("table", ["gemm", "attention_prefill", "attention_decode", "comm"])
def test_kvsim_profile_writes_what_is_packed(table):
    written = {column.name for column in TABLES[table]}
    assert {"gpu", "latency_us", *kernel_tables._TABLES[table].keys} <= written


def test_folders_without_tables_are_refused(tmp_path):
    with pytest.raises(InputError, match="holds none of the tables gemm"):
        pack_kernels(_folder(tmp_path), None, tmp_path / "mine.npz")
    with pytest.raises(InputError, match="is no folder"):
        pack_kernels(tmp_path / "nowhere", None, tmp_path / "mine.npz")
    (tmp_path / "other").mkdir()
    other = _folder(tmp_path / "other", gemm=_gemm())
    with pytest.raises(InputError, match="has no GPU 'h900', but my_gpu"):
        pack_kernels(other, "h900", tmp_path / "mine.npz")
