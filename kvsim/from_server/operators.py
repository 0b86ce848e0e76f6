"""What operators make servers of: KServe's InferenceService, values of vLLM's production stack.

https://kserve.github.io/website, `InferenceService` v1beta1 with the Hugging Face runtime, whose
arguments are those of vLLM and a few of its own; https://github.com/vllm-project/production-stack,
`helm/values.yaml`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvsim.errors import InputError
from kvsim.from_server.find import Server
from kvsim.from_server.surroundings import variables_in
from kvsim.from_server.values import environment, gpus_of, mapping, whole, words

_RUNTIMES = {"huggingface", "vllm"}
_OF_KSERVE = ("--model_name", "--model-name", "--task", "--backend", "--predictor_host")


def servers_of_kserve(resource: Mapping[str, Any]) -> Iterator[Server]:
    """Yield the server of an InferenceService that names a model for a runtime of KServe.

    Raises:
        InputError: The runtime is none that starts vLLM.
    """
    name = mapping(resource.get("metadata")).get("name", "without a name")
    predictor = mapping(mapping(resource.get("spec")).get("predictor"))
    model = mapping(predictor.get("model"))
    if not model:
        return
    runtime = mapping(model.get("modelFormat")).get("name")
    if str(runtime).lower() not in _RUNTIMES:
        raise InputError(
            f"InferenceService {name} has a model of format {runtime}, for a runtime that is "
            "described elsewhere: give the ServingRuntime, or the command that it starts"
        )
    least, most = whole(predictor.get("minReplicas")), whole(predictor.get("maxReplicas"))
    scales = most is not None and most > (1 if least is None else least)
    note = (
        f"scaling up to {most} replicas is not modeled: their number stays as the scenario has it."
    )
    variables = environment(model.get("env"))
    yield Server(
        _kserve_arguments(model),
        f"InferenceService {name}",
        replicas=least or 1,
        gpus=gpus_of(model.get("resources")),
        variables=variables | variables_in(words(model.get("args"))),
        notes=(note,) if scales else (),
    )


def _kserve_arguments(model: Mapping[str, Any]) -> list[str]:
    """Return arguments of `vllm serve` for those of KServe's runtime, without what is its own."""
    kept: list[str] = []
    rest = words(model.get("args"))
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in _OF_KSERVE:
            rest = rest if equals or not rest else rest[1:]
            continue
        name = re.sub(r"^--model[_-](id|dir)$", "--model", name)
        kept.append(name + equals + value)
    stored = str(model.get("storageUri") or "")
    named = any(word.partition("=")[0] == "--model" for word in kept)
    if stored and not named:
        kept = ["--model", stored.removeprefix("hf://"), *kept]
    return kept


def servers_of_stack(values: Mapping[str, Any]) -> Iterator[Server]:
    """Yield the servers of the production stack's Helm values, one for each of its models."""
    models = mapping(values.get("servingEngineSpec")).get("modelSpec")
    for model in map(mapping, models if isinstance(models, list) else ()):
        count = whole(model.get("replicaCount"))
        config = dict(mapping(model.get("vllmConfig")))
        variables = environment(model.get("env"))
        engine = config.pop("v1", None)
        if engine is not None:
            variables["VLLM_USE_V1"] = str(int(engine)) if isinstance(engine, bool) else str(engine)
        scaled = mapping(model.get("keda")) or mapping(model.get("autoscaling"))
        note = "autoscaling is not modeled: the number of replicas stays as the scenario has it."
        yield Server(
            [str(model.get("modelURL", "")), *_stack_arguments(config), *_with_lmcache(model)],
            f"modelSpec {model.get('name', 'without a name')}",
            replicas=1 if count is None else count,
            gpus=whole(model.get("requestGPU")),
            image_tag=None if model.get("tag") is None else str(model["tag"]),
            variables=variables,
            notes=(note,) if scaled.get("enabled") is True else (),
        )


def _stack_arguments(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the flags that the chart makes of `vllmConfig`: `maxModelLen` → `--max-model-len`."""
    for key, value in config.items():
        if key == "extraArgs":
            yield from words(value)
            continue
        name = re.sub(r"(?<=[a-z0-9])([A-Z])", r"-\1", str(key)).lower()
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        elif value is not None and value != "":
            yield from (f"--{name}", str(value))


def _with_lmcache(model: Mapping[str, Any]) -> Sequence[str]:
    config = mapping(model.get("lmcacheConfig"))
    return ["--kv-transfer-config", "lmcacheConfig"] if config.get("enabled") is True else []
