"""Prometheus' own parser reads what is written, and it is what the tables hold."""

import io
import math
import re
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kvsim.export.openmetrics import Sampling, about_bytes, write_openmetrics
from kvsim.export.span import cut_ns, end_ns, engines_of
from kvsim.export.vllm_metrics import request_tokens
from kvsim.metrics.gaps import event_gaps, step_gaps
from kvsim.tables import EVENT_KINDS, OUTCOMES
from tests.export.conftest import HOSTILE

S = 10**9
AT_THE_END = Sampling()
FINISHED = OUTCOMES.index("finished")


def text_of(run, variants=("base",), sampling=AT_THE_END):
    file = io.StringIO()
    lines = write_openmetrics(run, file, list(variants), sampling)
    assert file.getvalue().count("\n") == lines
    return file.getvalue()


KNOWN = {}


def families_of(run, variant="base"):
    """Return the metrics at the end of a run, as Prometheus' parser reads them."""
    key = run.folder, variant
    if key not in KNOWN:
        KNOWN[key] = families(text_of(run, [variant]))
    return KNOWN[key]


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def values_of(text, name):
    """Return the values of a series by engine."""
    line = re.compile(rf'{name}{{.*engine="(\d+)".*}} (\S+)')
    return {int(engine): float(value) for engine, value in line.findall(text)}


def by_stamp(text):
    """Split sampled text into one text for each instant: the parser knows but one at a time."""
    heads, rows = [], defaultdict(list)
    for line in text.splitlines():
        if line.startswith("#"):
            heads.append(line)
            for those in rows.values():
                those.append(line)
            continue
        body, _, stamp = line.rpartition(" ")
        if stamp not in rows:
            rows[stamp] = list(heads)
        rows[stamp].append(body)
    return {float(stamp): "\n".join(those) + "\n" for stamp, those in rows.items()}


def totals(families_, name):
    """Return the values of all series of a family, by name and labels."""
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for s in families_[name].samples}


def summed(found, name, suffix):
    return sum(s.value for s in found[name].samples if s.name == name + suffix)


def test_prometheus_reads_it(run):
    found = families(text_of(run, run.summaries))
    assert len(found) == 24
    kinds = {family.type for family in found.values()}
    assert kinds == {"info", "gauge", "counter", "histogram"}
    engines = {s.labels["engine"] for s in found["vllm:prompt_tokens"].samples}
    assert engines == {str(engine) for engine in range(engines_of(run, "base"))}


@pytest.mark.parametrize("variant", ["base", "contiguous", "swapping"])
@pytest.mark.parametrize("which", ["eventful", "cut"])
def test_totals_are_those_of_the_tables(request, which, variant):
    run = request.getfixturevalue(which)
    found = families_of(run, variant)
    requests = run.tables[variant]["requests"]
    figures = run.summaries[variant]["figures"]
    finished = requests["outcome"] == FINISHED
    begun = requests["first_token_ns"] >= 0
    admitted = requests["admitted_ns"] >= 0
    ttft_ns = (requests["first_token_ns"] - requests["arrival_ns"])[begun]
    e2e_ns = (requests["finish_ns"] - requests["arrival_ns"])[finished]
    name = "vllm:time_to_first_token_seconds"
    assert summed(found, name, "_count") == begun.sum()
    assert summed(found, name, "_sum") == pytest.approx(ttft_ns.sum() / S, rel=1e-12)
    name = "vllm:e2e_request_latency_seconds"
    assert summed(found, name, "_count") == finished.sum()
    assert summed(found, name, "_sum") == pytest.approx(e2e_ns.sum() / S, rel=1e-12)
    generated = summed(found, "vllm:generation_tokens", "_total")
    given_up = (requests["outcome"] == OUTCOMES.index("timed_out")).sum()
    in_vain = generated - requests["output_tokens"].sum()  # in flight when the client gave up
    assert 0 <= in_vain <= (2 * given_up if which == "eventful" else 0)
    prompts = requests["prompt_tokens"]
    assert summed(found, "vllm:prompt_tokens", "_total") == prompts[begun].sum()
    queries = summed(found, "vllm:prefix_cache_queries", "_total")
    hits = summed(found, "vllm:prefix_cache_hits", "_total")
    assert queries == prompts[admitted].sum()
    assert hits / queries == pytest.approx(figures["prefix_hit_fraction"])
    assert summed(found, "vllm:num_preemptions", "_total") == figures["preemptions_total"]
    itl = "vllm:inter_token_latency_seconds"
    mean_s = summed(found, itl, "_sum") / summed(found, itl, "_count")
    assert mean_s == pytest.approx(figures["itl_mean_s"], rel=1e-12)
    older = totals(found, "vllm:time_per_output_token_seconds").values()
    assert sorted(older) == sorted(totals(found, itl).values())


@pytest.mark.parametrize("which", ["eventful", "cut", "quiet"])
def test_requests_end_for_a_reason(request, which):
    run = request.getfixturevalue(which)
    requests = run.tables["base"]["requests"]
    reasons = defaultdict(int)
    for sample in families_of(run)["vllm:request_success"].samples:
        reasons[sample.labels["finished_reason"]] += sample.value
    finished = requests["outcome"] == FINISHED
    full = requests["output_tokens"] == requests["max_tokens"]
    served = requests["replica"] >= 0
    assert reasons == {
        "stop": (finished & ~full).sum(),
        "length": (finished & full).sum(),
        "abort": ((requests["outcome"] == OUTCOMES.index("timed_out")) & served).sum(),
    }
    assert which != "eventful" or reasons["stop"] * reasons["length"] > 0


def naive(values, bounds):
    """Count one by one what a histogram counts."""
    return [sum(value <= bound for value in values) for bound in [*bounds, math.inf]]


@pytest.mark.parametrize(
    ("name", "values_of_row"),
    [
        ("vllm:request_queue_time_seconds", lambda r: (r["admitted_ns"] - r["queued_ns"]) / S),
        ("vllm:request_decode_time_seconds", lambda r: (r["finish_ns"] - r["first_token_ns"]) / S),
        (
            "vllm:request_prefill_time_seconds",
            lambda r: (r["first_token_ns"] - r["admitted_ns"]) / S,
        ),
        ("vllm:request_inference_time_seconds", lambda r: (r["finish_ns"] - r["admitted_ns"]) / S),
        (
            "vllm:request_time_per_output_token_seconds",
            lambda r: (
                (r["finish_ns"] - r["first_token_ns"])
                / S
                / np.maximum(r["output_tokens"] - 1, 1)
                * (r["output_tokens"] > 1)
            ),
        ),
        ("vllm:request_prompt_tokens", lambda r: r["prompt_tokens"]),
        ("vllm:request_generation_tokens", lambda r: r["output_tokens"]),
        ("vllm:request_params_max_tokens", lambda r: r["max_tokens"]),
        (
            "vllm:request_prefill_kv_computed_tokens",
            lambda r: r["prompt_tokens"] - r["cached_tokens"],
        ),
    ],
)
def test_buckets_count_what_is_no_larger(eventful, name, values_of_row):
    requests = eventful.tables["base"]["requests"]
    finished = requests["outcome"] == FINISHED
    values, engines = values_of_row(requests), requests["replica"]
    by_engine = defaultdict(dict)
    for sample in families_of(eventful)[name].samples:
        if sample.name == f"{name}_bucket":
            by_engine[int(sample.labels["engine"])][float(sample.labels["le"])] = sample.value
    assert set(by_engine) == {0, 1}
    for engine, buckets in by_engine.items():
        mine = values[finished & (engines == engine)].tolist()
        *bounds, last = sorted(buckets)
        assert last == math.inf
        assert [buckets[bound] for bound in sorted(buckets)] == naive(mine, bounds)


@pytest.mark.parametrize("variant", ["base", "swapping"])
def test_gaps_between_tokens_are_counted_one_by_one(eventful, variant):
    tables = eventful.tables[variant]
    gaps = []
    for of, table in ((step_gaps, "steps"), (event_gaps, "events")):
        for gap_ns, count in zip(*of(tables[table], 0), strict=True):
            gaps += [gap_ns / S] * count
    name = "vllm:inter_token_latency_seconds"
    counts = defaultdict(int)
    for sample in families_of(eventful, variant)[name].samples:
        if sample.name == f"{name}_bucket":
            counts[float(sample.labels["le"])] += sample.value
    *bounds, _ = sorted(counts)
    assert [counts[bound] for bound in sorted(counts)] == naive(gaps, bounds)


@pytest.mark.parametrize("which", ["eventful", "cut"])
def test_steps_are_counted_by_their_tokens(request, which):
    run = request.getfixturevalue(which)
    steps, cut = run.tables["base"]["steps"], cut_ns(run, "base")
    tokens = steps["prefill_tokens"] + steps["decode_seqs"]
    done = steps["start_ns"] + steps["duration_ns"] < (cut or 2**62)
    found = families_of(run)
    assert summed(found, "vllm:iteration_tokens_total", "_sum") == tokens[done].sum()
    assert summed(found, "vllm:iteration_tokens_total", "_count") == done.sum()
    assert (which == "cut") == (not done.all())


@pytest.mark.parametrize("variant", ["base", "swapping"])
def test_samples_grow_to_the_totals(eventful, variant):
    """Counters and histograms never fall, and end where the run ends."""
    samples = by_stamp(text_of(eventful, [variant], Sampling(4 * S, 1_700_000_000 * S)))
    stamps = list(samples)
    last_s = end_ns(eventful, variant) / S
    assert stamps == [1_700_000_000 + 4 * place for place in range(math.ceil(last_s / 4) + 1)]
    final = families_of(eventful, variant)
    before = {}
    for text in samples.values():
        found = families(text)
        assert found.keys() == final.keys()
        for name, family in found.items():
            now = totals(found, name)
            if family.type in {"counter", "histogram"}:
                assert all(value >= before.get(key, 0) for key, value in now.items())
            before |= now
    for name, family in final.items():
        if family.type != "gauge":
            assert totals(found, name) == totals(final, name)
    assert values_of(samples[stamps[0]], "vllm:prompt_tokens_total") == {0: 0, 1: 0}


@pytest.mark.parametrize("which", ["eventful", "cut", "quiet"])
def test_a_sample_is_the_state_of_its_instant(request, which):
    """Against a look at every row."""
    run = request.getfixturevalue(which)
    tables, every_ns = run.tables["base"], 700_000_000
    steps, requests = tables["steps"], tables["requests"]
    samples = by_stamp(text_of(run, sampling=Sampling(every_ns)))
    some = list(samples.items())[:: max(1, len(samples) // 5)]
    names = [name for name in steps if name.startswith("kv_")]
    for at_s, text in some:
        at_ns = round(at_s * S)
        running = values_of(text, "vllm:num_requests_running")
        waiting = values_of(text, "vllm:num_requests_waiting")
        usage = values_of(text, "vllm:kv_cache_usage_perc")
        tokens = values_of(text, "vllm:prompt_tokens_total")
        lost = values_of(text, "vllm:num_preemptions_total")
        events = tables["events"]
        gone = np.isin(
            events["event"], [EVENT_KINDS.index("preempted"), EVENT_KINDS.index("swapped_out")]
        )
        for engine in range(engines_of(run, "base")):
            begun = (requests["first_token_ns"] >= 0) & (requests["first_token_ns"] <= at_ns)
            begun &= requests["replica"] == engine
            assert tokens[engine] == requests["prompt_tokens"][begun].sum()
            mine = (events["replica"] == engine) & (events["time_ns"] <= at_ns)
            assert lost[engine] == (gone & mine).sum()
            on = (steps["replica"] == engine) & (steps["start_ns"] <= at_ns)
            on &= steps["start_ns"] + steps["duration_ns"] > at_ns
            (row,) = np.flatnonzero(on).tolist() or [None]
            if row is None:
                assert (running[engine], waiting[engine], usage[engine]) == (0, 0, 0)
                continue
            assert running[engine] == steps["running_seqs"][row]
            assert waiting[engine] == steps["waiting_seqs"][row]
            owned = sum(steps[f"kv_{part}_tokens"][row] for part in ("held", "to_come", "inside"))
            assert usage[engine] == pytest.approx(owned / sum(steps[name][row] for name in names))


def test_lines_stand_as_the_format_asks_for(eventful):
    """Metrics are not mixed, nor their series; times of a series rise."""
    text = text_of(eventful, eventful.summaries, Sampling(2 * S))
    series, done, family, before = None, set(), "", -1.0
    for line in text.splitlines()[:-1]:
        if line.startswith("# TYPE "):
            family = line.split()[2]
            assert family not in done
            done.add(family)
            series = None
        if line.startswith("#"):
            continue
        assert line.startswith(family)
        body, _, stamp = line.rpartition(" ")
        labels = body[body.index("{") : body.index("}")].split(",le=")[0]
        if labels != series:
            assert (family, labels) not in done
            done.add((family, labels))
            series, before = labels, -1.0
        assert float(stamp) >= before
        before = float(stamp)
    assert text.endswith("# EOF\n")


def test_names_are_escaped(hostile):
    samples = families(text_of(hostile, hostile.summaries))["vllm:prompt_tokens"].samples
    assert {s.labels["kvsim_variant"] for s in samples} == {HOSTILE, "other"}
    assert {s.labels["model_name"] for s in samples} == {HOSTILE}


def test_parts_of_a_second_are_exact(quiet):
    text = text_of(quiet, sampling=Sampling(S // 4, S + 1))
    stamps = [line.rpartition(" ")[2] for line in text.splitlines() if "running{" in line]
    assert stamps[:3] == ["1.000000001", "1.250000001", "1.500000001"]


def test_nothing_happened(quiet):
    """A run without a request, or without a step."""
    tables = quiet.tables["base"]
    empty = {
        name: {column: np.zeros(0, dtype=np.int64) for column in table}
        for name, table in tables.items()
    }
    found = families(text_of(replace(quiet, tables={"base": empty})))
    assert all(s.value == 0 for s in found["vllm:generation_tokens"].samples)
    assert summed(found, "vllm:time_to_first_token_seconds", "_count") == 0


def test_the_size_is_known_before(run):
    for sampling in (Sampling(), Sampling(S)):
        size = len(text_of(run, run.summaries, sampling).encode())
        assert 0.8 * size < about_bytes(run, run.summaries, sampling) < 1.4 * size


def test_the_buckets_of_lengths_end_with_the_longest():
    assert request_tokens(2048) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert request_tokens(1) == (1,)
