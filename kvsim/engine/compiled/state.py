"""The arrays of a fleet as a run begins: what is known of its requests, and empty engines."""

from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.compiled import layout
from kvsim.engine.compiled.layout import KNOWN, Ints, Replicas
from kvsim.engine.config import EngineConfig
from kvsim.engine.fleet import Fleet
from kvsim.engine.recorder import STEPS_IN_A_CHUNK
from kvsim.tables import EVENTS, HEAD_LACKS, STEPS
from kvsim.workload.requests import NO_LIMIT, RequestTable

LONGEST_STRETCH = 4096
FIRST_ROWS = 2 * STEPS_IN_A_CHUNK  # what stays untouched takes no memory


def pool_of(fleet: Fleet) -> PagedPool:
    """Return an empty KV cache of one replica, for its size."""
    pool = fleet.build_allocator(lambda _: 0)
    assert isinstance(pool, PagedPool), "it is a plain case"
    return pool


def replicas_of(fleet: Fleet, table: RequestTable, requests: Ints, pause_steps: int) -> Replicas:
    """Return replicas to which nobody has been sent yet.

    Args:
        fleet: They are all alike.
        table: What is sent.
        requests: What is known of it, see `known_requests`; the loop changes it.
        pause_steps: See `advance`.
    """
    config, most, replicas = fleet.config, fleet.config.running_seqs, fleet.replicas
    pool = pool_of(fleet)
    at = _zeros(replicas, layout.COUNTERS)
    at[:, layout.INDEX] = np.arange(replicas)
    at[:, layout.ACTS_NS] = layout.NEVER_NS
    at[:, [layout.HEAD, layout.LAST, layout.COMING]] = layout.NOBODY
    at[:, layout.FREE_BLOCKS] = pool.capacity_tokens // config.block_size
    return Replicas(
        limits=_limits(fleet, pool, pause_steps),
        rows=_zeros(4),
        arrival_ns=np.ascontiguousarray(table.arrival_ns),
        requests=requests,
        at=at,
        running=_zeros(replicas, most),
        end_ns=_zeros(replicas, 2),
        counts=_zeros(replicas, 2, 3),
        members=_zeros(replicas, 2, 3, most),
        due=_zeros(replicas, config.block_size),
        filled=_zeros(replicas, LONGEST_STRETCH),
        chunks=_zeros(most, 2),
        steps=_zeros(FIRST_ROWS, len(STEPS)),
        left=_zeros(4 * most, 3),
        events=_zeros(8 * most, len(EVENTS)),
    )


def known_requests(table: RequestTable, fleet: Fleet) -> Ints:
    """Return what is known of the requests before any is sent; shape (requests, KNOWN)."""
    prompt, max_tokens = table.prompt_tokens, _max_tokens(table, fleet.config)
    answer = np.minimum(table.output_tokens, max_tokens)
    fits = _fit(prompt, max_tokens, fleet)
    # The last token of an answer never gets a slot (R10), but where it is a surprise (R40).
    surprise = (answer < max_tokens) if fleet.config.async_scheduling else 0
    requests = _zeros(len(prompt), KNOWN)
    requests[:, layout.PROMPT], requests[:, layout.MAX_TOKENS] = prompt, max_tokens
    requests[:, layout.ANSWER] = answer
    requests[:, layout.FINAL] = prompt + answer - 1 + surprise
    requests[:, [layout.REPLICA, layout.OTHER]] = layout.REJECTED
    requests[:, [layout.QUEUED_NS, layout.BEHIND]] = -1
    requests[:, [layout.ADMITTED_NS, layout.FIRST_NS, layout.LAST_NS]] = -1
    if fleet.front_end is not None:
        requests[fits, layout.BUSY_NS] = fleet.front_end.busy_each_ns(prompt[fits])
    _draw_replicas(requests, fits, fleet)
    return requests


def _max_tokens(table: RequestTable, config: EngineConfig) -> Ints:
    """Return the longest answers as the engine knows them."""
    limit, room = table.max_tokens, np.maximum(1, config.max_model_len - table.prompt_tokens)
    allowed: Ints = np.where(limit == NO_LIMIT, room, np.minimum(limit, room))
    return allowed


def _fit(prompt: Ints, max_tokens: Ints, fleet: Fleet) -> NDArray[np.bool_]:
    """Tell which requests can be served at all (R31)."""
    longest, size = fleet.config.max_model_len, fleet.config.block_size
    slots = np.minimum(prompt + max_tokens, longest) - 1
    fits: NDArray[np.bool_] = (prompt > 0) & (prompt < longest)
    fits &= -(-slots // size) * size <= pool_of(fleet).capacity_tokens
    return fits


def _draw_replicas(requests: Ints, fits: NDArray[np.bool_], fleet: Fleet) -> None:
    """Note among which replicas the router will choose for the requests that fit."""
    router = fleet.router
    if fleet.replicas == 1 or not fits.any():
        requests[fits, layout.REPLICA] = requests[fits, layout.OTHER] = 0
    elif router.draws:
        replicas = fleet.replicas // router.ranks
        drawn = [router.draw(replicas) for _ in repeat(None, int(fits.sum()))]
        pairs = np.array(drawn, dtype=np.int64).reshape(len(drawn), -1)
        requests[fits, layout.REPLICA], requests[fits, layout.OTHER] = pairs[:, 0], pairs[:, -1]
    else:
        requests[fits, layout.REPLICA] = layout.ANY


def _zeros(*shape: int) -> Ints:
    return np.zeros(shape, dtype=np.int64)


def _looks(fleet: Fleet) -> bool:
    """Tell whether where a request goes depends on loads."""
    return fleet.replicas > 1 and not fleet.router.is_blind


def _limits(fleet: Fleet, pool: PagedPool, pause_steps: int) -> Ints:
    """Return the settings in the order of their places in `Replicas.limits`."""
    config, router = fleet.config, fleet.router
    slot, budget = "sequence_slot", "token_budget"
    if config.running_seqs < config.max_num_seqs:
        slot = "active_sequence_slot"
    if config.step_tokens < config.max_num_batched_tokens:
        budget = "scheduled_token_budget"
    loads = {"requests": layout.LOAD_REQUESTS, "prompt_tokens": layout.LOAD_TOKENS}
    values = (
        pool.capacity_tokens,
        config.block_size,
        config.max_model_len,
        config.step_tokens,
        config.max_num_batched_tokens,
        config.running_seqs,
        int(config.watermark * config.num_gpu_blocks),  # R11
        config.long_prefill_token_threshold,
        config.enable_chunked_prefill,
        2 if config.async_scheduling else 1,
        HEAD_LACKS.index(slot),
        HEAD_LACKS.index(budget),
        config.enable_prefix_caching,
        _looks(fleet),
        loads[router.least or "requests"],
        router.ranks if _looks(fleet) else 1,
        fleet.front_end.rest_ns if fleet.front_end else 0,
        pause_steps,
    )
    return np.array(values, dtype=np.int64)
