from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import InputError
from kvsim.rng import stream
from kvsim.scenario.load import load_scenario
from kvsim.traffic.fidelity import compare, fidelity_sentence, not_imitated
from kvsim.traffic.imitation import imitate
from kvsim.traffic.summary import analyze
from kvsim.units import NS_PER_S
from kvsim.workload.arrivals.bursts import Bursts
from kvsim.workload.build import build_requests
from kvsim.workload.lengths.trace import TraceLengths
from kvsim.workload.parameters import Workload

HOUR_NS = 3600 * NS_PER_S


def write_log(path: Path, requests: int = 4_000, seed: int = 0) -> TraceLengths:
    """An hour in bursts; answers are a tenth of their prompts."""
    rng = stream(seed, "imitation-tests")
    law = Bursts(base_rate_per_s=0.5, burst_rate_per_s=8.0, mean_burst_s=10.0, mean_gap_s=60.0)
    times = law.arrivals(None, HOUR_NS, rng).times_ns[:requests]
    prompt = np.rint(rng.lognormal(6, 1, len(times))).astype(int) + 10
    rows = [f"{t},{p},{p // 10}" for t, p in zip(times, prompt, strict=True)]
    path.write_text("\n".join(["sent,in,out", *rows]))
    columns = {"arrival": "sent", "prompt_tokens": "in", "output_tokens": "out"}
    return TraceLengths.model_validate({"file": str(path), "columns": columns, "time_unit": "ns"})


def test_the_scenario_loads_and_draws_what_the_log_has(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "plans").mkdir()
    log = write_log(tmp_path / "logs" / "a log.csv")
    traffic = analyze(log.read())
    target = tmp_path / "plans" / "like.yaml"
    imitation = imitate(traffic, log, target)
    target.write_text(imitation.text)
    file = load_scenario(target)
    assert file.base.name == "like"
    assert file.base.workload.lengths.file == "../logs/a log.csv"
    assert imitation.text.count("a default: put in yours") == 2
    requests = build_requests(file.base.workload, 5)
    assert requests.horizon_ns == traffic.end_ns
    assert len(requests) == pytest.approx(len(traffic.log), rel=0.25)
    assert (requests.output_tokens == requests.prompt_tokens // 10).all()
    rows = {row.name: row for row in imitation.compared}
    assert all(row.is_close for row in rows.values() if row.name.startswith("dispersion"))
    assert rows["rank correlation"].imitation == pytest.approx(1, abs=0.01)


def test_without_the_log_the_law_is_said_to_lose_the_pairs(tmp_path):
    log = write_log(tmp_path / "log.csv")
    traffic = analyze(log.read())
    target = tmp_path / "alone.yaml"
    imitation = imitate(traffic, log, target, gpu="a100_sxm", without_log=True)
    target.write_text(imitation.text)
    (tmp_path / "log.csv").unlink()
    base = load_scenario(target).base
    assert base.workload.lengths.kind == "lognormal"
    assert base.gpu == "a100_sxm"
    assert imitation.text.count("a default: put in yours") == 1
    assert "does badly in" in imitation.sentences[0]
    assert "rank correlation (-" in imitation.sentences[0]
    assert imitation.compared[-1].imitation == pytest.approx(0, abs=0.05)
    assert len(build_requests(base.workload, 0))


def test_a_wrong_workload_is_told_to_be_wrong(tmp_path):
    log = write_log(tmp_path / "log.csv")
    traffic = analyze(log.read())
    duration_s = traffic.end_ns / NS_PER_S
    wrong = {
        "arrivals": {"kind": "poisson", "rate_per_s": 2 * traffic.arrivals.rate_per_s},
        "lengths": {"kind": "fixed", "prompt_tokens": 400, "output_tokens": 40},
        "duration_s": duration_s,
    }
    compared = compare(traffic, Workload.model_validate(wrong))
    rows = {row.name: row for row in compared}
    assert rows["requests per second"].imitation == pytest.approx(
        2 * traffic.arrivals.rate_per_s, rel=0.05
    )
    assert rows["dispersion over 10 s"].imitation == pytest.approx(1, abs=0.15)
    share = (traffic.log.prompt_tokens <= 400).mean()
    assert rows["prompt tokens, KS distance"].imitation == pytest.approx(
        max(share, 1 - share), abs=0.02
    )
    told = fidelity_sentence(compared)
    for part in ("requests per second (+", "dispersion over 10 s", "KS distance", "correlation"):
        assert part in told


def test_what_is_not_imitated_is_said(tmp_path):
    log = write_log(tmp_path / "log.csv", requests=30)
    trace = log.read()
    assert not_imitated(analyze(trace)) == []
    session = np.arange(len(trace)) // 3
    traffic = analyze(trace.__class__(*trace_columns(trace), session=session))
    assert not_imitated(traffic) == ["Sessions are not imitated: each request stands alone."]


def trace_columns(trace):
    return trace.arrival_ns, trace.prompt_tokens, trace.output_tokens


def test_a_log_without_times_can_not_be_imitated(tmp_path):
    log = write_log(tmp_path / "log.csv", requests=1)
    with pytest.raises(InputError, match="has no times"):
        imitate(analyze(log.read()), log, tmp_path / "x.yaml")
