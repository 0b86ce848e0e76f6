"""Kubernetes manifests and compose files → the vLLM servers in them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from kvsim.errors import InputError, Problem
from kvsim.from_server.find import IMAGE, Server, server_arguments
from kvsim.from_server.operators import servers_of_kserve, servers_of_stack
from kvsim.from_server.shell import expand
from kvsim.from_server.surroundings import variables_in
from kvsim.from_server.values import environment, gpus_of, mapping, whole, words

_SCALERS = {"HorizontalPodAutoscaler", "ScaledObject"}
_GPU_LABELS = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "eks.amazonaws.com/instance-gpu-name",
    "karpenter.k8s.aws/instance-gpu-name",
)


def servers_of(text: str) -> Iterator[Server]:
    """Yield the vLLM servers of a file of one or more YAML documents.

    Raises:
        InputError: It is not YAML, with the line; Helm templates are not.
    """
    if "{{" in text and "}}" in text and "servingEngineSpec" not in text:
        raise InputError("is a Helm template: render it first (`helm template`)")
    documents = _documents(text)
    notes = [note for document in documents for note in _scaling(document)]
    for document in documents:
        services = document.get("services")
        if isinstance(services, Mapping) and "apiVersion" not in document:
            for name, service in services.items():
                yield from _of_compose(str(name), mapping(service))
        elif "servingEngineSpec" in document:
            yield from servers_of_stack(document)
        else:
            for server in _of_resource(document):
                yield replace(server, notes=(*server.notes, *notes))


def _scaling(resource: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is lost of a resource that changes the number of replicas."""
    for item in resource["items"] if isinstance(resource.get("items"), list) else ():
        yield from _scaling(mapping(item))
    kind = resource.get("kind")
    if kind in _SCALERS:
        yield f"the {kind} is not modeled: the number of replicas stays as the scenario has it."


def _documents(text: str) -> list[Mapping[str, Any]]:
    try:
        documents = list(YAML(typ="safe", pure=True).load_all(text))
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InputError(Problem(f"is not valid YAML: {error.problem}", line=line)) from None
    except (YAMLError, ValueError) as error:
        raise InputError(f"is not valid YAML: {error}") from None
    return [document for document in documents if isinstance(document, Mapping)]


def _of_resource(resource: Mapping[str, Any]) -> Iterator[Server]:
    """Yield the servers of one Kubernetes resource, whatever its kind."""
    if isinstance(resource.get("items"), list):  # kind: List
        for item in resource["items"]:
            yield from _of_resource(mapping(item))
        return
    if resource.get("kind") == "InferenceService":
        yield from servers_of_kserve(resource)
    name = mapping(resource.get("metadata")).get("name", "without a name")
    replicas = whole(mapping(resource.get("spec")).get("replicas"))
    pods = (node for node in _mappings(resource, set()) if isinstance(node.get("containers"), list))
    for pod in pods:
        for container in filter(None, map(mapping, pod["containers"])):
            place = f"{resource.get('kind', 'resource')} {name}, container {container.get('name')}"
            said = [*words(container.get("command")), *words(container.get("args"))]
            variables = environment(container.get("env"))
            arguments = _arguments(container, said, "command", variables)
            variables |= variables_in(said)
            if arguments is not None:
                yield Server(
                    arguments,
                    place,
                    replicas=1 if replicas is None else replicas,
                    gpus=gpus_of(container.get("resources")),
                    gpu_product=_gpu_product(pod),
                    image_tag=_tag(container),
                    variables=variables,
                )


def _mappings(node: Any, seen: set[int]) -> Iterator[Mapping[str, Any]]:
    """Yield all mappings inside, each once, however often an alias names it."""
    if id(node) in seen or not isinstance(node, Mapping | list):
        return
    seen.add(id(node))
    if isinstance(node, Mapping):
        yield node
    for inner in node.values() if isinstance(node, Mapping) else node:
        yield from _mappings(inner, seen)


def _gpu_product(pod: Mapping[str, Any]) -> str | None:
    """Return the kind of GPU that the nodes of a pod must have, by selector or by affinity."""
    selector = mapping(pod.get("nodeSelector"))
    asked = [str(selector[label]) for label in _GPU_LABELS if label in selector]
    for rule in _mappings(pod.get("affinity"), set()):
        if rule.get("key") in _GPU_LABELS and rule.get("operator") == "In":
            asked += words(rule.get("values"))
    return asked[0] if len(set(asked)) == 1 else None


def _of_compose(name: str, service: Mapping[str, Any]) -> Iterator[Server]:
    deploy = mapping(service.get("deploy"))
    replicas = whole(deploy.get("replicas", service.get("scale")))
    said = [*words(service.get("entrypoint")), *words(service.get("command"))]
    variables = environment(service.get("environment"))
    arguments = _arguments(service, said, "entrypoint", variables)
    if arguments is not None:
        yield Server(
            arguments,
            f"service {name}",
            replicas=1 if replicas is None else replicas,
            gpus=_reserved_gpus(deploy),
            image_tag=_tag(service),
            variables=variables | variables_in(said),
        )


def _reserved_gpus(deploy: Mapping[str, Any]) -> int | None:
    reservations = mapping(mapping(deploy.get("resources")).get("reservations"))
    for device in map(mapping, reservations.get("devices") or ()):
        if "gpu" in words(device.get("capabilities")):
            ids = device.get("device_ids")
            return len(ids) if isinstance(ids, list) else whole(device.get("count"))
    return None


def _arguments(
    container: Mapping[str, Any], said: list[str], entry: str, variables: Mapping[str, str]
) -> list[str] | None:
    """Return the server's arguments; an image of vLLM starts it without being told."""
    said = [expand(word, variables) for word in said]
    found = server_arguments(said)
    image = str(container.get("image", ""))
    if found is None and not container.get(entry) and IMAGE.fullmatch(image):
        return said[said[:1] == ["serve"] :]
    return found


def _tag(container: Mapping[str, Any]) -> str | None:
    image = IMAGE.fullmatch(str(container.get("image", "")))
    return image[1] if image else None
