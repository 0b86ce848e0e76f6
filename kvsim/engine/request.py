"""The life of one request inside the engine, and the part of it that policies may see."""

from typing import Protocol


class RequestView(Protocol):
    """What a policy may know of a request. The true length of its answer is not part of it."""

    @property
    def number(self) -> int:
        """Number in order of arrival, from 0."""
        ...

    @property
    def arrival_ns(self) -> int:
        """Arrival at the server."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Prompt length."""
        ...

    @property
    def max_tokens(self) -> int:
        """Longest answer allowed: the client's limit, or what the context length leaves."""
        ...

    @property
    def generated_tokens(self) -> int:
        """Tokens generated so far."""
        ...
