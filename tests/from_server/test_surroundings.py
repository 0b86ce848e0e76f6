"""What stands around a server's command is told, compared or refused."""

import json

import pytest

from kvsim.errors import InputError
from kvsim.from_server.draft import Additions, draft_of
from kvsim.from_server.find import find_server
from kvsim.from_server.surroundings import gpus_given, variables_in

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
OLD = "VLLM_USE_V1=0: only the V1 engine of vLLM is modeled"


def drafted(text, tmp_path):
    return draft_of(find_server(text), Additions(), tmp_path)


def deployment(**container):
    template = {"spec": {"containers": [{"name": "c", **container}]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llm"},
            "spec": {"template": template, "replicas": 2}}  # fmt: skip


WITH = {
    "in front": "{0} vllm serve {1}",
    "by env": "env A=b {0} vllm serve {1}",
    "exported": "export {0}\nvllm serve {1}",
    "in quotes": "bash -c '{0} exec vllm serve {1}'",
    "docker": "docker run -e {0} vllm/vllm-openai --model {1}",
    "docker, long": "docker run --env={0} vllm/vllm-openai --model {1}",
}


def texts(variable):
    yield from (form.format(variable, MODEL) for form in WITH.values())
    name, _, value = variable.partition("=")
    given = deployment(command=["vllm", "serve", MODEL], env=[{"name": name, "value": value}])
    yield json.dumps(given)
    yield json.dumps(deployment(command=["sh", "-c", f"{variable} vllm serve {MODEL}"]))
    service = {"command": f"vllm serve {MODEL}", "environment": [variable]}
    yield json.dumps({"services": {"llm": service}})


def test_the_old_engine_is_refused_wherever_it_is_chosen(tmp_path):
    for text in texts("VLLM_USE_V1=0"):
        assert [str(problem) for problem in drafted(text, tmp_path).problems] == [OLD], text
    for text in texts("VLLM_USE_V1=1"):
        draft = drafted(text, tmp_path)
        assert (draft.problems, "VLLM_" in draft.text) == ([], False), text


def test_variables_of_vllm_are_named_and_never_their_values(tmp_path):
    for text in texts("VLLM_ATTENTION_BACKEND=FLASHINFER"):
        told = "what VLLM_ATTENTION_BACKEND may change is not modeled."
        assert told in drafted(text, tmp_path).assumed, text
    for text in texts("VLLM_API_KEY=secret"):
        draft = drafted(text, tmp_path)
        assert draft.irrelevant == ["VLLM_API_KEY"]
        assert "secret" not in draft.text + "".join(draft.assumed)
    assert not any("HF_TOKEN" in told for text in texts("HF_TOKEN=x")
                   for told in drafted(text, tmp_path).assumed)  # fmt: skip


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 vllm serve m", 2),
        ("CUDA_VISIBLE_DEVICES=3 vllm serve m", 1),
        ("CUDA_VISIBLE_DEVICES=$MINE vllm serve m", None),
        ("CUDA_VISIBLE_DEVICES= vllm serve m", None),
        ("docker run -e NVIDIA_VISIBLE_DEVICES=all --gpus 4 i m", 4),
        ("docker run --gpus all i m", None),
        ('docker run --gpus="device=0,1,5" i m', 3),
        ("docker run --gpus device=GPU-3a-b i m", 1),
        ("docker run --gpus '\"device=0,1\"' i m", 2),
        ("srun --gpus=h100:8 vllm serve m", 8),
        ("srun -G 2 vllm serve m", 2),
        ("srun --gpus $N vllm serve m", None),
        ("vllm serve m --gpus", None),
    ],
)
def test_gpus_of_a_launcher(command, gpus):
    from kvsim.from_server.shell import commands

    (words,) = commands(command)
    assert gpus_given(words, variables_in(words)) == gpus


def test_gpus_of_a_launcher_are_compared_with_the_parallel_size(tmp_path):
    more = drafted(f"CUDA_VISIBLE_DEVICES=0,1,2 vllm serve {MODEL} -tp 2", tmp_path)
    assert any("has 3 GPUs and uses 2; the others" in told for told in more.assumed)
    fewer = drafted(f"docker run --gpus 1 vllm/vllm-openai {MODEL} -tp 2", tmp_path)
    (problem,) = fewer.problems
    assert "--tensor-parallel-size 2, but docker run has 1 GPUs" in str(problem)
    assert not drafted(f"srun --gpus=2 vllm serve {MODEL} -tp 2", tmp_path).problems


@pytest.mark.parametrize(
    ("text", "is_in_loop"),
    [
        ("for i in 0 1; do\n  CUDA_VISIBLE_DEVICES=$i vllm serve {} --port 800$i &\ndone", True),
        ("for i in 0 1; do CUDA_VISIBLE_DEVICES=0 vllm serve {} & done; wait", True),
        ("for i in a b; do echo $i; done\nvllm serve {}", False),
        ("while true; do vllm serve {}; sleep 5; done", False),
    ],
)
def test_a_loop_of_servers_is_noted(tmp_path, text, is_in_loop):
    draft = drafted(text.format(MODEL), tmp_path)
    assert any("stands in a loop" in told for told in draft.assumed) == is_in_loop
    assert not any("neither simulated nor priced" in told for told in draft.assumed)


@pytest.mark.parametrize("kind", ["HorizontalPodAutoscaler", "ScaledObject"])
@pytest.mark.parametrize("listed", [False, True])
def test_an_autoscaler_is_noted(tmp_path, kind, listed):
    resources = [deployment(command=["vllm", "serve", MODEL]), {"apiVersion": "x/v2", "kind": kind}]
    text = "\n---\n".join(map(json.dumps, resources))
    if listed:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": resources})
    draft = drafted(text, tmp_path)
    assert any(told.startswith(f"the {kind} is not modeled") for told in draft.assumed)
    assert "\nreplicas: 2\n" in draft.text


def test_a_quote_inside_quotes_that_is_not_closed_is_refused():
    with pytest.raises(InputError, match="not closed"):
        find_server("bash -c 'A=\"b vllm serve m'")
