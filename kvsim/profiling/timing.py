"""How long a kernel takes: medians after warm-up, on a GPU by events around a replayed graph."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

Call = Callable[[], object]

WARMUPS, RUNS = 3, 7
MIN_CALLS = 8  # in a graph, so that its launch weighs little
SAMPLE_MS = 2.0  # what a sample lasts at least: events resolve half a microsecond
MAX_REPLAYS = 64
MAX_COPIES = 1024  # of an operand: a graph's nodes


class Timer(Protocol):
    """Takes the time of calls."""

    def median_us(self, calls: Sequence[Call]) -> float:
        """Return the median over runs of the mean time of a call, in µs."""


@dataclass(frozen=True, slots=True)
class CudaTimer:
    """Captures the calls in one CUDA graph and replays it between two events.

    So neither Python nor the launch of single kernels counts, as in an engine with CUDA graphs.

    Attributes:
        torch: The module.
        replays: Of the graph in a sample; 0: as many as fill `SAMPLE_MS`. Collectives need a
            number that is the same on all ranks.
    """

    torch: Any
    replays: int = 0

    def median_us(self, calls: Sequence[Call]) -> float:
        """Return the median over runs of the mean time of a call, in µs."""
        cuda = self.torch.cuda
        repeated = [*calls] * math.ceil(MIN_CALLS / len(calls))
        self._warm_up(calls)
        graph = cuda.CUDAGraph()
        # Other threads, such as the watchdog of NCCL, go on as they like.
        with cuda.graph(graph, capture_error_mode="thread_local"):
            for call in repeated:
                call()
        for _ in range(WARMUPS):
            graph.replay()
        replays = self.replays or _filling(SAMPLE_MS, self._replayed_ms(graph, 1))
        samples = [self._replayed_ms(graph, replays) for _ in range(RUNS)]
        return median(samples) * 1e3 / (replays * len(repeated))

    def _warm_up(self, calls: Sequence[Call]) -> None:
        """Run the calls once on a stream of their own, as capture wants it."""
        cuda = self.torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for call in calls:
                call()
        cuda.current_stream().wait_stream(stream)

    def _replayed_ms(self, graph: Any, replays: int) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))


@dataclass(frozen=True, slots=True)
class CpuTimer:
    """Calls in a loop by the clock of the process; for trying the format, not for prices."""

    clock_ns: Callable[[], int] = time.perf_counter_ns

    def median_us(self, calls: Sequence[Call]) -> float:
        """Return the median over runs of the mean time of a call, in µs."""
        for call in calls:
            call()
        samples = []
        for _ in range(RUNS):
            start_ns = self.clock_ns()
            for call in calls:
                call()
            samples.append(self.clock_ns() - start_ns)
        return median(samples) / 1e3 / len(calls)


def cold_copies(operand_bytes: int, cache_bytes: int) -> int:
    """Return how many copies of an operand to go through so that none is found in the cache.

    Together they take twice the cache; so does a single operand that large, whose beginning is
    gone when its end has been read. Tiny operands stop at `MAX_COPIES`, and may stay warm.
    """
    return max(1, min(MAX_COPIES, math.ceil(2 * cache_bytes / operand_bytes)))


def _filling(sample_ms: float, once_ms: float) -> int:
    if once_ms <= 0:
        return MAX_REPLAYS
    return max(1, min(MAX_REPLAYS, math.ceil(sample_ms / once_ms)))
