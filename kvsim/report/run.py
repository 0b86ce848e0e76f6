"""From a finished run to its page."""

from kvsim.report.inputs import BasisLine, ReportInput, Variant
from kvsim.report.page import build_report
from kvsim.rundir.read import REPORT, Run
from kvsim.scenario.refusals import LIMITS
from kvsim.scenario.schema import BASE


def write_report(run: Run) -> None:
    """Write the report of a run into its folder; only what is there decides its bytes.

    Raises:
        OSError: The disk refuses.
    """
    (run.folder / REPORT).write_text(build_report(report_input(run)), encoding="utf-8")


def report_input(run: Run) -> ReportInput:
    """Collect what the report is built from."""
    about = run.manifest
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return ReportInput(
        scenario=run.scenario,
        question=about["question"],
        variants=[_variant(run, name) for name in run.summaries],
        warmup_s=about["variants"][BASE]["warmup_s"],
        limits=LIMITS,
        facts={
            "seed": str(about["seed"]),
            "scenario SHA-256": about["scenario_sha256"],
            "requests SHA-256": about["requests_sha256"],
            "versions": versions,
        },
        command=about["command"],
        advice=run.advice,
    )


def _variant(run: Run, name: str) -> Variant:
    about, tables = run.manifest, run.tables[name]
    return Variant(
        name=name,
        summary=run.summaries[name],
        requests=tables["requests"],
        steps=tables["steps"],
        events=tables["events"],
        memory_looks=tables.get("memory_looks"),
        memory_map=tables.get("memory_map"),
        inputs=about["variants"][name],
        memory_bytes=about["memory_bytes"][name],
        basis=[BasisLine(*line) for line in about["step_basis"][name]],
        notes=run.notes_on(name),
    )
