"""The requests of a run as they were sent: a table that repeats the run by arrival times alone."""

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.requests import RequestTable, Segments, sums_before

Ints = NDArray[np.int64]


def as_sent(
    requests: RequestTable, numbers: Ints, arrival_ns: Ints, retried_rows: Ints
) -> RequestTable:
    """Return what reached the servers in a run, in order of arrival.

    Further turns, retries and waits at a gate become plain arrivals. Timeouts and priorities are
    left to the scenario.

    Args:
        requests: What the clients had drawn.
        numbers: Numbers of the requests that were sent, as in the requests table of the run.
        arrival_ns: When each of them was.
        retried_rows: Rows of `requests` that the numbers beyond its last row stand for.
    """
    order, row = order_sent(requests, numbers, arrival_ns, retried_rows)
    retried, arrival_ns = (numbers >= len(requests))[order], arrival_ns[order]
    group = requests.group[row]
    changes = (np.diff(group) != 0) | (np.diff(retried) != 0) | (np.diff(arrival_ns) != 0)
    segments = requests.segments
    if segments is None and len(retried_rows):
        segments = _of_groups(requests)
    return RequestTable(
        arrival_ns=arrival_ns,
        prompt_tokens=requests.prompt_tokens[row],
        output_tokens=requests.output_tokens[row],
        max_tokens=requests.max_tokens[row],
        group=sums_before(changes),
        horizon_ns=requests.horizon_ns,
        segments=None if segments is None else segments.take(row),
        session=None if requests.session is None else requests.session[row],
    )


def order_sent(
    requests: RequestTable, numbers: Ints, arrival_ns: Ints, retried_rows: Ints
) -> tuple[Ints, Ints]:
    """Return the places of requests in the order in which they were sent, and then their rows."""
    row = np.concatenate([np.arange(len(requests)), retried_rows])[numbers]
    order = np.lexsort((numbers, requests.group[row], numbers >= len(requests), arrival_ns))
    return order, row[order]


def _of_groups(requests: RequestTable) -> Segments:
    """Return contents in which a retry sends the same prompt as the attempt before."""
    rows = np.arange(len(requests) + 1, dtype=np.int64)
    return Segments(rows, requests.group, requests.prompt_tokens, len(requests) + rows[:-1])
