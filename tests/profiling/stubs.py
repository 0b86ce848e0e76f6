"""A device without torch: a clock that CUDA events read, graphs that advance it."""

from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace

from kvsim.profiling.device import Device


class FakeCuda:
    """The part of `torch.cuda` that timing uses. A call advances the clock if it runs at once."""

    def __init__(self, slowness: Callable[[int], float] = lambda replay: 1.0) -> None:
        self.now_us = 0.0
        self.slowness = slowness  # of a replay, by its number
        self.replays = 0
        self.capturing: list[float] | None = None
        self.calls_before_capture = 0
        self.captured: list[list[float]] = []
        self.synchronized = True

    def spend(self, us: float) -> None:
        if self.capturing is None:
            self.now_us += us
            self.calls_before_capture += not self.captured
        else:
            self.capturing.append(us)

    def CUDAGraph(self):  # noqa: N802, as torch names it
        return FakeGraph(self)

    @contextmanager
    def graph(self, graph, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self.capturing = graph.us
        yield
        self.capturing = None
        self.captured.append(graph.us)

    def Stream(self):  # noqa: N802
        return SimpleNamespace(wait_stream=lambda other: None)

    current_stream = Stream

    @contextmanager
    def stream(self, stream):
        yield

    def Event(self, enable_timing):  # noqa: N802
        assert enable_timing
        return FakeEvent(self)


class FakeGraph:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.us = cuda, []

    def replay(self) -> None:
        self.cuda.now_us += sum(self.us) * self.cuda.slowness(self.cuda.replays)
        self.cuda.replays += 1


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.at_us, self.reached = cuda, 0.0, False

    def record(self) -> None:
        self.at_us = self.cuda.now_us

    def synchronize(self) -> None:
        self.reached = True

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert end.reached, "the time is read before the GPU has come to the event"
        return (end.at_us - self.at_us) / 1e3


class AcceleratorError(RuntimeError):
    """As torch names a CUDA error."""


def fake_device(**changes) -> Device:
    torch = SimpleNamespace(__version__="2.13.0", AcceleratorError=AcceleratorError)
    torch.cuda = SimpleNamespace(empty_cache=lambda: None)
    values = {
        "torch": torch, "kind": "cuda", "name": "my_gpu", "full_name": "My GPU", "timer": None,
        "cache_bytes": 50_000_000, "usable_bytes": 10**12, "has_fp8": True, "num_gpus": 8,
    }  # fmt: skip
    return Device(**values | changes)
