"""Requests as the engine sees them, out of the rows of the request table."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.content import Paths
from kvsim.engine.request import Request
from kvsim.workload.requests import NO_LIMIT, RequestTable


class RequestReader:
    """Makes the engine's requests out of rows of the request table."""

    def __init__(self, requests: RequestTable, max_model_len: int, with_contents: bool) -> None:
        self._segments = requests.segments
        self._max_model_len = max_model_len
        self._paths = Paths() if with_contents else None
        columns = (requests.prompt_tokens, requests.output_tokens, requests.max_tokens)
        self._prompt, self._output, self._limit = map(as_view, columns)
        self._group = as_view(requests.group)
        self._session = self._group if requests.session is None else as_view(requests.session)
        self._priority = None if requests.priority is None else as_view(requests.priority)
        self._beams, self._prefix_tokens = requests.beams, requests.prefix_tokens
        self._class = None if requests.traffic_class is None else as_view(requests.traffic_class)

    def read(self, row: int, number: int, arrival_ns: int) -> tuple[Request, int]:
        """Return the request of a row, and the true length of its answer.

        `max_tokens` is the client's limit, or what the context length leaves; the answer ends
        there. The length is looked at when a token has come, so one comes in any case (R34).
        """
        prompt_tokens, limit, group = self._prompt[row], self._limit[row], self._group[row]
        room = max(1, self._max_model_len - prompt_tokens)
        max_tokens = room if limit == NO_LIMIT else min(limit, room)
        content = None
        if self._paths is not None:
            content = (
                self._paths.chain(*self._segments.of(row))
                if self._segments
                else self._paths.unique(group, number, prompt_tokens)
            )
        priority = self._priority[row] if self._priority else 0
        session = self._session[row]
        request = Request(
            number, group, arrival_ns, prompt_tokens, max_tokens, content, session, priority
        )
        if self._class:
            request.traffic_class = self._class[row]
        if self._beams:
            request.parents = self._beams.of(group)
        if self._prefix_tokens is not None and self._segments is not None:
            request.prefix = int(self._segments.seed[self._segments.first[row]])
            request.prefix_tokens = int(self._prefix_tokens[row])
        return request, min(self._output[row], max_tokens)


def as_view(column: NDArray[np.int64]) -> Sequence[int]:
    """Return a column whose items are Python's integers, at half the cost of numpy's scalars."""
    return np.ascontiguousarray(column).data
