"""Kubernetes manifests and compose files → the vLLM servers in them."""

from collections.abc import Iterator, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from kvsim.errors import InputError, Problem
from kvsim.from_server.find import IMAGE, Server, server_arguments
from kvsim.from_server.shell import commands, expand

_GPU = "nvidia.com/gpu"
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
    if "{{" in text and "}}" in text:
        raise InputError("is a Helm template: render it first (`helm template`)")
    for document in _documents(text):
        services = document.get("services")
        if isinstance(services, Mapping) and "apiVersion" not in document:
            for name, service in services.items():
                yield from _of_compose(str(name), _mapping(service))
        else:
            yield from _of_resource(document)


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
            yield from _of_resource(_mapping(item))
        return
    name = _mapping(resource.get("metadata")).get("name", "without a name")
    replicas = _whole(_mapping(resource.get("spec")).get("replicas"))
    pods = (node for node in _mappings(resource, set()) if isinstance(node.get("containers"), list))
    for pod in pods:
        for container in filter(None, map(_mapping, pod["containers"])):
            place = f"{resource.get('kind', 'resource')} {name}, container {container.get('name')}"
            words = [*_words(container.get("command")), *_words(container.get("args"))]
            resources = _mapping(container.get("resources"))
            gpus = [_mapping(resources.get(part)).get(_GPU) for part in ("limits", "requests")]
            counts = [_whole(count) for count in gpus]
            arguments = _arguments(container, words, "command", _environment(container.get("env")))
            if arguments is not None:
                yield Server(
                    arguments,
                    place,
                    replicas=1 if replicas is None else replicas,
                    gpus=next((count for count in counts if count is not None), None),
                    gpu_product=_gpu_product(pod),
                    image_tag=_tag(container),
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
    selector = _mapping(pod.get("nodeSelector"))
    asked = [str(selector[label]) for label in _GPU_LABELS if label in selector]
    for rule in _mappings(pod.get("affinity"), set()):
        if rule.get("key") in _GPU_LABELS and rule.get("operator") == "In":
            asked += _words(rule.get("values"))
    return asked[0] if len(set(asked)) == 1 else None


def _of_compose(name: str, service: Mapping[str, Any]) -> Iterator[Server]:
    deploy = _mapping(service.get("deploy"))
    replicas = _whole(deploy.get("replicas", service.get("scale")))
    words = [*_words(service.get("entrypoint")), *_words(service.get("command"))]
    variables = _environment(service.get("environment"))
    arguments = _arguments(service, words, "entrypoint", variables)
    if arguments is not None:
        yield Server(
            arguments,
            f"service {name}",
            replicas=1 if replicas is None else replicas,
            gpus=_reserved_gpus(deploy),
            image_tag=_tag(service),
        )


def _reserved_gpus(deploy: Mapping[str, Any]) -> int | None:
    reservations = _mapping(_mapping(deploy.get("resources")).get("reservations"))
    for device in map(_mapping, reservations.get("devices") or ()):
        if "gpu" in _words(device.get("capabilities")):
            ids = device.get("device_ids")
            return len(ids) if isinstance(ids, list) else _whole(device.get("count"))
    return None


def _arguments(
    container: Mapping[str, Any], words: list[str], entry: str, variables: Mapping[str, str]
) -> list[str] | None:
    """Return the server's arguments; an image of vLLM starts it without being told."""
    words = [expand(word, variables) for word in words]
    found = server_arguments(words)
    image = str(container.get("image", ""))
    if found is None and not container.get(entry) and IMAGE.fullmatch(image):
        return words[words[:1] == ["serve"] :]
    return found


def _tag(container: Mapping[str, Any]) -> str | None:
    image = IMAGE.fullmatch(str(container.get("image", "")))
    return image[1] if image else None


def _words(value: Any) -> list[str]:
    """Return the words of a list, or of a string as a shell splits it."""
    if isinstance(value, list):
        return [str(item).lower() if isinstance(item, bool) else str(item) for item in value]
    if isinstance(value, str):
        return [word for words in commands(value.replace("\n", " ")) for word in words]
    return []


def _environment(value: Any) -> dict[str, str]:
    """Return the variables whose values stand in the file."""
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items() if item is not None}
    pairs: dict[str, str] = {}
    for item in value if isinstance(value, list) else ():
        if isinstance(item, Mapping) and "value" in item:
            pairs[str(item.get("name"))] = str(item["value"])
        elif isinstance(item, str) and "=" in item:
            name, _, text = item.partition("=")
            pairs[name] = text
    return pairs


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not str(value).isdecimal():
        return None
    return int(value)
