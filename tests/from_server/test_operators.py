"""InferenceServices of KServe and values of the production stack start the same servers."""

import json

import pytest

from kvsim.errors import InputError
from kvsim.from_server.draft import Additions, draft_of
from kvsim.from_server.find import find_server


def kserve(args=(), predictor=None, **model):
    model = {"modelFormat": {"name": "huggingface"}, "args": list(args), **model}
    return json.dumps(
        {
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": {"name": "llama"},
            "spec": {"predictor": {"model": model, **(predictor or {})}},
        }
    )


@pytest.mark.parametrize(
    ("args", "stored", "arguments"),
    [
        (["--model_name=x", "--model_id=a/b", "--max-model-len=8192"], None,
         "--model=a/b --max-model-len=8192"),
        (["--model_name", "x", "--model-id", "a/b", "--backend=vllm"], None, "--model a/b"),
        (["--tensor-parallel-size", "2"], "hf://a/b", "--model a/b --tensor-parallel-size 2"),
        (["--model_dir=/mnt/models"], "hf://a/b", "--model=/mnt/models"),
        (["--task"], "pvc://x/y", "--model pvc://x/y"),
    ],
)  # fmt: skip
def test_a_model_of_kserve(args, stored, arguments):
    server = find_server(kserve(args, storageUri=stored))
    assert server.arguments == arguments.split()
    assert (server.place, server.replicas, server.gpus) == ("InferenceService llama", 1, None)


def test_kserve_says_gpus_variables_and_how_it_scales():
    server = find_server(
        kserve(
            ["--model_id=a"],
            {"minReplicas": 2, "maxReplicas": 5},
            resources={"limits": {"nvidia.com/gpu": "2"}},
            env=[{"name": "VLLM_USE_V1", "value": "0"}],
        )
    )
    assert (server.replicas, server.gpus, server.variables) == (2, 2, {"VLLM_USE_V1": "0"})
    assert "scaling up to 5 replicas is not modeled" in server.notes[0]
    fixed = find_server(kserve(["--model_id=a"], {"minReplicas": 3, "maxReplicas": 3}))
    assert (fixed.replicas, fixed.notes) == (3, ())


def test_a_runtime_that_is_described_elsewhere_is_refused_with_what_to_do():
    with pytest.raises(InputError, match=r"format triton, .* give the ServingRuntime"):
        find_server(kserve(modelFormat={"name": "triton"}))


STACK = """\
servingEngineSpec:
  runtimeClassName: ""
  modelSpec:
  - name: llama3
    repository: vllm/vllm-openai
    tag: v0.33.0
    modelURL: meta-llama/Llama-3.1-8B-Instruct
    replicaCount: 3
    requestCPU: 10
    requestGPU: 2
    chatTemplate: "{{ messages }}"
    vllmConfig:
      v1: 1
      enablePrefixCaching: false
      enableChunkedPrefill: true
      maxModelLen: 8192
      dtype: bfloat16
      tensorParallelSize: 2
      gpuMemoryUtilization: 0.9
      extraArgs: ["--max-num-seqs", "64"]
"""


def test_values_of_the_production_stack(tmp_path):
    draft = draft_of(find_server(STACK), Additions(gpu="h100_sxm"), tmp_path)
    assert draft.problems == []
    assert "\nreplicas: 3\n" in draft.text
    _, _, engine = draft.text.partition("engine:\n")
    settings = dict(line.strip().split(": ") for line in engine.split("\n\n")[0].splitlines()
                    if line.startswith("  "))  # fmt: skip
    assert settings == {
        "enable_prefix_caching": "false",
        "enable_chunked_prefill": "true",
        "max_model_len": "8192",
        "dtype": "bfloat16",
        "tensor_parallel_size": "2",
        "gpu_memory_utilization": "0.9",
        "max_num_seqs": "64",
    }
    assert not any("the image is" in told for told in draft.assumed)


def test_what_the_stack_adds_is_refused_or_noted(tmp_path):
    text = STACK.replace("v1: 1", "v1: 0") + "    lmcacheConfig: {enabled: true}\n"
    server = find_server(text + "    keda: {enabled: true}\n")
    assert server.notes[0].startswith("autoscaling is not modeled")
    told = [str(problem) for problem in draft_of(server, Additions(), tmp_path).problems]
    assert any(problem.startswith("--kv-transfer-config: ") for problem in told)
    assert any(problem.startswith("VLLM_USE_V1=0") for problem in told)
    unknown = STACK.replace("maxModelLen", "maxModlLen")
    (problem,) = draft_of(find_server(unknown), Additions(), tmp_path).problems
    assert "--max-modl-len: unknown flag; did you mean --max-model-len?" in str(problem)


def test_several_models_of_a_stack_are_named():
    text = STACK + "  - {name: other, modelURL: m}\n"
    with pytest.raises(InputError, match=r"2 servers in it \(modelSpec llama3, modelSpec other\)"):
        find_server(text)
