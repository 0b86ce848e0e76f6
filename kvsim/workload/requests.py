"""The request table: what the clients send, drawn once and shown to every variant alike."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NO_LIMIT = 0  # `max_tokens` of a request whose client set none: the context length decides


@dataclass(frozen=True, slots=True)
class Segments:
    """What prompts consist of: runs of tokens, told by a seed; equal seeds have equal tokens.

    Request i has the segments from `first[i]` up to `first[i + 1]`; `seed` and `tokens` have one
    entry a segment, and `answer_seed` one a request. All arrays are int64. A prompt that repeats
    an earlier prompt and its answer repeats those segments, then (answer seed, answer length).
    """

    first: NDArray[np.int64]
    seed: NDArray[np.int64]
    tokens: NDArray[np.int64]
    answer_seed: NDArray[np.int64]

    def of(self, request: int) -> tuple[list[tuple[int, int]], int]:
        """Return the segments (seed, tokens) of a prompt, and the seed of its answer."""
        mine = slice(int(self.first[request]), int(self.first[request + 1]))
        pairs = zip(self.seed[mine].tolist(), self.tokens[mine].tolist(), strict=True)
        return list(pairs), int(self.answer_seed[request])


@dataclass(frozen=True, slots=True)
class RequestTable:
    """One row a request, in order of arrival (ties in order of the client).

    All arrays are int64 of the same length. `arrival_ns` counts from the start of the run and
    never decreases. `output_tokens` is the true length of the answer: the engine's model knows
    it, policies do not. `group` numbers the client's requests: with n samples a request has n
    rows of the same group. Arrivals stop at `horizon_ns`.
    """

    arrival_ns: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    max_tokens: NDArray[np.int64]
    group: NDArray[np.int64]
    horizon_ns: int
    segments: Segments | None = None  # None: only the samples of a group share their prompt

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def digest(self) -> str:
        """Return a SHA-256 over all columns, for the manifest: same digest, same requests."""
        total = hashlib.sha256(str(self.horizon_ns).encode())
        for name in ("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens", "group"):
            total.update(np.ascontiguousarray(getattr(self, name), dtype="<i8").tobytes())
        if self.segments is not None:
            for name in ("first", "seed", "tokens", "answer_seed"):
                column = getattr(self.segments, name)
                total.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        return total.hexdigest()
