"""A server and what the user adds → the text of a scenario, with what had to be assumed."""

import json
import math
import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvsim.defaults import VLLM_VERSION
from kvsim.errors import InputError, Problem, did_you_mean
from kvsim.from_server.find import Server
from kvsim.from_server.flags import Arguments, Setting, is_set_elsewhere, read_arguments
from kvsim.from_server.surroundings import is_of_old_engine, unmodeled_and_irrelevant
from kvsim.gpu import price_of
from kvsim.model import ModelSpec, load_model, model_names

ASSUMED_GPU = "h100_sxm"
_ASSUMED_CONTEXT_TOKENS = 4096  # only until the model is known
_WIDTH = 96
_PARALLEL_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off"}  # not text to one YAML or another

# What clusters call the GPUs of the catalog: labels of NVIDIA's feature discovery, and of GKE.
_PRODUCTS: Mapping[str, str] = {
    "NVIDIA-A30": "a30",
    "NVIDIA-A40": "a40",
    "NVIDIA-A10": "a10",
    "NVIDIA-L4": "l4",
    "NVIDIA-L40S": "l40s",
    "Tesla-T4": "t4",
    "NVIDIA-A100-80GB-PCIe": "a100_pcie",
    "NVIDIA-A100-SXM4-80GB": "a100_sxm",
    "NVIDIA-A100-SXM4-40GB": "a100_sxm_40gb",
    "NVIDIA-H100-PCIe": "h100_pcie",
    "NVIDIA-H100-80GB-HBM3": "h100_sxm",
    "NVIDIA-H200": "h200_sxm",
    "NVIDIA-B200": "b200_sxm",
    "nvidia-tesla-t4": "t4",
    "nvidia-tesla-a100": "a100_sxm_40gb",
    "nvidia-a100-80gb": "a100_sxm",
    "nvidia-l4": "l4",
    "nvidia-h100-80gb": "h100_sxm",
    "nvidia-h100-mega-80gb": "h100_sxm",
    "nvidia-h200-141gb": "h200_sxm",
    "nvidia-b200": "b200_sxm",
}


@dataclass(frozen=True, slots=True)
class Additions:
    """What no command says, and the user may.

    Attributes:
        model: Name in the catalog or path of a config.json, in place of the command's model.
        gpu: Name in the catalog.
        trace: A request log, in place of assumed traffic.
        kv_startup_line: What the server logged about its KV cache.
    """

    model: str | None = None
    gpu: str | None = None
    trace: Path | None = None
    kv_startup_line: str | None = None


@dataclass(slots=True)
class Draft:
    """A scenario to be written.

    Attributes:
        text: The file.
        assumed: What had to be assumed, in sentences; they stand in the file too.
        irrelevant: Flags of the command that capacity does not depend on.
        problems: Why it can't be written as it is.
        gpu_is_assumed: Whether nobody said which GPU it is.
    """

    text: str = ""
    assumed: list[str] = field(default_factory=list)
    irrelevant: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    gpu_is_assumed: bool = False

    def add(self, *lines: str, assumed: str | None = None) -> None:
        """Add lines, below a comment that says what they assume."""
        if assumed is not None:
            self.assumed.append(assumed)
            self.comment("Assumed: " + assumed)
        self.text += "".join(f"{line}\n" for line in lines)

    def comment(self, sentence: str) -> None:
        """Add a comment."""
        lines = textwrap.wrap(sentence, _WIDTH, break_long_words=False, break_on_hyphens=False)
        self.text += "".join(f"# {line}\n" for line in lines)


def draft_of(server: Server, additions: Additions, folder: Path) -> Draft:
    """Say in a scenario what a server is.

    Args:
        server: The server.
        additions: What the user adds.
        folder: Where the scenario will be: paths in it start there.
    """
    said = read_arguments(server.arguments)
    draft = Draft(irrelevant=said.irrelevant, problems=said.problems)
    if additions.kv_startup_line is not None:
        said.settings["kv_startup_line"] = additions.kv_startup_line
    draft.comment("Does this server meet its targets, and what limits it?")
    draft.comment(f"Written by `kvsim init` from {server.place}.")
    if additions.model is not None and said.model and is_set_elsewhere(said.model):
        _take_as_model(draft, said.model)
    model = _add_model(draft, additions.model or said.model, folder)
    _add_gpu(draft, server, additions.gpu)
    _add_engine(draft, server, said, model)
    if server.replicas != 1:
        draft.add("", f"replicas: {server.replicas}")
    draft.add("")
    if additions.trace is not None:
        _add_trace(draft, additions.trace, folder)
    else:
        _add_invented_traffic(draft, server.replicas, _context_tokens(said, model))
    draft.add("")
    draft.add(
        "slo:",
        "  ttft_p99_s: 2.0",
        "  tpot_p99_s: 0.05",
        assumed="the targets are those of an interactive chat; put in yours, or remove them.",
    )
    return draft


def _context_tokens(said: Arguments, model: ModelSpec | None) -> int:
    length = said.settings.get("max_model_len")
    if isinstance(length, int):
        return length
    return model.max_position_embeddings if model else _ASSUMED_CONTEXT_TOKENS


def _take_as_model(draft: Draft, variable: str) -> None:
    """Say that a variable is taken to hold the model; a list of words holds flags as well."""
    if re.search(r"\[[@*]\]|\$[@*]", variable):
        what = f"{variable} is set somewhere else: put the words in its place"
        draft.problems.append(Problem(what))
    else:
        draft.add(assumed=f"{variable} holds the model, and no flags.")


def _add_model(draft: Draft, name: str | None, folder: Path) -> ModelSpec | None:
    """Add the model, or say why it is none."""
    if name is None:
        draft.problems.append(Problem("no model: expected `vllm serve MODEL ...`"))
        return None
    if is_set_elsewhere(name):
        what = f"the model, {name}, is set somewhere else"
        draft.problems.append(Problem(f"{what}: name it with --model"))
        return None
    if name not in model_names():
        if not Path(name).exists():
            close = did_you_mean(name.rstrip("/").rpartition("/")[2], model_names(), at_most=3)
            what = f"model '{name}' is not in the catalog{close or '.'}"
            how = "Give another name with --model, or the path of its config.json."
            draft.problems.append(Problem(f"{what} {how}"))
            return None
        name = os.path.relpath(name, folder)
    draft.add("", f"model: {_scalar(name)}")
    try:
        return load_model(name, folder)
    except InputError:
        return None  # told when the scenario is checked


def _add_gpu(draft: Draft, server: Server, given: str | None) -> None:
    product = server.gpu_product
    gpu = given or _PRODUCTS.get(product or "")
    assumed = None
    if gpu is None:
        gpu = ASSUMED_GPU
        why = "nothing says which GPU it runs on"
        if product is not None:
            why = f"no GPU of the catalog is known as {product}"
        draft.gpu_is_assumed = True
        assumed = f"gpu is {gpu}: {why}. Choose with --gpu; kvsim catalog lists them."
    draft.add(f"gpu: {_scalar(gpu)}", assumed=assumed)
    price = price_of(gpu)
    if price is None:
        draft.add(assumed=f"no price of {gpu} is known: set price_usd_per_gpu_hour to see costs.")
    else:
        cost = f"{price.usd_per_gpu_hour:.2f} USD an hour ({price.as_of})"
        draft.add(assumed=f"one {gpu} costs {cost}; set price_usd_per_gpu_hour if yours differs.")


def _add_engine(draft: Draft, server: Server, said: Arguments, model: ModelSpec | None) -> None:
    settings = dict(said.settings)
    draft.add("")
    if server.image_tag != f"v{VLLM_VERSION}":
        running = f"; the image is {server.image_tag}" if server.image_tag else ""
        draft.add(
            assumed=f"what is not said has the default of vLLM {VLLM_VERSION}{running}. Other "
            "versions have others: older ones take 0.9 for gpu_memory_utilization."
        )
    notes = [*server.notes, *said.notes, *_on_variables(draft, server)]
    for note in [*notes, *_on_quantization(settings, model), *_on_gpus(draft, server, said)]:
        draft.add(assumed=note)
    if settings:
        draft.add("engine:", *(f"  {key}: {_scalar(value)}" for key, value in settings.items()))


def _on_variables(draft: Draft, server: Server) -> Iterator[str]:
    """Refuse the engine of old, and name the variables of vLLM that are not modeled."""
    if is_of_old_engine(server.variables):
        old = (
            f"VLLM_USE_V1={server.variables['VLLM_USE_V1']}: only the V1 engine of vLLM is modeled"
        )
        draft.problems.append(Problem(old))
    unmodeled, irrelevant = unmodeled_and_irrelevant(server.variables)
    draft.irrelevant += irrelevant
    if unmodeled:
        yield f"what {', '.join(unmodeled)} may change is not modeled."


def _on_quantization(settings: dict[str, Setting], model: ModelSpec | None) -> Iterator[str]:
    """Leave out a method that only repeats what the checkpoint is."""
    method = settings.get("quantization")
    if model is not None and model.quantization is not None and method not in {None, "fp8"}:
        del settings["quantization"]
        stored = model.quantization.weight_dtype
        yield f"--quantization {method}: the checkpoint says it itself ({stored})."


def _on_gpus(draft: Draft, server: Server, said: Arguments) -> Iterator[str]:
    """Compare the GPUs of a container with those that the command uses."""
    sizes = [said.settings.get(name, 1) for name in _PARALLEL_SIZES]
    used = math.prod(size for size in sizes if isinstance(size, int))
    if server.gpus is None:
        return
    if server.gpus < used:
        names = [n for n, size in zip(_PARALLEL_SIZES, sizes, strict=True) if size != 1]
        flags = " x ".join(f"--{name.replace('_', '-')}" for name in names)
        draft.problems.append(Problem(f"{flags} {used}, but {server.place} has {server.gpus} GPUs"))
    elif server.gpus > used:
        yield (
            f"{server.place} has {server.gpus} GPUs and uses {used}; the others are neither "
            "simulated nor priced."
        )


def _add_trace(draft: Draft, trace: Path, folder: Path) -> None:
    if not trace.is_file():
        draft.problems.append(Problem("no such file", file=str(trace)))
    file = _scalar(os.path.relpath(trace, folder))
    draft.add("workload:", f"  arrivals: {{kind: trace, file: {file}}}", "  lengths: {kind: trace}")


def _add_invented_traffic(draft: Draft, replicas: int, context_tokens: int) -> None:
    def part(share: int, at_most: int) -> int:
        return max(1, min(context_tokens // share, at_most))

    draft.add(
        "workload:",
        f"  arrivals: {{kind: poisson, rate_per_s: {float(max(1, replicas))}}}",
        "  lengths:",
        "    kind: lognormal",
        f"    prompt_mean_tokens: {part(4, 1024)}",
        "    prompt_cv: 1.0",
        f"    prompt_max_tokens: {part(2, 8192)}",
        f"    output_mean_tokens: {part(8, 256)}",
        "    output_cv: 1.0",
        f"    output_max_tokens: {part(4, 2048)}",
        "  num_requests: 1000",
        assumed="the traffic is invented: one request per second for each replica, at random, of "
        "mixed lengths. Put in yours, or name a request log with --trace.",
    )


def _scalar(value: Setting) -> str:
    """Write a value as YAML 1.2 reads it back."""
    if not isinstance(value, str):
        return json.dumps(value)
    if re.fullmatch(r"[A-Za-z][\w.-]*(/[\w.-]+)*", value, re.ASCII) and value.lower() not in _WORDS:
        return value
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(mark: str) -> str:
    return mark if mark.isprintable() and mark not in '"\\' else f"\\U{ord(mark):08x}"
