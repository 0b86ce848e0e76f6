"""A text → the one vLLM server that it starts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvsim.errors import InputError
from kvsim.from_server.shell import commands
from kvsim.from_server.surroundings import gpus_given, variables_in

IMAGE = re.compile(r"(?:[\w.-]+(?::\d+)?/)*vllm[\w.-]*(?::([\w.-]+))?(?:@\S+)?")
_MODULE = re.compile(r"vllm\.entrypoints\.[\w.]*api_server[\w.]*")
_LOOP = (
    "the command stands in a loop, and one server of it is meant: set replicas to how many the "
    "loop starts."
)
_MANIFEST = re.compile(
    r"^[\s{]*[\"']?(apiVersion|services|servingEngineSpec)[\"']?\s*:", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Server:
    """A server as it is started.

    Attributes:
        arguments: What follows `vllm serve`.
        place: Where it was found, in words.
        replicas: How many of them are started.
        gpus: GPUs that each may use; None: not said.
        gpu_product: What a cluster calls their kind; None: not said.
        image_tag: Tag of the container image, usually the version of vLLM; None: not said.
        variables: Of its environment.
        notes: What is left out of what stands around it, in sentences.
    """

    arguments: Sequence[str]
    place: str = "a command"
    replicas: int = 1
    gpus: int | None = None
    gpu_product: str | None = None
    image_tag: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


def find_server(text: str) -> Server:
    """Return the server that a command, a script, a manifest or a compose file starts.

    Raises:
        InputError: It starts none, or several different ones, or can't be read.
    """
    if _MANIFEST.search(text):
        from kvsim.from_server.manifest import servers_of

        servers = list(servers_of(text))
    else:
        servers = list(_servers_of_script(text))
    if not servers:
        raise InputError(
            "no vLLM server in it: expected `vllm serve MODEL ...`, "
            "`python -m vllm.entrypoints.openai.api_server --model MODEL ...`, or a container of a "
            "vLLM image"
        )
    if len(servers) > 1:
        places = ", ".join(server.place for server in servers)
        raise InputError(f"{len(servers)} servers in it ({places}): leave the one you mean")
    return servers[0]


def server_arguments(words: Sequence[str]) -> list[str] | None:
    """Return what follows `vllm serve`, or None if the words start no server."""
    for index, word in enumerate(words):
        after = list(words[index + 1 :])
        if word.rpartition("/")[2] == "vllm" and after[:1] == ["serve"]:
            return after[1:]
        if _MODULE.fullmatch(word):
            return after
        if "vllm" in word and re.search(r"[ \t\n]", word):  # sh -c "vllm serve ..."
            for inner in commands(word):
                found = server_arguments(inner)
                if found is not None:
                    return found
    return None


def _servers_of_script(text: str) -> Iterator[Server]:
    variables: dict[str, str] = {}
    loops: list[str] = []
    for words in commands(text):
        loops += words[:1] if words[0] in {"for", "while", "until"} else ()
        loops = loops[:-1] if words[0] == "done" else loops
        variables |= variables_in(words)
        image = _image_in(words)
        arguments = server_arguments(words)
        if arguments is None and image is not None:
            arguments = words[image + 1 :]  # the image starts `vllm serve` by itself
            arguments = arguments[arguments[:1] == ["serve"] :]
        if arguments is not None:
            tag = IMAGE.fullmatch(words[image]) if image is not None else None
            yield Server(
                arguments,
                _place(words),
                gpus=None if "for" in loops else gpus_given(words, variables),
                image_tag=tag[1] if tag else None,
                variables=dict(variables),
                notes=(_LOOP,) if "for" in loops else (),
            )


def _place(words: Sequence[str]) -> str:
    """Return the words that a command begins with; variables may hold what must stay secret."""
    return " ".join([word for word in words if word != "do" and "=" not in word][:2])


def _image_in(words: Sequence[str]) -> int | None:
    """Return where `docker run` names an image of vLLM."""
    if not {"docker", "podman", "nerdctl"} & {word.rpartition("/")[2] for word in words[:2]}:
        return None
    for index, word in enumerate(words):
        if IMAGE.fullmatch(word) and ("/" in word or ":" in word) and words[index - 1] != "--name":
            return index
    return None
