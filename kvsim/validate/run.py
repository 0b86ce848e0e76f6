"""Cases → rows of measured and predicted figures, side by side on the cores."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from kvsim.errors import InputError
from kvsim.scenario.resolve import memory_of, resolve
from kvsim.simulate import simulate
from kvsim.validate.case import Case, ClosedLoop, Measured, OpenLoop
from kvsim.validate.deployments import scenario_of, validated
from kvsim.validate.measure import Observed
from kvsim.validate.workloads import traffic_of
from kvsim.workload.parameters import Workload

_IDLE = {"arrivals": {"kind": "all_at_once"}, "num_requests": 1}
_ANY_LENGTHS = {"lengths": {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1}}
_KV = "kv_cache_tokens"
_V1 = "0.15.1"  # memory profile where no version is recorded, as with the profile of constants


@dataclass(frozen=True, slots=True)
class Row:
    """A measured figure and what kvsim predicts.

    Attributes:
        predicted: None if it can't be; then `reason` says why.
        basis: The weakest basis that carries a tenth of the time; `memory` for KV caches.
    """

    id: str
    metric: str
    stage: int
    predicted: float | None
    actual: float | None
    basis: str = ""
    reason: str = ""

    @property
    def error_percent(self) -> float | None:
        """Signed error, in percent of what was measured."""
        if self.predicted is None or not self.actual:
            return None
        return 100 * (self.predicted - self.actual) / self.actual

    @property
    def ape(self) -> float | None:
        """Absolute error, in percent of what was measured."""
        error = self.error_percent
        return None if error is None else abs(error)

    def as_dict(self) -> dict[str, object]:
        """Return the row for JSON."""
        return {
            "id": self.id,
            "metric": self.metric,
            "stage": self.stage,
            "predicted": self.predicted,
            "actual": self.actual,
            "ape": self.ape,
            "basis": self.basis,
            **({"reason": self.reason} if self.reason else {}),
        }


def validate(
    cases: Sequence[Case],
    seed: int = 0,
    jobs: int = 1,
    tell: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Predict all cases; rows come in the order of the cases, however they were computed.

    Args:
        cases: What was measured.
        seed: Root of all random streams.
        jobs: Processes at work.
        tell: Told how many cases are done, of how many.
    """
    found: dict[int, list[Row]] = {}
    for place, rows in _computed(cases, seed, min(jobs, len(cases))):
        found[place] = rows
        if tell:
            tell(len(found), len(cases))
    return [row for place in sorted(found) for row in found[place]]


def _computed(cases: Sequence[Case], seed: int, jobs: int) -> Iterator[tuple[int, list[Row]]]:
    """Yield the rows of each case by its place, in the order in which they are done."""
    # The heaviest first, so that no core is left alone with one at the end.
    weights = [_weight(case) for case in cases]
    heaviest = sorted(range(len(cases)), key=lambda place: -weights[place])
    if min(jobs, sum(weight > 0 for weight in weights)) <= 1:
        for place in heaviest:
            yield place, rows_of(cases[place], seed)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), _leave_signals) as pool:
        futures = {pool.submit(rows_of, cases[place], seed): place for place in heaviest}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _leave_signals() -> None:
    """Let the parent alone answer an interrupt from the keyboard."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def rows_of(case: Case, seed: int) -> list[Row]:
    """Return the rows of one case; one that can't be predicted says why in each."""
    if case.refusals:
        return _unpredicted(case, case.measured, "; ".join(case.refusals))
    latencies = [m for m in case.measured if m.metric != _KV]
    rows = list(_kv_rows(case))
    if not latencies:
        return rows or _unpredicted(case, (), "nothing was measured")
    try:
        return [*_simulated(case, latencies, seed), *rows]
    except InputError as error:
        return [*_unpredicted(case, latencies, _reason(error)), *rows]
    except Exception as error:  # a defect at one server must not take the others away
        reason = f"a defect of kvsim: {type(error).__name__}: {error}"
        return [*_unpredicted(case, latencies, reason), *rows]


def _simulated(case: Case, measured: Sequence[Measured], seed: int) -> Iterator[Row]:
    if case.client is None:
        raise InputError("the workload is not recorded")
    traffic = traffic_of(case.client, seed)
    variant = resolve(scenario_of(case.server, traffic.workload))
    observed = Observed(variant.cost)
    simulate(variant, traffic.requests, observed)
    lost = observed.lost()
    if lost:
        raise InputError(f"{lost} requests don't fit this server")
    figures = observed.figures(traffic.stage_starts_ns, traffic.warm_up_requests)
    basis = observed.basis()
    for one in measured:
        predicted = figures.get(one.stage, {}).get(one.metric)
        reason = "" if predicted is not None else f"the workload has no stage {one.stage}"
        yield Row(case.id, one.metric, one.stage, predicted, one.value, basis, reason)


def _kv_rows(case: Case) -> Iterator[Row]:
    """Compute the size of the KV cache, as if no log told it."""
    tokens = next((m.value for m in case.measured if m.metric == _KV), None)
    if tokens is None and case.kv_bytes_per_gpu is None:
        return
    try:
        idle = validated(Workload, {**_IDLE, **_ANY_LENGTHS})
        scenario = scenario_of(case.server, idle, with_recorded_blocks=False)
        memory = memory_of(scenario, case.server.version or _V1)
    except InputError as error:
        yield Row(case.id, _KV, -1, None, tokens, "", _reason(error))
        return
    if tokens is None and case.kv_bytes_per_gpu is not None:
        tokens = memory.kv_layout.tokens(int(case.kv_bytes_per_gpu // memory.block_bytes))
    yield Row(case.id, _KV, -1, float(memory.kv_cache_tokens), tokens, "memory")


def _unpredicted(case: Case, measured: Sequence[Measured], reason: str) -> list[Row]:
    """List what was measured without a prediction; a case without any figure has one row."""
    rows = [Row(case.id, m.metric, m.stage, None, m.value, "", reason) for m in measured]
    return rows or [Row(case.id, "", -1, None, None, "", reason)]


def _reason(error: InputError) -> str:
    return "; ".join(str(problem) for problem in error.problems)


def _weight(case: Case) -> float:
    """Guess how long a case takes: by the steps of its server, about one for each answer token."""
    client = case.client
    if case.refusals or client is None:
        return 0.0
    if isinstance(client, ClosedLoop):
        return float(client.rounds * client.output_tokens)
    if isinstance(client, OpenLoop):
        return 100 * sum(stage.duration_s for stage in client.stages)
    return float(client.trace.stat().st_size)
