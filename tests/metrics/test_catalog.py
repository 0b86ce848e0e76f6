import runpy
from pathlib import Path

import pytest

from kvsim.metrics.catalog import METRICS, SHARE_METRICS, format_figure, metric_of, percent

ROOT = Path(__file__).parents[2]


def test_names_are_unique_and_every_entry_is_complete():
    entries = [*METRICS.values(), *SHARE_METRICS.values()]
    assert len({entry.name for entry in entries}) == len(entries)
    assert len({entry.label for entry in entries}) == len(entries)
    assert all(entry.unit and entry.formula and entry.description for entry in entries)
    for name, metric in METRICS.items():
        assert metric_of(name) == metric


def test_units_stand_in_the_names():
    for name, metric in METRICS.items():
        assert name.endswith("_per_s") == metric.unit.endswith("/s"), name
        assert (name.endswith("_s") and not name.endswith("_per_s")) == (metric.unit == "s"), name
        assert name.endswith("_bytes") == (metric.unit == "bytes"), name


def test_a_percentile_that_is_not_listed_is_described():
    metric = metric_of("itl_p99.9_s")
    assert metric.label == "ITL p99.9"
    assert "99.9" in metric.formula
    with pytest.raises(KeyError):
        metric_of("itl_p99")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ttft_p99_s", None, "–"),
        ("ttft_p99_s", 0.0123, "12.3 ms"),
        ("kv_utilization_mean", 0.9375, "93.8 %"),
        ("kv_capacity_bytes", 2.0 * 1024**3, "2.00 GiB"),
        ("requests_total", 19366, "19,366 requests"),
        ("output_tokens_per_s", 12345.6, "12,346 tokens/s"),
        ("requests_per_s", 5.4321, "5.43 requests/s"),
        ("usd_per_hour", 1234.5, "$1,234.50/h"),
        ("usd_per_million_output_tokens", 0.4567, "$0.46"),
    ],
)
def test_figures_with_their_units(name, value, text):
    assert format_figure(name, value) == text


def test_the_page_of_definitions_is_the_catalog():
    tool = runpy.run_path(str(ROOT / "tools" / "write_metrics_doc.py"))
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == tool["render"](), "run tools/write_metrics_doc.py"
    latencies = {name for name in METRICS if name.rsplit("_", 2)[0] in tool["LATENCIES"]}
    for name in METRICS.keys() - latencies | SHARE_METRICS.keys():
        assert f"| `{name}` |" in page


def test_numbers_beyond_reading_are_powers_of_ten():
    assert format_figure("usd_per_hour", 12345.678) == "$12,345.68/h"
    assert format_figure("usd_per_hour", 1e308) == "$1e+308/h"
    assert format_figure("requests_per_s", 2e20) == "2e+20 requests/s"
    assert format_figure("preemptions_total", 123456) == "123,456"


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.0, "0 %"),
        (0.974, "97.4 %"),
        (1e-5, "0.001 %"),
        (9e-6, "<0.001 %"),
        (1e-12, "<0.001 %"),
        (-0.25, "-25 %"),
    ],
)
def test_a_share_is_shown_in_percent_without_powers_of_ten(share, shown):
    assert percent(share) == shown
