"""Every file that a scenario reads, beside its own."""

from math import inf
from pathlib import Path

from kvsim.copies import found_at
from kvsim.gpu import CustomGpu
from kvsim.model import model_files
from kvsim.scenario.profiles import profile_names
from kvsim.scenario.schema import KernelStepCost, Scenario
from kvsim.workload.files import content_digest, once_per_state
from kvsim.workload.parameters import files_read


def files_of(scenario: Scenario, base_dir: Path) -> dict[str, Path]:
    """Return where each file lies that a scenario names, by its path as written.

    Traces, what a model is read from, a profile, kernel timings of a GPU of the user's own.
    """
    found = files_read(scenario.workload)
    for path in model_files(scenario.model, base_dir):
        found[f"{scenario.model}: {path.name}"] = path
    cost = scenario.cost
    if isinstance(cost, KernelStepCost) and cost.profile not in profile_names():
        found[cost.profile] = found_at(base_dir / cost.profile)
    if isinstance(scenario.gpu, CustomGpu) and scenario.gpu.kernels is not None:
        found[scenario.gpu.kernels] = found_at(base_dir / scenario.gpu.kernels)
    return found


def file_digests_of(scenario: Scenario, base_dir: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that a scenario names, by its path as written.

    Raises:
        InputError: A file can't be read.
    """
    return {name: _digest(path) for name, path in files_of(scenario, base_dir).items()}


_digest = once_per_state(most=256, largest_bytes=inf)(content_digest)
