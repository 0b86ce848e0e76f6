"""Each arrival process against its own theory, on 20 seeds: mean, dispersion, autocorrelation.

What is looked at is a series: counts in windows, gaps, or pauses. Its theory is the mean m_i of
each entry, its variance v_i, and its covariance with the next. Deviations are taken from the
theoretical mean, so that each of the three statistics of a run is an unbiased estimate, however
correlated the series:

    sum x_i / sum m_i,  sum (x_i - m_i)² / sum v_i,  sum (x_i - m_i)(x_i+1 - m_i+1) / sum v_i.

The estimates of 20 seeds are independent of each other, so a t-interval covers the theoretical
value; it fails to with probability `LEVEL`, once and for all, since seeds are fixed. It must be
narrow, too: a check that says nothing would pass otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, special, stats

import kvsim.workload.arrivals
from kvsim.policy import Policy, policies_in
from kvsim.rng import stream
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.arrivals.all_at_once import AllAtOnce
from kvsim.workload.arrivals.bursts import Bursts
from kvsim.workload.arrivals.closed_loop import ClosedLoop
from kvsim.workload.arrivals.constant import Constant
from kvsim.workload.arrivals.day_curve import DayCurve
from kvsim.workload.arrivals.gamma import Gamma
from kvsim.workload.arrivals.poisson import Poisson
from kvsim.workload.arrivals.stages import Stages
from kvsim.workload.arrivals.trace import TraceArrivals

SEEDS = range(20)
LEVEL = 1e-4
STATISTICS = ("mean", "dispersion", "autocorrelation")
WIDEST = {"mean": 0.03, "dispersion": 0.07, "autocorrelation": 0.04}  # half an interval
SECOND = 10**9


@dataclass(frozen=True)
class Theory:
    """Means and variances of a series, shape (length,), and covariances of neighbors."""

    mean: np.ndarray
    variance: np.ndarray
    covariance: np.ndarray


@dataclass(frozen=True)
class Case:
    name: str
    process: Policy
    series: Callable[[Arrivals], np.ndarray] = field(repr=False)
    theory: Theory = field(repr=False)
    count: int | None = None
    duration_s: int | None = None

    def draw(self, seed: int) -> np.ndarray:
        duration_ns = None if self.duration_s is None else self.duration_s * SECOND
        return self.series(self.process.arrivals(self.count, duration_ns, stream(seed, "arrivals")))


# Series


def counts(edges_s: np.ndarray) -> Callable[[Arrivals], np.ndarray]:
    edges_ns = np.rint(edges_s * SECOND).astype(np.int64)
    return lambda drawn: np.diff(np.searchsorted(drawn.times_ns, edges_ns)).astype(float)


def gaps_s(drawn: Arrivals) -> np.ndarray:
    return np.diff(drawn.times_ns, prepend=0) / SECOND


def pauses_s(drawn: Arrivals) -> np.ndarray:
    return drawn.users.think_ns / SECOND


# Theories


def independent(length: int, mean: float, variance: float) -> Theory:
    return Theory(np.full(length, mean), np.full(length, variance), np.zeros(length - 1))


def along(expected: np.ndarray, variance_of: Callable[[np.ndarray], np.ndarray]) -> Theory:
    """Counts of a stationary process of rate 1, read where so many are expected in each window."""
    both = variance_of(expected[:-1] + expected[1:])
    alone = variance_of(expected)
    return Theory(expected, alone, (both - alone[:-1] - alone[1:]) / 2)


def poisson_variance(expected: np.ndarray) -> np.ndarray:
    return expected


def gamma_variance(shape: float) -> Callable[[np.ndarray], np.ndarray]:
    """Variance of the count of a stationary gamma renewal process of rate 1.

    x + 2 ∫ m(u) du - x², with the renewal function m(u) = Σ P(n gaps ≤ u) (Cox, Renewal Theory,
    1962, chapter 4.5); the sum of n gaps is gamma with shape n times that of one.
    """

    def variance(expected: np.ndarray) -> np.ndarray:
        x = expected[:, None]
        a = shape * np.arange(1, 400)
        inner = x * special.gammainc(a, shape * x)
        inner -= np.arange(1, 400) * special.gammainc(a + 1, shape * x)
        return expected + 2 * inner.sum(axis=1) - expected**2

    return variance


def burst_variance(process: Bursts) -> Callable[[np.ndarray], np.ndarray]:
    """Variance of the count, from the two states' exponential covariance, by quadrature."""
    rates = np.array([process.burst_rate_per_s, process.base_rate_per_s])
    lengths = np.array([process.mean_burst_s, process.mean_gap_s])
    share = lengths / lengths.sum()
    mean = share @ rates
    spread = share @ (rates - mean) ** 2
    speed = (1 / lengths).sum()

    def variance(expected: float) -> float:
        window = expected / mean
        end = min(window, 40 / speed)  # nothing is left after it
        area, _ = integrate.quad(lambda s: (window - s) * np.exp(-speed * s), 0, end)
        return expected + 2 * spread * area

    return np.vectorize(variance)


def areas(rate_at: Callable[[np.ndarray], np.ndarray], edges_s: np.ndarray) -> np.ndarray:
    """The rate's integral over each window, by the midpoint rule in 200 steps."""
    steps = (np.arange(200) + 0.5) / 200
    times = edges_s[:-1, None] + np.diff(edges_s)[:, None] * steps
    return rate_at(times).mean(axis=1) * np.diff(edges_s)


# Cases


def steady(name: str, process: Policy, variance_of, windows: int = 3000) -> Case:
    """Counts in windows of 10 expected requests, long after the start."""
    window_s = 10 / process.rate_per_s
    edges_s = window_s * np.arange(20, 21 + windows)
    theory = along(np.full(windows, 10.0), variance_of)
    return Case(name, process, counts(edges_s), theory, duration_s=int(edges_s[-1]) + 1)


def renewal_gaps(process: Policy, shape: float) -> Case:
    mean_s = 1 / process.rate_per_s
    theory = independent(20_000, mean_s, mean_s**2 / shape)
    return Case("gaps", process, gaps_s, theory, count=20_000)


POINTS = [(10.0, 2.0), (25.0, 12.0), (60.0, 5.0)]  # of a day of 100 s, that starts at 30 s
EDGES_S = np.arange(0.0, 6000.0, 2.0)


def curve(**parameters) -> DayCurve:
    points = [{"time_s": time, "rate_per_s": rate} for time, rate in POINTS]
    return DayCurve.model_validate(
        {"points": points, "period_s": 100.0, "start_s": 30.0, "rate_scale": 0.5, **parameters}
    )


def rate_of_curve(times_s: np.ndarray) -> np.ndarray:
    times, rates = zip(*POINTS, (110.0, 2.0), strict=True)
    phase = (times_s + 30 - 10) % 100 + 10
    return 0.5 * np.interp(phase, times, rates)


def noisy_curve() -> Case:
    """The factor is the same in both windows of a step of the noise."""
    expected = areas(rate_of_curve, EDGES_S)
    covariance = 0.16 * expected[:-1] * expected[1:]
    covariance[1::2] = 0
    theory = Theory(expected, expected + 0.16 * expected**2, covariance)
    process = curve(noise_cv=0.4, noise_period_s=4.0)
    return Case("noisy", process, counts(EDGES_S), theory, duration_s=6000)


def curve_case(name: str, variance_of, **parameters) -> Case:
    theory = along(areas(rate_of_curve, EDGES_S), variance_of)
    return Case(name, curve(**parameters), counts(EDGES_S), theory, duration_s=6000)


def one_stage(name: str, exact_count: bool, theory: Theory, series=None, **stage) -> Case:
    process = Stages.model_validate({"exact_count": exact_count, "stages": [stage]})
    return Case(name, process, series or counts(np.arange(0.0, 3001.0)), theory)


def exact_poisson_stages() -> Case:
    """Two stages, in each a multinomial count: what one window gets, the others don't."""
    sent = np.array([4000, 16000])
    mean = np.repeat(sent / 1000, 1000)
    share = np.repeat(1 / 1000, 2000)
    covariance = -(mean * share)[:-1]
    covariance[999] = 0
    theory = Theory(mean, mean * (1 - share), covariance)
    plan = [{"rate_per_s": rate, "duration_s": 1000} for rate in (4, 16)]
    process = Stages.model_validate({"stages": plan})
    return Case("exact", process, counts(np.arange(0.0, 2001.0)), theory)


def exact_gamma_stage(shape: float = 0.4, sent: int = 8000) -> Case:
    """Gaps over their sum follow a Dirichlet law; the last of sent + 1 is not seen."""
    gaps = sent + 1
    base = (3000 / gaps) ** 2 / (gaps * shape + 1)
    theory = Theory(
        np.full(sent, 3000 / gaps), np.full(sent, base * (gaps - 1)), np.full(sent - 1, -base)
    )
    stage = {"rate_per_s": sent / 3000, "duration_s": 3000, "burstiness": shape}
    return one_stage("exact gamma", True, theory, gaps_s, spacing="gamma", **stage)


def ramp_stage() -> Case:
    edges_s = np.arange(0.0, 3001.0)
    theory = along(areas(lambda times: times * 16 / 3000, edges_s), poisson_variance)
    stage = {"rate_per_s": 16, "duration_s": 3000, "ramp": True}
    return one_stage("ramp", False, theory, **stage)


def loop(kind: str, variance: float, **parameters) -> Case:
    process = ClosedLoop(users=50, think_mean_s=3.0, think_kind=kind, **parameters)
    return Case(kind, process, pauses_s, independent(20_000, 3.0, variance), count=20_000)


CROWDS = Bursts(base_rate_per_s=2, burst_rate_per_s=20, mean_burst_s=3, mean_gap_s=9)
CASES = [
    steady("counts", Poisson(rate_per_s=5), poisson_variance),
    steady("bursty counts", Gamma(rate_per_s=5, burstiness=0.3), gamma_variance(0.3)),
    steady("even counts", Gamma(rate_per_s=5, burstiness=4), gamma_variance(4)),
    steady("counts", CROWDS, burst_variance(CROWDS), windows=9000),
    renewal_gaps(Poisson(rate_per_s=5), 1),
    renewal_gaps(Gamma(rate_per_s=5, burstiness=0.3), 0.3),
    renewal_gaps(Gamma(rate_per_s=5, burstiness=4), 4),
    curve_case("counts", poisson_variance),
    curve_case("even counts", gamma_variance(6), burstiness=6.0),
    noisy_curve(),
    exact_poisson_stages(),
    exact_gamma_stage(),
    one_stage(
        "counts", False, along(np.full(3000, 8.0), poisson_variance), rate_per_s=8, duration_s=3000
    ),
    ramp_stage(),
    loop("exponential", 9.0),
    loop("lognormal", 9.0 * 0.25, think_cv=0.5),
]


def label(case: Case) -> str:
    return f"{case.process.kind}: {case.name}"


def estimates(series: np.ndarray, theory: Theory) -> tuple[float, float, float]:
    off, scale = series - theory.mean, theory.variance.sum()
    return (
        series.sum() / theory.mean.sum(),
        (off**2).sum() / scale,
        (off[:-1] * off[1:]).sum() / scale,
    )


def expected_estimates(theory: Theory) -> tuple[float, float, float]:
    return 1.0, 1.0, theory.covariance.sum() / theory.variance.sum()


def intervals(case: Case, theory: Theory) -> list[tuple[float, float]]:
    """Middle and half-width of each statistic's t-interval over the seeds."""
    found = np.array([estimates(case.draw(seed), theory) for seed in SEEDS])
    half = stats.t.ppf(1 - LEVEL / 2, len(SEEDS) - 1) * stats.sem(found, axis=0)
    return list(zip(found.mean(axis=0), half, strict=True))


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_process_keeps_its_statistics_on_twenty_seeds(case):
    rows = zip(
        STATISTICS, intervals(case, case.theory), expected_estimates(case.theory), strict=True
    )
    for statistic, (middle, half), wanted in rows:
        # Rounding, where the theory knows no chance: a count that is always the same.
        assert abs(middle - wanted) <= half + 1e-9, (statistic, middle, half, wanted)
        assert half < WIDEST[statistic], (statistic, half)


@pytest.mark.parametrize(
    ("case", "wrong", "statistic"),
    [
        (CASES[0], along(np.full(3000, 10.3), poisson_variance), "mean"),
        (CASES[0], along(np.full(3000, 10.0), gamma_variance(0.8)), "dispersion"),
        (CASES[3], along(np.full(9000, 10.0), poisson_variance), "autocorrelation"),
        (CASES[1], along(np.full(3000, 10.0), lambda x: x / 0.3), "autocorrelation"),
    ],
    ids=["3% faster", "slightly bursty", "no bursts", "bursts without memory"],
)
def test_a_wrong_theory_is_found(case, wrong, statistic):
    which = STATISTICS.index(statistic)
    middle, half = intervals(case, wrong)[which]
    assert abs(middle - expected_estimates(wrong)[which]) > half


def test_bursts_know_their_index_of_dispersion():
    long = 1e6  # requests
    in_it = burst_variance(CROWDS)(long) / long
    assert in_it == pytest.approx(CROWDS.index_of_dispersion, rel=1e-3)


# Processes without chance: the same on every seed.


def trace(folder: Path) -> TraceArrivals:
    rows = [f"2023-11-16 18:00:0{second}.0000000,5,7" for second in (0, 1, 1, 4)]
    text = "\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows])
    (folder / "t.csv").write_text(text)
    data = {"kind": "trace", "file": "t.csv"}
    return TraceArrivals.model_validate(data, context={"base_dir": folder})


STEADY_STAGE = {"rate_per_s": 2, "duration_s": 2.5, "spacing": "constant"}
CERTAIN = [
    (AllAtOnce(), [5, 0, 0, 0, 0]),
    (Constant(rate_per_s=2), [2, 2, 1, 0, 0]),
    (Stages.model_validate({"stages": [STEADY_STAGE]}), [2, 2, 1, 0, 0]),
    (trace, [1, 2, 0, 0, 1]),
    (ClosedLoop(users=3, think_mean_s=2.0), [5, 0, 0, 0, 0]),
]


@pytest.mark.parametrize(("process", "wanted"), CERTAIN, ids=lambda value: str(value)[:20])
def test_a_process_without_chance_is_the_same_on_every_seed(process, wanted, tmp_path):
    if process is trace:
        process = trace(tmp_path)
    for seed in SEEDS:
        count = None if process.kind == "trace" else 5
        drawn = process.arrivals(count, None, stream(seed, "arrivals"))
        assert counts(np.arange(6.0))(drawn).tolist() == wanted


def test_no_process_is_left_out():
    tried = {type(case.process) for case in CASES}
    tried |= {TraceArrivals if process is trace else type(process) for process, _ in CERTAIN}
    assert tried == set(policies_in(kvsim.workload.arrivals))
