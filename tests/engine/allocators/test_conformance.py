"""What every layout owes the engine; each file of the package is tested unasked, in all options."""

from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kvsim.engine import allocators
from kvsim.engine.allocators import PoolShape, Shortage
from kvsim.policy import policies_in
from kvsim.tables import SLOT_USES

SUMS = ("capacity_tokens", "taken_tokens", "rounding_tokens", "holes_tokens", "free_tokens")


@dataclass(frozen=True, slots=True)
class View:
    """A `RequestView` and nothing else: any other attribute raises AttributeError."""

    number: int
    prompt_tokens: int
    max_tokens: int
    arrival_ns: int = 0
    generated_tokens: int = 0


def choices(field):
    if get_origin(field.annotation) is Literal:
        return get_args(field.annotation)
    return (False, True) if field.annotation is bool else (field.default,)


def all_options(kind):
    names = list(kind.model_fields)
    for values in product(*(choices(field) for field in kind.model_fields.values())):
        try:
            yield kind(**dict(zip(names, values, strict=True)))
        except ValidationError:  # options that exclude each other
            continue


POLICIES = [policy for kind in policies_in(allocators) for policy in all_options(kind)]
NAMES = ["-".join(str(value) for value in policy.model_dump().values()) for policy in POLICIES]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=NAMES)

requests = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=12
)


def is_oracle(policy):
    return "oracle" in str(policy.model_dump())


def build(policy, outputs=(), num_gpu_blocks=32, block_size_tokens=4, max_model_len_tokens=80):
    def output_tokens(view):
        assert is_oracle(policy), "asked for the true length without being named an oracle"
        return outputs[view.number]

    shape = PoolShape(num_gpu_blocks, block_size_tokens, max_model_len_tokens, 0.0, output_tokens)
    return policy.build(shape)


def views_of(rows):
    """Return views and true outputs; no answer is longer than allowed or than the context."""
    views = [View(number, prompt, limit) for number, (prompt, limit, _) in enumerate(rows)]
    outputs = [min(limit, output, 80 - prompt) for prompt, limit, output in rows]
    return views, outputs


def books(pool):
    return [getattr(pool, name) for name in SUMS]


def runs_are_those_of_the_books(pool, lengths, first_slot):
    """Each slot lies in one run; so many are of each use, so many tokens of each sequence."""
    computed = {seq: length - length // 3 for seq, length in lengths.items()}
    runs = pool.slot_runs(lambda seq: (computed[seq], lengths[seq]))
    assert (runs.length > 0).all()
    assert runs.start.tolist() == [0, *runs.length.cumsum()][:-1]
    sums = dict(zip(SLOT_USES, runs.sums().tolist(), strict=True))
    assert sum(sums.values()) == pool.capacity_tokens
    assert sums["held"] + sums["to_come"] + sums["inside"] == pool.taken_tokens
    assert (sums["held"], sums["held"] + sums["to_come"]) == (
        sum(computed.values()),
        sum(lengths.values()),
    )
    assert sums["rounding"] == pool.rounding_tokens
    assert sums["holes"] == pool.holes_tokens
    assert sums["reusable"] == pool.reusable_tokens
    assert sums["reusable"] + sums["free"] == pool.free_tokens
    for seq, length in lengths.items():
        for position in range(length):
            run = np.searchsorted(runs.start, pool.slot(seq, position) - first_slot, "right") - 1
            assert runs.owner[run] == seq
            assert SLOT_USES[runs.use[run]] == ("held" if position < computed[seq] else "to_come")


def test_the_package_has_both_layouts_and_combines_their_options():
    assert {policy.kind for policy in POLICIES} >= {"paged", "contiguous"}
    assert len(POLICIES) >= 2 + 4 * 3 + 4 * 2  # null block; reservation x placement; compaction


@every_policy
@settings(max_examples=15, deadline=None)
@given(rows=requests, steps=st.lists(st.integers(0, 10_000), max_size=120))
def test_books_balance_whatever_happens(policy, rows, steps):
    views, outputs = views_of(rows)
    pool = build(policy, outputs)
    empty = pool.free_tokens
    lengths = {}
    for step in steps:
        view = views[step % len(views)]
        seq = view.number
        if seq not in lengths:
            first = 1 + step % view.prompt_tokens
            admitted = pool.shortage(view, view.prompt_tokens, idle=False) == Shortage.NONE
            if admitted:
                assert pool.allocate(view, seq, first), "shortage said that it fits"
                lengths[seq] = first
        elif step % 3 == 0:
            pool.free(seq)
            del lengths[seq]
        else:
            more = 1 + step % 7
            before = books(pool)
            if pool.append(seq, more):
                lengths[seq] += more
            else:
                assert books(pool) == before
        assert pool.capacity_tokens == sum(books(pool)[1:])
        assert all(pool.slots_tokens(seq) >= length for seq, length in lengths.items())
        pool.check()
        runs_are_those_of_the_books(pool, lengths, 32 * 4 - pool.capacity_tokens)
    slots = [pool.slot(seq, position) for seq in lengths for position in range(lengths[seq])]
    assert len(set(slots)) == len(slots) <= pool.taken_tokens
    for seq in lengths:
        pool.free(seq)
    assert pool.taken_tokens == pool.rounding_tokens == 0
    assert pool.free_tokens + pool.holes_tokens == empty == pool.capacity_tokens


@every_policy
@settings(max_examples=15, deadline=None)
@given(rows=requests)
def test_a_refused_allocation_changes_nothing(policy, rows):
    views, outputs = views_of(rows * 4)
    pool = build(policy, outputs)
    for view in views:
        lacks = pool.shortage(view, view.prompt_tokens, idle=True)
        before = books(pool)
        assert pool.shortage(view, view.prompt_tokens, idle=True) == lacks
        assert books(pool) == before
        if lacks == Shortage.NONE:
            assert pool.allocate(view, view.number, view.prompt_tokens)
        else:
            assert not pool.allocate(view, view.number, view.prompt_tokens)
            assert books(pool) == before
            with pytest.raises(KeyError):
                pool.slots_tokens(view.number)
        pool.check()


@every_policy
@settings(max_examples=15, deadline=None)
@given(row=st.tuples(st.integers(1, 60), st.integers(1, 40)), blocks=st.integers(2, 24))
def test_what_can_ever_fit_is_served_alone_to_its_last_slot(policy, row, blocks):
    prompt_tokens, max_tokens = row
    view = View(0, prompt_tokens, max_tokens)
    longest = min(prompt_tokens + max_tokens, 80)
    pool = build(policy, [longest - prompt_tokens], blocks)
    served = (
        pool.shortage(view, prompt_tokens, idle=True) == Shortage.NONE
        and pool.allocate(view, 0, prompt_tokens)
        and all(pool.append(0, 1) for _ in range(longest - 1 - prompt_tokens))
    )
    assert served is pool.can_ever_fit(view)


@every_policy
def test_the_watermark_never_keeps_an_idle_engine_waiting(policy):
    shape = PoolShape(32, 4, 80, 1.0, lambda view: 10)
    pool = policy.build(shape)
    assert pool.shortage(View(0, 60, 20), 60, idle=True) == Shortage.NONE


@every_policy
def test_growth_is_asked_for_by_the_slots_that_there_are(policy):
    """The engine's way: ask for `growth_tokens` when all slots are filled, never otherwise."""
    view = View(0, 9, 31)
    pool = build(policy, [31])
    pool.allocate(view, 0, 5)
    pool.append(0, 4)
    for filled in range(9, 39):
        if filled == pool.slots_tokens(0):
            assert pool.growth_tokens
            assert pool.append(0, pool.growth_tokens)
        assert pool.slot(0, filled) >= 0


@every_policy
def test_only_oracles_ask_for_the_true_length(policy):
    asked = []

    def output_tokens(view):
        asked.append(view.number)
        return 10

    pool = policy.build(PoolShape(32, 4, 80, 0.0, output_tokens))
    view = View(0, 20, 20)
    pool.can_ever_fit(view)
    pool.shortage(view, 20, idle=True)
    pool.allocate(view, 0, 20)
    assert bool(asked) is is_oracle(policy)


@every_policy
def test_sequences_that_own_nothing_are_key_errors(policy):
    pool = build(policy)
    for call in (pool.free, pool.slots_tokens):
        with pytest.raises(KeyError):
            call(3)
    with pytest.raises(KeyError):
        pool.append(3, 1)
    with pytest.raises(KeyError):
        pool.slot(3, 0)


@every_policy
def test_fork_shares_all_slots_or_is_refused(policy):
    pool = build(policy, [10])
    pool.allocate(View(0, 20, 20), 0, 20)
    before = books(pool)
    try:
        pool.fork(0, 1)
    except ValueError:
        assert books(pool) == before
    else:
        assert books(pool) == before
        assert [pool.slot(1, at) for at in range(20)] == [pool.slot(0, at) for at in range(20)]
    pool.check()
