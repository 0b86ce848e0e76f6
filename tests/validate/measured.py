"""Measurements as people write them down, small enough for a test."""

import json
from typing import Any


def record(**changed: Any) -> dict[str, Any]:
    """Return an experiment record of a small run on an H100, some of it changed."""
    figures = {
        "stage": -1,
        "e2e_ms": {"mean": 100.0, "p90": 120.0, "p99": 150.0},
        "ttft_ms": {"mean": 20.0, "p90": 25.0, "p99": 40.0},
        "itl_mean_reported_ms": 9.0,
        "tpot_mean_true_ms": 8.5,
        "throughput": {"requests_per_sec": 2.0},
    }
    return {
        "id": "mine",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "H100-80GB-SXM",
        "tp": 1,
        "precision": "BF16",
        "vllm_version": "0.15.1",
        "server": {
            "max_model_len": 4096,
            "max_num_batched_tokens": 2048,
            "max_num_seqs": 128,
            "total_kv_blocks": 4000,
            "block_size": 16,
            "prefix_caching": True,
        },
        "workload": {
            "arrival": {"type": "poisson_conditioned_on_count"},
            "stages": [
                {"rate": 4, "duration_s": 10, "num_requests": 40},
                {"rate": 8, "duration_s": 10, "num_requests": 80},
            ],
            "prompt": {
                "structure": "shared_prefix",
                "distinct_prompts": 10,
                "groups": 2,
                "system_prompt_len": 32,
                "nominal_prompt_len": 100,
                "output_len": 12,
            },
        },
        "measured": {"overall": figures, "stages": [{**figures, "stage": 0}]},
        **changed,
    }


def records(*entries: dict[str, Any]) -> str:
    """Return a document of experiment records."""
    return json.dumps({"schema_version": 1, "experiments": list(entries)})


POINTS = """\
id,source_family,backend,version,model,system,precision,isl,osl,length_range_ratio,concurrency,\
num_gpus,tp,pp,dp,moe_tp,moe_ep,ttft_ms,tpot_ms,flags
a,inferencex-csv,vllm,0.18.0,Qwen/Qwen3-32B,h100_sxm,fp8,1024,128,0.8,4.0,1,1.0,1,1,1,1,80.5,18.2,
b,nvidia-gap-analysis,vllm,0.12.0,Qwen/Qwen3-32B,h100_sxm,,256,64,,2.0,2,2,1,1,1,1,50,12.0,
c,inferencex-csv,vllm,,Qwen/Qwen3-32B,h100_sxm,,1024,128,0.8,,1,1,1,1,1,1,80.5,18.2,no_concurrency
d,inferencex-csv,vllm,,who/knows,mi300x,,1024,128,0.8,4,1,1,1,1,1,1,80.5,18.2,
e,inferencex-csv,vllm,,Qwen/Qwen3-30B-A3B,h100_sxm,,128,16,0.8,4,4,4,1,1,2,2,80.5,18.2,
"""

KV_SIZES = """\
id,model,gpu,n_gpus,tp,dtype,kv_dtype,quantisation,gpu_memory_utilization,max_model_len,\
vllm_version,max_num_batched_tokens,max_num_seqs,block_size,reported_kv_tokens,reported_blocks,\
available_kv_gib_per_gpu,outcome
tokens,meta-llama/Llama-2-7b-hf,H100 80GB,1,1,fp16/bf16,auto,,0.90 (default),4096 (stated),\
0.15.1,2048,128,16,119408 (derived),7463,,starts
gib,meta-llama/Llama-3.1-8B-Instruct,H100 80GB,1,1,bf16,auto,,0.9,16000,0.11.0,,128,,,,51.38,starts
elsewhere,meta-llama/Llama-3.1-8B-Instruct,not stated,1,1,bf16,auto,,0.9,16000,,,,,1000,,,starts
failed,meta-llama/Llama-3.1-8B-Instruct,RTX 3090,1,1,bf16,auto,,0.9,16000,,,,,,,,out of memory
"""
