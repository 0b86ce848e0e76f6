"""From a finished run to its page."""

from pathlib import Path

from kvsim.memory import MemoryBudget
from kvsim.report.inputs import BasisLine, ReportInput, Variant
from kvsim.report.page import build_report
from kvsim.rundir import REPORT, Run
from kvsim.scenario.refusals import LIMITS


def write_report(folder: Path, run: Run, command: str) -> None:
    """Write the report of a run into its folder.

    Raises:
        OSError: The disk refuses.
    """
    page = build_report(report_input(run, command))
    (folder / REPORT).write_text(page, encoding="utf-8")


def report_input(run: Run, command: str) -> ReportInput:
    """Collect what the report is built from; `command` reproduces the run."""
    about = run.manifest
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return ReportInput(
        scenario=run.file.base.name,
        question=run.file.question,
        variants=[_variant(run, name) for name in run.variants],
        warmup_s=run.file.base.warmup_s,
        limits=LIMITS,
        facts={
            "seed": str(about["seed"]),
            "scenario SHA-256": about["scenario_sha256"],
            "requests SHA-256": about["requests_sha256"],
            "versions": versions,
        },
        command=command,
    )


def _variant(run: Run, name: str) -> Variant:
    variant, tables = run.variants[name], run.tables[name]
    return Variant(
        name=name,
        summary=run.summaries[name],
        requests=tables["requests"],
        steps=tables["steps"],
        events=tables["events"],
        inputs=run.manifest["variants"][name],
        memory_bytes=_memory_bytes(variant.memory),
        basis=[BasisLine(*line) for line in variant.cost.basis],
        notes=run.notes_on(name),
    )


def _memory_bytes(memory: MemoryBudget) -> dict[str, float]:
    """Return where the memory of one GPU goes; the lines add up to all of it."""
    used = {
        "weights": sum(memory.weights_bytes.values()),
        "activation peak": memory.activation_bytes,
        "CUDA graphs": memory.cuda_graph_bytes,
        "non-torch (CUDA, NCCL)": memory.non_torch_bytes,
        "KV cache": memory.num_gpu_blocks * memory.block_bytes,
    }
    return {**used, "left to others": memory.total_bytes - sum(used.values())}
