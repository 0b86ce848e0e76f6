"""The chart of what a prefix cache finds, by its size."""

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics.catalog import percent
from kvsim.names import short_name
from kvsim.report.drawing import HEIGHT_PX, MOST_LABELS, line, log_axis, short_number, thinned
from kvsim.report.figure import Chart, Table, axis, layout, rounded
from kvsim.traffic.summary import Traffic
from kvsim.units import format_bytes

Ints = NDArray[np.int64]


def reuse_chart(traffic: Traffic, model: str, kv_bytes_per_token: int | None) -> Chart | None:
    """Show the hit rate against the size of the cache; None if the log knows no contents.

    With `kv_bytes_per_token` the axis also tells the size in bytes, for `model`.
    """
    reuse = traffic.reuse
    if reuse is None or not reuse.enough_tokens:
        return None
    sizes = np.unique(
        np.geomspace(reuse.block_tokens, 2 * reuse.enough_tokens, 160).astype(np.int64)
    )
    rates = rounded(100 * reuse.hit_rates(sizes), 3)
    title = (
        f"At most {percent(reuse.unbounded)} of the prompt tokens can be found, half of that with "
        f"{reuse.smallest_for(0.5):,} tokens of cache"
    )
    across = log_axis("cache size in tokens", sizes, 3 if kv_bytes_per_token else MOST_LABELS)
    across["ticktext"] = [
        "<br>".join([short_number(size), *_kv_cache(int(size), kv_bytes_per_token)])
        for size in across["tickvals"]
    ]
    of_model = f" Below the tokens: KV cache of {short_name(model)}." if kv_bytes_per_token else ""
    return Chart(
        key="chart-reuse",
        title=title,
        definition="Share of all prompt tokens that a prefix cache of this size finds: full "
        f"blocks of {reuse.block_tokens} tokens, the least recently used evicted first, requests "
        "one after another. Requests in flight together find less: they can't share what is still "
        f"being computed.{of_model}",
        alt=f"A rising curve over a logarithmic axis. {title}.",
        figure={
            "data": [
                line(sizes.tolist(), rates)
                | {"hovertemplate": "%{y:.3g} % with %{x:,} tokens<extra></extra>"}
            ],
            "layout": layout(
                HEIGHT_PX,
                xaxis=across,
                yaxis=axis("% of prompt tokens found", rangemode="tozero"),
            ),
        },
        table=_table(sizes, rates, kv_bytes_per_token),
    )


def _table(sizes: Ints, rates: list[float], kv_bytes_per_token: int | None) -> Table:
    rows = [
        [f"{size:,}", *_kv_cache(int(size), kv_bytes_per_token), f"{rate:.3g} %"]
        for size, rate in zip(sizes, rates, strict=True)
    ]
    head = ["Tokens", *(["KV cache"] if kv_bytes_per_token else []), "Found"]
    return Table(head, thinned(rows, 24))


def _kv_cache(tokens: int, kv_bytes_per_token: int | None) -> list[str]:
    return [format_bytes(tokens * kv_bytes_per_token)] if kv_bytes_per_token else []
