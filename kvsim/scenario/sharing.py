"""What the sequences of a workload ask of the scheduler: samples, beams, declared prefixes."""

from collections.abc import Iterator

from kvsim.errors import Problem
from kvsim.gpu import GpuSpec
from kvsim.scenario.schema import Scenario

# Engines that search: vLLM V0 shares the beams' blocks, the others keep each beam on its own.
SEARCHING = ("faster_transformer", "orca", "vllm_v0")


def sharing_problems(scenario: Scenario, max_num_seqs: int, gpu: GpuSpec) -> Iterator[Problem]:
    """Yield what the scheduler can't do with the workload's sequences, each with its place."""
    workload, scheduler = scenario.workload, scenario.scheduler
    if workload.beam_width > 1 and scheduler.kind not in SEARCHING:
        why = (
            f"the scheduler {scheduler.kind} knows no beam search (vLLM V1 leaves it to the "
            f"client); it needs scheduler: {' or '.join(sorted(SEARCHING))}"
        )
        yield Problem(why, path="workload.beam_width")
    if scheduler.kind != "vllm_v0":
        return
    if workload.samples > max_num_seqs:
        name = "n" if workload.n > 1 else "beam_width"
        why = f"{workload.samples} sequences of a request run together: at most max_num_seqs"
        yield Problem(f"{why} ({max_num_seqs})", path=f"workload.{name}")
    if workload.samples > 1 and scheduler.preemption == "recompute":
        why = "a group of several sequences can't be computed again: use auto or swap"
        yield Problem(why, path="scheduler.preemption")
    elif workload.samples > 1 and gpu.pcie_bytes_per_s is None:
        why = (
            f"groups of several sequences are swapped: pcie_bytes_per_s of {gpu.name} is not known"
        )
        yield Problem(why, path="gpu")
    if scheduler.declared_prefixes and not _names_prefixes(scenario):
        why = "no prompts of the workload begin with a system prompt: say prefix_tokens"
        yield Problem(why, path="scheduler.declared_prefixes")


def _names_prefixes(scenario: Scenario) -> bool:
    return any(getattr(law, "prefix_tokens", 0) for law in scenario.workload.policies())
