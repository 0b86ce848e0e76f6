"""What makes a small run quick, in counts: times are measured in benchmarks, not here."""

import ast
import resource
import subprocess
import sys

import pytest

from kvsim.cli import main as command_line

SCENARIO = """\
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
workload:
  arrivals: {kind: poisson, rate_per_s: 4.0}
  num_requests: 3
  lengths: {kind: fixed, prompt_tokens: 20, output_tokens: 5}
"""
RUN = (
    "import atexit, gc, sys\n"
    "atexit.register(lambda: print(repr({asked}), file=sys.stderr))\n"  # first in, last out
    "sys.argv = ['kvsim', 'run', 'small.yaml', '--no-report']\n"
    "from kvsim.cli.main import main\n"
    "before = [each['collections'] for each in gc.get_stats()]\n"
    "main()\n"
)


@pytest.fixture
def after_a_run(tmp_path):
    """Return what evaluates an expression in a process that ends after a small run."""
    (tmp_path / "small.yaml").write_text(SCENARIO, encoding="utf-8")

    def evaluated(expression):
        command = [sys.executable, "-c", RUN.format(asked=expression)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
        return ast.literal_eval(done.stderr.splitlines()[-1])

    return evaluated


def test_only_the_command_and_the_policies_asked_for_are_imported(after_a_run):
    loaded = set(after_a_run("[name for name in sys.modules if name.startswith('kvsim.')]"))

    def policies(package):
        names = (name.removeprefix(f"kvsim.{package}.") for name in loaded)
        return {name for name in names if not name.startswith(("_", "kvsim"))}

    assert policies("workload.arrivals") == {"poisson"}
    assert policies("workload.lengths") == {"fixed"}
    assert policies("workload.prompts") == {"unrelated"}
    assert policies("engine.routers") == {"round_robin"}
    assert policies("engine.schedulers") == {"vllm"}
    assert policies("engine.allocators") == {"paged"}
    assert not loaded & {"kvsim.workload.traces", "kvsim.cli.sweep", "kvsim.report.page"}


def test_nobody_searches_for_garbage_in_a_small_run(after_a_run):
    after = after_a_run("[before, [each['collections'] for each in gc.get_stats()]]")
    assert after[0] == after[1]
    assert after_a_run("gc.get_freeze_count()") > 50_000  # nor looks at them at the end


@pytest.mark.parametrize(
    ("imported", "spared"),
    [
        ("kvsim.scenario.load", {"pyarrow", "simpy", "pandas"}),
        (
            "kvsim.rundir.write, kvsim.engine.compiled.run",
            {"simpy", "kvsim.engine.cluster", "kvsim.engine.replica"},
        ),
    ],
    ids=["a check of a scenario", "a compiled run"],
)
def test_does_without(imported, spared):
    code = f"import sys, {imported}; print({spared} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_no_depth_of_calls_asks_the_system_for_memory_again_and_again():
    """A page is new to the process if the chunk of frames that it belongs to was given back."""
    most = 0

    def call():
        pass

    def go_down(depth):
        nonlocal most
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(300):
            call()
        most = max(most, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        if depth:
            go_down(depth - 1)

    command_line.on_one_stack(lambda: go_down(300))()
    assert most < 100
