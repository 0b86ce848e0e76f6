"""`--markdown`: the same summary from `kvsim run` and from `kvsim report`."""

from pathlib import Path

SCENARIO = """\
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
workload:
  arrivals: {kind: poisson, rate_per_s: 5.0}
  lengths: {kind: fixed, prompt_tokens: 100, output_tokens: 8}
  num_requests: 20
slo: {ttft_p99_s: 1.0e-9}
"""


def test_run_and_report_print_the_same_summary(command_line):
    Path("s.yaml").write_text(SCENARIO)
    ran = command_line("run", "s.yaml", "--markdown")
    assert ran.returncode == 1
    assert ran.stdout.startswith("## `s`: MISSED\n\n**Verdict.** Misses its SLO")
    page = Path("reports/s/report.html").read_bytes()
    again = command_line("report", "reports/s", "--markdown")
    assert (again.returncode, again.stdout) == (0, ran.stdout)
    assert Path("reports/s/report.html").read_bytes() == page


def test_one_form_at_a_time(command_line):
    Path("s.yaml").write_text(SCENARIO)
    done = command_line("run", "s.yaml", "--markdown", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "--json and --markdown: choose one\n"
