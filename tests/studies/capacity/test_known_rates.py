"""M/M/c and M/D/1, of which the rate is known at which p99 of waiting reaches a target."""

import numpy as np
import pytest

from kvsim.scenario.load import load_scenario
from kvsim.studies.capacity.limit import Search, Terms, pilot_requests
from kvsim.studies.capacity.search import Options, ask
from kvsim.studies.capacity.simulation import Ask, simulate_once
from tests.engine.oracles import lindley_waits
from tests.studies.capacity.queues import MEAN_TOKENS, TOKEN_NS, Queue, exponential_rows

SCENARIO = """
model: meta-llama/Llama-3.1-8B-Instruct
gpu: h100_sxm
replicas: {servers}
routing: shared_queue
engine:
  max_num_seqs: 1
  max_model_len: 131072
  max_num_batched_tokens: 131072
  enable_prefix_caching: false
  async_scheduling: false
cost: {{kind: affine, per_token_ns: {token_ns}}}
workload:
  arrivals: {{kind: poisson, rate_per_s: {servers}}}
  lengths: {lengths}
  num_requests: 1000
slo: {{queue_p99_s: {wait_s}, max_failed_fraction: 0.5}}
seed: {seed}
"""
FIXED = f"{{kind: fixed, prompt_tokens: {MEAN_TOKENS}, output_tokens: 1}}"
CASES = {  # the queue, and the rate that is to be found, per second: a server does 1
    "M/D/1": (Queue(1), 0.75),
    "M/M/2": (Queue(2, tuple(exponential_rows().tolist())), 1.6),
}


def scenario_of(folder, queue, rate_per_s, seed=0):
    """Return the scenario of a queue whose p99 of waiting is its target at this rate."""
    lengths = FIXED
    if queue.rows:
        rows = folder / "exponential.csv"
        rows.write_text("prompt_tokens,output_tokens\n" + "\n".join(f"{r},1" for r in queue.rows))
        lengths = "{kind: empirical, file: exponential.csv}"
    path = folder / "queue.yaml"
    path.write_text(
        SCENARIO.format(
            servers=queue.servers,
            token_ns=TOKEN_NS,
            lengths=lengths,
            wait_s=queue.wait_s(rate_per_s, 0.01),
            seed=seed,
        )
    )
    return load_scenario(path)


def intervals(folder, queue, rate_per_s, seeds):
    """Search by the exact recursions; one interval a seed."""
    question = ask(scenario_of(folder, queue, rate_per_s), Options())
    found = []
    for seed in seeds:
        search = Search(
            question.knob,
            question.bounds,
            Terms(requests=pilot_requests(question.bounds)),
            lambda asks, seed=seed: queue.simulate(question, seed, asks),
        )
        one = search.run()
        found.append([question.knob.value(place) for place in (one.easy, one.hard)])
    return np.array(found)


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(4), id="some"),
        pytest.param(range(100), id="hundred", marks=pytest.mark.prove),
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_intervals_hold_the_known_rate_and_are_narrow(tmp_path, case, seeds):
    queue, rate_per_s = CASES[case]
    low, high = intervals(tmp_path, queue, rate_per_s, seeds).T
    held = (low <= rate_per_s) & (rate_per_s <= high)
    assert held.sum() >= 0.88 * len(seeds) - (len(seeds) < 100)  # of few one may miss it
    assert (high - low).max() < 0.05 * rate_per_s


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 7])
def test_the_engine_gives_the_same_trials_to_the_bit(tmp_path, case, seed):
    queue, rate_per_s = CASES[case]
    question = ask(scenario_of(tmp_path, queue, rate_per_s, seed), Options())
    asked = Ask(round(rate_per_s, 2), 3, 700)
    (exact,), found = queue.simulate(question, seed, [asked]), simulate_once(question, asked)
    for name in ("arrival_s", "present", "stay_s", "good"):
        assert np.array_equal(getattr(exact, name), getattr(found, name)), name
    for bound in question.bounds:
        assert exact.mean(bound, 70) == found.mean(bound, 70)
    assert (exact.first, exact.end) == (found.first, found.end)


@pytest.mark.prove
@pytest.mark.parametrize("case", CASES)
def test_the_whole_search_through_the_engine_is_the_same(tmp_path, case):
    queue, rate_per_s = CASES[case]
    question = ask(scenario_of(tmp_path, queue, rate_per_s, 1), Options())
    terms = Terms(requests=pilot_requests(question.bounds))
    by_engine = Search(
        question.knob,
        question.bounds,
        terms,
        lambda asks: [simulate_once(question, asked) for asked in asks],
    )
    exact = Search(
        question.knob, question.bounds, terms, lambda asks: queue.simulate(question, 1, asks)
    )
    assert by_engine.run() == exact.run()


def test_the_recursion_of_many_rows_is_lindleys():
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.integers(0, 2_000, (3, 400)), axis=1)
    services = rng.integers(1, 1_900, (3, 400))
    waits = Queue(1).waits_ns(arrivals, services)
    assert waits.tolist() == [lindley_waits(a, s) for a, s in zip(arrivals, services, strict=True)]


@pytest.mark.parametrize("case", CASES)
def test_the_formula_of_waiting_is_what_long_runs_show(case):
    queue, rate_per_s = CASES[case]
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(1e9 / rate_per_s, (40, 20_000)), axis=1).astype(np.int64)
    services = np.full(arrivals.shape, 10**9)
    if queue.rows:
        services = np.rint(rng.exponential(1e9, arrivals.shape)).astype(np.int64)
    wait_s = queue.wait_s(rate_per_s, 0.05)
    beyond = (queue.waits_ns(arrivals, services)[:, 2_000:] > wait_s * 1e9).mean(axis=1)
    assert beyond.mean() == pytest.approx(0.05, abs=3.5 * beyond.std() / len(beyond) ** 0.5)
