"""A run as metrics of vLLM in the OpenMetrics text format: its end, or samples over time.

Format: OpenMetrics 1.0, https://prometheus.io/docs/specs/om/open_metrics_spec/
With timestamps, `promtool tsdb create-blocks-from openmetrics` makes blocks for Prometheus of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from kvsim.export import scrapes
from kvsim.export.scrapes import Totals
from kvsim.export.span import Ints, cut_ns, end_ns, engines_of
from kvsim.export.vllm_metrics import (
    COUNTERS,
    FIRST_TOKENS,
    HISTOGRAMS,
    STEP_TOKENS,
    TOKEN_S,
    RequestMetric,
    request_tokens,
)
from kvsim.rundir.read import Run
from kvsim.units import NS_PER_S

_LINE_BYTES = 150  # with labels of usual length, about
_CACHE_CONFIG = (
    *("block_size", "num_gpu_blocks", "gpu_memory_utilization", "enable_prefix_caching"),
    *("kv_cache_dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens"),
)


@dataclass(frozen=True, slots=True)
class Sampling:
    """When metrics are read.

    Attributes:
        every_ns: Distance of the samples, the first at 0; None: once, when the run has ended.
        start_ns: Time of day at which the run starts, since 1970.
    """

    every_ns: int | None = None
    start_ns: int = 0

    def at_ns(self, end_ns: int) -> Ints:
        """Return the instants; the last is no earlier than the end of the run."""
        if self.every_ns is None:
            return np.array([end_ns])
        return np.arange(-(-end_ns // self.every_ns) + 1, dtype=np.int64) * self.every_ns

    def stamps(self, at_ns: Ints) -> list[str]:
        """Return what follows the value in the line of each instant."""
        if self.every_ns is None:
            return [""]
        return [f" {_in_seconds(self.start_ns + ns)}" for ns in at_ns.tolist()]


def about_bytes(run: Run, variants: Sequence[str], sampling: Sampling) -> int:
    """Return about how large the text becomes."""
    lines = 0
    for variant in variants:
        samples = -(-end_ns(run, variant) // sampling.every_ns) + 1 if sampling.every_ns else 1
        lines += samples * engines_of(run, variant) * _lines_of_a_sample(run, variant)
    return lines * _LINE_BYTES


def _lines_of_a_sample(run: Run, variant: str) -> int:
    lengths = len(request_tokens(run.manifest["variants"][variant]["engine"]["max_model_len"]))
    buckets = [len(metric.buckets) or lengths for metric in HISTOGRAMS]
    buckets += [len(TOKEN_S), len(TOKEN_S), len(STEP_TOKENS)]
    return sum(count + 3 for count in buckets) + len(COUNTERS) + 5


def write_openmetrics(run: Run, file: IO[str], variants: Sequence[str], sampling: Sampling) -> int:
    """Write the metrics of some variants; return the number of lines.

    The lines of a metric stand together, those of a series in the order of time, as the format
    asks for.
    """
    servers = [_Server(run, variant, sampling) for variant in variants]
    count = 0
    for line in _lines(servers):
        file.write(line + "\n")
        count += 1
    return count


def _lines(servers: Sequence["_Server"]) -> Iterator[str]:
    told = ""
    for name, kind, about, lines_of in _families():
        if name != told:  # those with several labels are one family
            yield f"# HELP {name} {about}"
            yield f"# TYPE {name} {kind}"
        told = name
        for server in servers:
            yield from lines_of(server)
    yield "# EOF"


_Family = tuple[str, str, str, Callable[["_Server"], Iterator[str]]]


def _families() -> Iterator[_Family]:
    """Yield name, type and help text of all metrics, and what writes the lines of a server."""
    name = "vllm:cache_config"
    yield name, "info", "Settings of the KV cache and the scheduler.", _Server.cache_config
    for name, about, level in (
        ("vllm:num_requests_running", "Requests admitted.", "running"),
        ("vllm:num_requests_waiting", "Requests in the queue.", "waiting"),
        ("vllm:kv_cache_usage_perc", "Share of the KV cache that requests own.", "usage"),
    ):
        yield name, "gauge", about, partial(_Server.gauge, name=name, level=level)
    for metric in COUNTERS:
        yield metric.name, "counter", metric.help, partial(_Server.request_counter, metric=metric)
    name = "vllm:num_preemptions"
    yield name, "counter", "How often a request lost its KV cache.", _Server.preemptions
    name = "vllm:generation_tokens"
    yield name, "counter", "Tokens generated.", _Server.generated_tokens
    for metric in HISTOGRAMS:
        write = partial(_Server.request_histogram, metric=metric)
        yield metric.name, "histogram", metric.help, write
    for name, about in (
        ("vllm:inter_token_latency_seconds", "Seconds between two tokens of a request."),
        ("vllm:time_per_output_token_seconds", "As inter_token_latency_seconds, its older name."),
    ):
        yield name, "histogram", about, partial(_Server.token_gaps, name=name)
    name = "vllm:iteration_tokens_total"
    about = "Tokens computed in an engine step."
    yield name, "histogram", about, _Server.step_tokens


class _Server:
    """One variant: its engines, read at some instants, as lines of text."""

    def __init__(self, run: Run, variant: str, sampling: Sampling) -> None:
        self._tables = run.tables[variant]
        self._about: Mapping[str, Any] = run.manifest["variants"][variant]
        self._engines = engines_of(run, variant)
        self._cut_ns = cut_ns(run, variant)
        self._at_ns = sampling.at_ns(end_ns(run, variant))
        self._stamps = sampling.stamps(self._at_ns)
        self._labels = [
            _labels(model_name=self._about["model"]["name"], engine=engine, kvsim_variant=variant)
            for engine in range(self._engines)
        ]

    def _totals(self, buckets: Sequence[float] = (), unit: int = 1) -> Totals:
        bounds = np.array([round(bound * unit) for bound in buckets], dtype=np.int64)
        return Totals(self._engines, self._at_ns, bounds)

    @cached_property
    def _levels(self) -> Mapping[str, NDArray[np.float64]]:
        return scrapes.levels(self._tables["steps"], self._engines, self._at_ns)

    @cached_property
    def _gaps(self) -> Totals:
        totals = self._totals(TOKEN_S, NS_PER_S)
        return scrapes.token_gaps(
            self._tables["steps"], self._tables["events"], self._cut_ns, totals
        )

    def _of_requests(self, metric: RequestMetric, totals: Totals) -> Totals:
        totals.add(*metric.observed(self._tables["requests"]))
        return totals.done()

    # Lines

    def cache_config(self) -> Iterator[str]:
        """Yield the settings, as labels."""
        settings = {name: self._about["engine"][name] for name in _CACHE_CONFIG}
        labels = _labels(**settings)
        ones = np.ones((self._engines, len(self._at_ns)), dtype=np.int64)
        yield from self._series("vllm:cache_config_info", ones, f",{labels}")

    def gauge(self, name: str, level: str) -> Iterator[str]:
        """Yield what holds at each instant."""
        yield from self._series(name, self._levels[level])

    def request_counter(self, metric: RequestMetric) -> Iterator[str]:
        """Yield what requests add up to."""
        sums = self._of_requests(metric, self._totals()).sums
        labels = "".join(f",{_labels(**{key: value})}" for key, value in metric.labels)
        yield from self._series(f"{metric.name}_total", sums, labels)

    def preemptions(self) -> Iterator[str]:
        """Yield how often a sequence lost its KV cache."""
        sums = scrapes.preemptions(self._tables["events"], self._totals()).sums
        yield from self._series("vllm:num_preemptions_total", sums)

    def generated_tokens(self) -> Iterator[str]:
        """Yield how many tokens came: first tokens, and one after each gap."""
        firsts = self._of_requests(FIRST_TOKENS, self._totals()).sums
        yield from self._series(
            "vllm:generation_tokens_total", firsts + self._gaps.counts[:, :, -1]
        )

    def request_histogram(self, metric: RequestMetric) -> Iterator[str]:
        """Yield the histogram of a latency, or of a length."""
        unit = NS_PER_S if metric.buckets else 1
        buckets = metric.buckets or request_tokens(self._about["engine"]["max_model_len"])
        totals = self._of_requests(metric, self._totals(buckets, unit))
        yield from self._histogram(metric.name, buckets, totals, unit)

    def token_gaps(self, name: str) -> Iterator[str]:
        """Yield the histogram of the gaps between tokens."""
        yield from self._histogram(name, TOKEN_S, self._gaps, NS_PER_S)

    def step_tokens(self) -> Iterator[str]:
        """Yield the histogram of the tokens of a step."""
        totals = scrapes.step_tokens(self._tables["steps"], self._cut_ns, self._totals(STEP_TOKENS))
        yield from self._histogram("vllm:iteration_tokens_total", STEP_TOKENS, totals, 1)

    def _series(self, name: str, values: NDArray[Any], more: str = "") -> Iterator[str]:
        """Yield a line for each engine and instant."""
        for labels, row in zip(self._labels, values.tolist(), strict=True):
            series = f"{name}{{{labels}{more}}}"
            for value, stamp in zip(row, self._stamps, strict=True):
                yield f"{series} {value}{stamp}"

    def _histogram(
        self, name: str, buckets: Sequence[float], totals: Totals, unit: int
    ) -> Iterator[str]:
        ends = [*(str(float(bound)) for bound in buckets), "+Inf"]
        for engine, labels in enumerate(self._labels):
            series = [f'{name}_bucket{{{labels},le="{end}"}}' for end in ends]
            counts, sums = totals.counts[engine].tolist(), totals.sums[engine].tolist()
            for row, total, stamp in zip(counts, sums, self._stamps, strict=True):
                for bucket, count in zip(series, row, strict=True):
                    yield f"{bucket} {count}{stamp}"
                yield f"{name}_count{{{labels}}} {row[-1]}{stamp}"
                shown = _in_seconds(total) if unit == NS_PER_S else f"{total}"
                yield f"{name}_sum{{{labels}}} {shown}{stamp}"


def _labels(**values: Any) -> str:
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in values.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _in_seconds(ns: int) -> str:
    """Show nanoseconds as seconds, exactly."""
    whole, rest = divmod(ns, NS_PER_S)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")
