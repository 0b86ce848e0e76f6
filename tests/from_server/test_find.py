import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from kvsim.errors import InputError
from kvsim.from_server.find import Server, find_server

COMMANDS = {
    "vllm serve m -tp 2": "m -tp 2",
    "/opt/venv/bin/vllm serve m": "m",
    "VLLM_USE_V1=1 HF_TOKEN=$T nohup vllm serve m > log.txt 2>&1 &": "m",
    "uv run --with vllm vllm serve m --port 1": "m --port 1",
    "python3 -m vllm.entrypoints.openai.api_server --model m": "--model m",
    "python -u -m vllm.entrypoints.openai.api_server \\\n  --model m \\\n  --port 1": (
        "--model m --port 1"
    ),
    "bash -lc 'pip install x && exec vllm serve m --port 1'": "m --port 1",
    "#!/bin/sh\nset -e\nM=a/b\n# vllm serve old\nexec vllm serve $M \\\n  $EXTRA\n": "a/b $EXTRA",
    "docker run --gpus all -v ~/.cache:/root -p 8000:8000 --ipc=host --name vllm "
    "vllm/vllm-openai:v0.10.1 --model m": "--model m",
    "sudo docker run --rm ghcr.io:443/me/vllm-custom@sha256:0a m -tp 2": "m -tp 2",
    "podman run --entrypoint vllm docker.io/vllm/vllm-openai serve m": "m",
    "srun -N1 singularity exec vllm.sif vllm serve m": "m",
}


@pytest.mark.parametrize(("text", "arguments"), COMMANDS.items())
def test_commands_and_scripts(text, arguments):
    assert find_server(text).arguments == arguments.split()


def test_the_tag_of_an_image_is_the_version():
    assert find_server("docker run vllm/vllm-openai:v0.10.1 --model m").image_tag == "v0.10.1"
    assert find_server("docker run vllm/vllm-openai --model m").image_tag is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vllm",
        "vllm bench serve --model m",
        "python -m sglang.launch_server --model m",
        "docker run nginx:latest",
        "kind: x",
        "services: {web: {image: nginx, command: serve}}",
        "apiVersion: v1\nkind: Service\nmetadata: {name: vllm}\n",
        "apiVersion: v1\nspec: {containers: [1, {image: [2], args: 3}, {args: [a]}]}",
    ],
)
def test_a_text_without_a_server(text):
    with pytest.raises(InputError, match="no vLLM server in it"):
        find_server(text)


def test_several_servers_are_named():
    with pytest.raises(InputError, match=r"2 servers in it \(vllm serve, vllm serve\)"):
        find_server("vllm serve a &\nvllm serve b &\n")


def kubernetes(container, kind="Deployment", spec=None, pod=None):
    template = {"spec": {"containers": [{"name": "c", **container}], **(pod or {})}}
    return json.dumps(
        {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {"name": "llm"},
            "spec": {"template": template, **(spec or {})},
        }
    )


IMAGE = "vllm/vllm-openai:v0.9.2"
PLACE = "Deployment llm, container c"


@pytest.mark.parametrize(
    ("container", "arguments"),
    [
        ({"command": ["vllm", "serve"], "args": ["m", "-tp", 2]}, "m -tp 2"),
        ({"command": ["vllm", "serve", "m", "--enforce-eager", True]}, "m --enforce-eager true"),
        ({"command": ["sh", "-c"], "args": ["vllm serve m \\\n  --port 1\n"]}, "m --port 1"),
        ({"command": ["/bin/sh", "-c", "sleep 1; exec vllm serve m"]}, "m"),
        ({"image": IMAGE, "args": ["--model", "m"]}, "--model m"),
        ({"image": IMAGE, "args": ["--model=$(M)"], "env": [{"name": "M", "value": "x"}]}, None),
        (
            {
                "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
                "args": ["--model", "m"],
            },
            "--model m",
        ),
    ],
)
def test_a_container_of_a_manifest(container, arguments):
    server = find_server(kubernetes(container))
    assert server.arguments == (arguments.split() if arguments else ["--model=x"])
    assert server.place == PLACE
    assert server.image_tag == ("v0.9.2" if "image" in container else None)


def test_a_manifest_says_replicas_and_gpus():
    container = {
        "image": IMAGE,
        "args": ["m", "--max-model-len", "$(LEN)"],
        "env": [{"name": "LEN", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}}],
        "resources": {"limits": {"nvidia.com/gpu": "4"}, "requests": {"cpu": 8}},
    }
    pod = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L40S"}}
    for kind in ("Deployment", "StatefulSet", "SomethingOfTheirOwn"):
        text = kubernetes(container, kind, {"replicas": 3}, pod)
        assert find_server(text) == Server(
            ["m", "--max-model-len", "$(LEN)"], f"{kind} llm, container c", 3, 4, "NVIDIA-L40S",
            "v0.9.2",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "product"), [(["NVIDIA-L4"], "NVIDIA-L4"), (["NVIDIA-L4", "NVIDIA-A10"], None)]
)
def test_the_gpu_may_be_said_by_affinity(values, product):
    rule = {"key": "nvidia.com/gpu.product", "operator": "In", "values": values}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    text = kubernetes({"image": IMAGE, "args": ["m"]}, pod={"affinity": affinity})
    assert find_server(text).gpu_product == product


def test_the_server_is_found_among_documents_and_containers():
    pod = """\
apiVersion: v1
kind: Service
metadata: {name: vllm}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: llm}
  spec:
    containers:
    - {name: proxy, image: envoy, args: [&x a, *x]}
    - name: server
      image: vllm/vllm-openai
      args:
      - --model
      - m
      - --port=8000
---
"""
    assert find_server(pod) == Server(["--model", "m", "--port=8000"], "Pod llm, container server")


@pytest.mark.parametrize(
    ("service", "server"),
    [
        ({"image": IMAGE, "command": "--model m --port 1"}, ("--model m --port 1", 1, None)),
        ({"image": IMAGE, "command": ["--model", "m"], "scale": 2}, ("--model m", 2, None)),
        ({"entrypoint": "vllm", "command": ["serve", "m"]}, ("m", 1, None)),
        (
            {"image": "x", "command": "vllm serve ${M:-m} $N", "environment": ["N=--port=1"]},
            ("m --port=1", 1, None),
        ),
        (
            {
                "image": "x",
                "command": "vllm serve m",
                "environment": {"N": None},
                "deploy": {
                    "replicas": 3,
                    "resources": {
                        "reservations": {
                            "devices": [
                                {"capabilities": ["x"]},
                                {"capabilities": ["gpu"], "device_ids": ["0", "3"]},
                            ]
                        }
                    },
                },
            },
            ("m", 3, 2),
        ),
        (
            {
                "command": "vllm serve m",
                "deploy": {
                    "resources": {
                        "reservations": {"devices": [{"capabilities": ["gpu"], "count": "all"}]}
                    }
                },
            },
            ("m", 1, None),
        ),
    ],
)
def test_a_service_of_a_compose_file(service, server):
    found = find_server(json.dumps({"services": {"db": {"image": "x"}, "llm": service}}))
    assert (" ".join(found.arguments), found.replicas, found.gpus) == server
    assert found.place == "service llm"


def test_a_helm_template_must_be_rendered():
    with pytest.raises(InputError, match="helm template"):
        find_server("apiVersion: v1\nspec:\n  args: [{{ .Values.model }}]\n")


def test_bad_yaml_is_told_with_its_line():
    with pytest.raises(InputError, match="not valid YAML") as told:
        find_server("apiVersion: v1\nkind: x\n  a: [\n")
    assert told.value.problems[0].line == 3


def test_aliases_of_aliases_take_no_time():
    lines = ["apiVersion: v1", "a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    with pytest.raises(InputError, match="no vLLM server"):
        find_server("\n".join(lines))


def test_the_texts_of_these_tests_are_yaml():
    assert YAML(typ="safe").load(kubernetes({}))["kind"] == "Deployment"


@given(st.text(), st.randoms(use_true_random=False))
def test_any_text_is_read_or_refused(noise, chance):
    text = chance.choice([*COMMANDS, kubernetes({"image": IMAGE, "args": ["m"]})])
    cut = chance.randrange(len(text))
    for changed in (noise, text[:cut] + noise + text[cut:], f"apiVersion: v1\n{noise}"):
        with contextlib.suppress(InputError):
            find_server(changed)
