"""Figures of a run against the same sums done by hand."""

import numpy as np
import pytest

from kvsim.cost.affine import AffineCost
from kvsim.tables import OUTCOMES, REQUESTS
from kvsim.validate.measure import Observed

NAMES = [column.name for column in REQUESTS]
MS = 1_000_000


class Parts:
    """A step cost whose parts are given."""

    def __init__(self, *parts):
        self.parts = parts

    def parts_ns(self, steps):
        from kvsim.cost import Part

        return {
            Part(name, "hbm", basis): np.full(len(steps.decode_seqs), float(ns))
            for name, basis, ns in self.parts
        }


def request(arrival_ms, first_ms, end_ms, tokens, outcome="finished"):
    row = dict.fromkeys(NAMES, 0)
    row |= {
        "arrival_ns": arrival_ms * MS,
        "first_token_ns": first_ms * MS,
        "finish_ns": end_ms * MS,
        "output_tokens": tokens,
        "outcome": OUTCOMES.index(outcome),
    }
    return [row[name] for name in NAMES]


def observed(*rows):
    found = Observed(AffineCost(1, 0, 0, 0, 0))
    found("requests", np.array(rows, dtype=np.int64))
    return found


def test_means_and_percentiles_are_those_of_the_requests():
    rows = [request(10 * n, 10 * n + 5 + n, 10 * n + 105 + 2 * n, 11) for n in range(100)]
    figures = observed(*rows).figures(np.zeros(1, dtype=np.int64))[-1]
    e2e = [105 + 2 * n for n in range(100)]
    ttft = [5 + n for n in range(100)]
    assert figures["e2e_mean"] == pytest.approx(sum(e2e) / 100)
    assert figures["ttft_mean"] == pytest.approx(sum(ttft) / 100)
    assert figures["e2e_p90"] == pytest.approx(np.percentile(e2e, 90))
    assert figures["ttft_p99"] == pytest.approx(np.percentile(ttft, 99))
    tpot = [(e - t) / 10 for e, t in zip(e2e, ttft, strict=True)]
    assert figures["tpot_mean"] == pytest.approx(sum(tpot) / 100)
    assert figures["throughput"] == pytest.approx(100 / (rows[-1][NAMES.index("finish_ns")] / 1e9))


def test_tpot_is_a_mean_over_requests_and_the_reported_itl_one_over_tokens():
    found = observed(request(0, 10, 110, 11), request(0, 10, 1010, 21))
    figures = found.figures(np.zeros(1, dtype=np.int64))[-1]
    assert figures["tpot_mean"] == pytest.approx((10 + 50) / 2)
    assert figures["itl_mean_reported"] == pytest.approx((100 + 1000) / (10 + 20))


def test_answers_of_one_token_have_no_tpot():
    figures = observed(request(0, 10, 10, 1)).figures(np.zeros(1, dtype=np.int64))[-1]
    assert "tpot_mean" not in figures
    assert figures["e2e_mean"] == 10


def test_stages_are_told_by_arrival_and_pauses_between_them_do_not_count():
    starts = np.array([0, 10_000 * MS], dtype=np.int64)
    rows = [request(0, 10, 1000, 5), request(500, 10, 4000, 5), request(10_000, 10_010, 12_000, 5)]
    figures = observed(*rows).figures(starts)
    assert figures[0]["throughput"] == pytest.approx(2 / 4)
    assert figures[1]["throughput"] == pytest.approx(1 / 2)
    assert figures[1]["e2e_mean"] == 2000
    assert figures[-1]["throughput"] == pytest.approx(3 / (4 + 2 + 2))  # 2 s between the stages


def test_a_stage_without_requests_has_no_figures():
    starts = np.array([0, 5000 * MS, 6000 * MS], dtype=np.int64)
    figures = observed(request(0, 10, 1000, 5), request(6000, 6010, 7000, 5)).figures(starts)
    assert set(figures) == {-1, 0, 2}
    assert figures[-1]["throughput"] == pytest.approx(2 / (1 + 1 + 2))


def test_requests_that_did_not_finish_are_counted_apart():
    found = observed(request(0, 10, 20, 2), request(0, -1, 20, 0, "rejected"))
    assert found.lost() == 1
    assert found.figures(np.zeros(1, dtype=np.int64))[-1]["e2e_mean"] == 20


@pytest.mark.parametrize(
    ("parts", "basis"),
    [
        ([("gemm", "measured", 95), ("norm", "physical", 5)], "measured"),
        ([("gemm", "measured", 85), ("norm", "physical", 15)], "physical"),
        ([("gemm", "interpolated", 50), ("host", "given", 50)], "given"),
        ([("gemm", "extrapolated", 50), ("host", "given", 50)], "extrapolated"),
        ([("a", "physical", 5), ("a", "measured", 95)], "measured"),
    ],
)
def test_the_basis_is_the_weakest_that_carries_a_tenth(parts, basis):
    found = Observed(Parts(*parts))
    found("steps", np.zeros((3, 40), dtype=np.int64))
    assert found.basis() == basis
