"""What clients do: they wait for answers and permits, think, give up and try again."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cost.front_end import FrontEnd
from kvsim.engine.config import EngineConfig
from kvsim.engine.routers.shared_queue import SharedQueue
from kvsim.errors import InputError
from kvsim.rng import stream
from kvsim.tables import OUTCOMES
from kvsim.workload.requests import Gate
from tests.engine.harness import LinearCost, request_table, run, segments_of
from tests.engine.test_theory import (
    LONGEST_TOKENS,
    MEAN_TOKENS,
    ONE_NS_A_TOKEN,
    SERVER,
    assert_interval,
)

FINISHED, REJECTED, TIMED_OUT = (OUTCOMES.index(o) for o in ("finished", "rejected", "timed_out"))
SMALL = EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=96, num_gpu_blocks=20)


def ints(*values):
    return np.array(values, dtype=np.int64)


def by_number(trace):
    """The rows of the requests table as dictionaries, in order of their numbers."""
    columns = trace.tables["requests"]
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    return sorted(found, key=lambda row: row["request"])


def closed_loop(services, users, think_ns, starts_ns=None):
    """Requests of one step each, sent by users who think after each answer."""
    starts_ns = np.zeros(users, dtype=np.int64) if starts_ns is None else starts_ns
    table = request_table([(0, int(service), 1, 1) for service in services])
    gate = np.zeros(len(table), dtype=np.int64)
    return replace(table, gates=(Gate(starts_ns, True),), gate=gate, think_ns=think_ns)


# Closed loops


@pytest.mark.parametrize(("users", "think_ns"), [(1, 700), (3, 700), (5, 40_000), (8, 200)])
def test_users_of_a_constant_server_follow_the_repairman(users, think_ns):
    """Deterministic: a cycle lasts as long as service and thought, or as all users' service."""
    count, service = 400, 1_000
    thinks = np.full(count, think_ns, dtype=np.int64)
    rows = by_number(run(closed_loop([service] * count, users, thinks), SERVER, ONE_NS_A_TOKEN))
    finish = [row["finish_ns"] for row in rows]
    cycle = max(service + think_ns, users * service)
    settled = finish[count // 2 :]
    assert settled[users:] == [time + cycle for time in settled[:-users]]


def throughput_of_repairman(users, think, service_transform, service_mean):
    """Throughput of M/G/1 with a finite source (Takács 1962): think times are exponential."""
    total, product = 0.0, 1.0
    for k in range(users):
        if k:
            product *= 1 / service_transform(k / think) - 1
        total += comb(users - 1, k) * product
    idle = 1 / (1 + users * service_mean / think * total)
    return (1 - idle) / service_mean


@pytest.mark.parametrize("users", [2, 6])
@pytest.mark.parametrize("constant", [True, False])
def test_throughput_is_that_of_the_machine_repairman(users, constant):
    think, count = 3.0 * MEAN_TOKENS, 6_000
    rates = []
    for seed in range(12):
        rng = stream(seed, "repairman")
        drawn = np.full(count, MEAN_TOKENS) if constant else rng.exponential(MEAN_TOKENS, count)
        services = np.clip(np.rint(drawn), 1, LONGEST_TOKENS - 1).astype(np.int64)
        thinks = np.rint(rng.exponential(think, count)).astype(np.int64)
        rows = by_number(run(closed_loop(services, users, thinks), SERVER, ONE_NS_A_TOKEN))
        finish = sorted(row["finish_ns"] for row in rows)
        rates.append((count // 2) / (finish[-count // 4] - finish[count // 4]))
    transforms = {
        True: lambda s: np.exp(-s * MEAN_TOKENS),
        False: lambda s: 1 / (1 + s * MEAN_TOKENS),
    }
    expected = throughput_of_repairman(users, think, transforms[constant], MEAN_TOKENS)
    assert_interval(rates, expected, 0.03)


def test_users_begin_when_they_are_there():
    starts = ints(0, 5_000, 9_000)
    thinks = np.zeros(9, dtype=np.int64)
    rows = by_number(run(closed_loop([100] * 9, 3, thinks, starts), SERVER, ONE_NS_A_TOKEN))
    arrivals = [row["arrival_ns"] for row in rows]
    assert arrivals == sorted(arrivals)
    assert arrivals[:2] == [0, 101]  # alone, it sends one after the other
    everyone = run(closed_loop([100_000] * 9, 3, thinks, starts), SERVER, ONE_NS_A_TOKEN)
    assert [row["arrival_ns"] for row in by_number(everyone)][:3] == [0, 5_000, 9_000]


@settings(max_examples=40)
@given(
    cap=st.integers(1, 7),
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=8, max_size=40),
)
def test_a_cap_with_all_at_once_keeps_exactly_so_many_in_flight(cap, lengths):
    table = request_table([(0, prompt, output, 0) for prompt, output in lengths])
    gate = np.zeros(len(table), dtype=np.int64)
    capped = replace(table, gates=(Gate(np.zeros(cap, dtype=np.int64)),), gate=gate)
    rows = by_number(run(capped, SMALL, LinearCost(7, 1, 1)))
    events = sorted(
        [(row["arrival_ns"], 1) for row in rows] + [(row["finish_ns"] + 1, -1) for row in rows]
    )
    last_arrival = max(row["arrival_ns"] for row in rows)
    flight, at = 0, {}
    for time, change in events:
        flight += change
        at[time] = flight
    assert all(flight == min(cap, len(rows)) for time, flight in at.items() if time < last_arrival)
    assert [row["request"] for row in rows] == sorted(
        range(len(rows)), key=lambda number: (rows[number]["arrival_ns"], number)
    )


def test_a_permit_is_held_by_all_samples_of_a_request():
    table = request_table([(0, 5, 3, 0), (0, 5, 20, 0), (0, 5, 2, 0), (0, 5, 2, 0)])
    table = replace(
        table,
        group=ints(0, 0, 1, 1),
        arrival_ns=ints(0, 0, 0, 0),
        gates=(Gate(ints(0)),),
        gate=ints(0, 0, 0, 0),
    )
    # Without distinct arrival times the groups tell who belongs together.
    rows = by_number(run(table, SMALL, LinearCost(10)))
    assert rows[2]["arrival_ns"] == rows[3]["arrival_ns"] == rows[1]["finish_ns"] + 1


# Conversations


def conversation(turns, delay_ns, **changes):
    """One session of requests (prompt, output); all but the first are further turns."""
    table = request_table([(5, prompt, output, 0) for prompt, output in turns])
    zeros = np.zeros(len(turns), dtype=np.int64)
    return replace(table, session=zeros, delay_ns=ints(*delay_ns), **changes)


def test_the_next_turn_comes_after_the_answer_and_a_thought():
    turns = [(10, 5), (20, 3), (30, 2)]
    rows = by_number(run(conversation(turns, (0, 400, 0)), SMALL, LinearCost(10)))
    assert rows[0]["arrival_ns"] == 5
    assert rows[1]["arrival_ns"] == rows[0]["finish_ns"] + 400
    assert rows[2]["arrival_ns"] == rows[1]["finish_ns"] + 1
    assert [row["session"] for row in rows] == [0, 0, 0]


def test_the_next_turn_finds_the_last_prompt_and_its_answer():
    config = replace(SMALL, enable_prefix_caching=True)
    segments = segments_of([[(1, 32)], [(1, 32), (2, 17), (3, 10)]], [2, 4])
    table = conversation([(32, 17), (59, 2)], (0, 50), segments=segments)
    rows = by_number(run(table, config, LinearCost(10)))
    assert rows[1]["cached_tokens"] == 48  # the last token of an answer is never computed


def test_a_conversation_ends_with_a_turn_that_fails():
    """The prompt of the second turn is longer than the context."""
    rows = by_number(
        run(conversation([(10, 5), (200, 3), (30, 2)], (0, 1, 1)), SMALL, LinearCost(1))
    )
    assert [row["outcome"] for row in rows] == [FINISHED, REJECTED]
    impatient = conversation([(10, 50), (20, 3)], (0, 1), timeout_ns=ints(30, 30))
    rows = by_number(run(impatient, SMALL, LinearCost(1)))
    assert [row["outcome"] for row in rows] == [TIMED_OUT]


def test_nothing_is_sent_when_time_is_up():
    rows = by_number(
        run(
            conversation([(10, 5), (20, 3), (30, 2)], (0, 400, 400), stop_ns=500),
            SMALL,
            LinearCost(10),
        )
    )
    assert len(rows) == 2
    assert rows[1]["arrival_ns"] < 500 < rows[1]["finish_ns"] + 400


# Giving up


def impatient(rows, timeout_ns, **changes):
    table = request_table(rows)
    return replace(table, timeout_ns=np.full(len(rows), timeout_ns, dtype=np.int64), **changes)


def test_a_running_request_leaves_after_the_step_in_flight():
    """Steps last 10 ns; the prompt takes one, then a token comes every 10 ns."""
    trace = run(impatient([(0, 10, 50, 0)], 47), SMALL, LinearCost(10))
    (row,) = by_number(trace)
    assert row["outcome"] == TIMED_OUT
    assert (row["first_token_ns"], row["finish_ns"], row["output_tokens"]) == (10, 47, 4)
    assert trace.tables["steps"]["start_ns"].tolist() == [0, 10, 20, 30, 40]


def test_an_answer_that_is_complete_at_the_deadline_counts():
    (row,) = by_number(run(impatient([(0, 10, 4, 0)], 40), SMALL, LinearCost(10)))
    assert (row["outcome"], row["finish_ns"]) == (FINISHED, 40)
    (row,) = by_number(run(impatient([(0, 10, 5, 0)], 40), SMALL, LinearCost(10)))
    assert (row["outcome"], row["finish_ns"], row["output_tokens"]) == (TIMED_OUT, 40, 4)


def test_who_gives_up_before_the_first_token_got_none():
    (row,) = by_number(run(impatient([(0, 10, 5, 0)], 7), SMALL, LinearCost(10)))
    assert (row["first_token_ns"], row["output_tokens"], row["finish_ns"]) == (-1, 0, 7)


def test_a_waiting_request_leaves_at_once():
    """One runs at a time; the second one never gets its turn, the third one does."""
    config = replace(SMALL, max_num_seqs=1)
    rows = [(0, 10, 10, 0), (1, 10, 10, 0), (60, 10, 3, 0)]
    first, second, third = by_number(run(impatient(rows, 95), config, LinearCost(10)))
    assert second["outcome"] == TIMED_OUT
    assert (second["admitted_ns"], second["replica"], second["finish_ns"]) == (-1, -1, 96)
    assert first["outcome"] == TIMED_OUT
    assert third["admitted_ns"] == 100


def test_the_front_end_takes_its_time_before_the_queue():
    """Its thread works on one request after the other; what comes after that goes side by side."""
    rows = [(0, 30, 2, 0), (5, 10, 2, 0), (200, 1, 1, 0)]
    front_end = FrontEnd(request_s=7e-9, busy_s=1e-9, per_prompt_token_s=2e-9)
    trace = run(request_table(rows), SMALL, LinearCost(10), front_end=front_end)
    longer, shorter, later = by_number(trace)
    assert (longer["queued_ns"], longer["admitted_ns"], longer["finish_ns"]) == (68, 68, 88)
    assert (shorter["queued_ns"], shorter["admitted_ns"], shorter["finish_ns"]) == (89, 89, 109)
    assert (later["queued_ns"], later["finish_ns"]) == (210, 220)


def test_with_a_common_queue_the_front_end_that_is_free_first_takes_a_request():
    rows = [(0, 10, 2, 0)] * 3
    front_end = FrontEnd(per_prompt_token_s=2e-9)
    trace = run(
        request_table(rows), SMALL, LinearCost(10), None, 2, SharedQueue(), front_end=front_end
    )
    assert [row["queued_ns"] for row in by_number(trace)] == [20, 20, 40]


@pytest.mark.parametrize("routing", [None, SharedQueue()])
def test_who_gives_up_in_the_front_end_never_reaches_the_engine(routing):
    rows = [(0, 10, 2, 0), (5, 30, 2, 0)]
    trace = run(
        impatient(rows, 45),
        SMALL,
        LinearCost(10),
        routing=routing,
        front_end=FrontEnd(per_prompt_token_s=2e-9),
    )
    answered, gone = by_number(trace)
    assert (answered["outcome"], answered["queued_ns"], answered["finish_ns"]) == (FINISHED, 20, 40)
    assert (gone["outcome"], gone["queued_ns"], gone["finish_ns"]) == (TIMED_OUT, -1, 50)
    assert trace.totals.steps == 2


def test_retries_wait_as_drawn_and_are_counted():
    waits = np.array([[30, 70, -1]], dtype=np.int64)
    table = impatient([(0, 10, 50, 0)], 45, retry_delays_ns=waits)
    trace = run(table, SMALL, LinearCost(10))
    rows = by_number(trace)
    assert [row["attempt"] for row in rows] == [0, 1, 2]
    assert [row["arrival_ns"] for row in rows] == [0, 45 + 30, 75 + 45 + 70]
    assert {row["outcome"] for row in rows} == {TIMED_OUT}
    assert {row["group"] for row in rows} == {0}
    assert trace.totals.retried_rows == (0, 0)


def test_a_retry_that_is_answered_is_the_last():
    """The first attempt waits behind another request, the second one doesn't."""
    config = replace(SMALL, max_num_seqs=1)
    table = request_table([(0, 10, 10, 0), (0, 10, 3, 0)])
    waits = np.full((2, 3), 40, dtype=np.int64)
    table = replace(table, timeout_ns=ints(0, 65), retry_delays_ns=waits)
    rows = by_number(run(table, config, LinearCost(10)))
    assert [row["outcome"] for row in rows] == [FINISHED, TIMED_OUT, FINISHED]
    assert rows[2]["arrival_ns"] == 65 + 40


def test_clients_that_outlast_the_clock_are_refused_unless_the_run_ends_before():
    """Pauses of 1e9 s each; the tables' integers end after nine of them."""
    longest_ns = 10**18
    thinks = np.full(20, longest_ns, dtype=np.int64)
    table = closed_loop([10] * 20, 1, thinks)
    with pytest.raises(InputError, match="still send after 1e"):
        run(table, SERVER, ONE_NS_A_TOKEN)
    until = run(table, SERVER, ONE_NS_A_TOKEN, until_ns=longest_ns)
    assert len(until.tables["requests"]["request"]) == 1


def random_clients(seed):
    """Sessions, gates, deadlines and retries, all at once."""
    rng = np.random.default_rng(seed)
    turns = rng.integers(1, 5, rng.integers(3, 25))
    count = int(turns.sum())
    starts = np.repeat(np.sort(rng.integers(0, 3_000, len(turns))), turns)
    samples = int(rng.integers(1, 3))
    row = np.repeat(np.arange(count), samples)
    rows = [(int(starts[i]), int(rng.integers(1, 100)), int(rng.integers(1, 60)), 0) for i in row]
    table = request_table(rows)
    held = bool(rng.integers(2))
    opens = np.sort(rng.integers(0, 500, rng.integers(1, 6)))
    return replace(
        table,
        group=row,
        session=np.repeat(np.arange(len(turns)), turns)[row],
        delay_ns=rng.integers(0, 300, count)[row],
        timeout_ns=(rng.integers(50, 4_000, count) * rng.integers(0, 2, count))[row],
        retry_delays_ns=rng.integers(-20, 400, (count, 3))[row],
        gates=(Gate(opens, held),),
        gate=(np.repeat(rng.integers(-1, 1, len(turns)), turns))[row],
        think_ns=rng.integers(0, 200, count)[row],
        stop_ns=int(rng.integers(2_000, 9_000)) if rng.integers(2) else None,
    )


@pytest.mark.parametrize("seed", range(80))
def test_whatever_clients_do_they_keep_their_rules(seed):
    """Every arrival has a cause in the table, and every deadline is kept; the laws hold too."""
    table = random_clients(seed)
    routing = SharedQueue() if seed % 3 == 0 else None
    config = replace(
        SMALL, enable_prefix_caching=bool(seed % 2), async_scheduling=bool(seed % 4 > 1)
    )
    front_end = FrontEnd(per_prompt_token_s=5e-9, request_s=3e-9) if seed % 5 > 1 else None
    rows = by_number(
        run(
            table,
            config,
            LinearCost(7, 1, 1),
            replicas=1 + seed % 2,
            routing=routing,
            front_end=front_end,
        )
    )
    ends = {}  # of each attempt of a group: when it was over, whether it was answered
    for row in rows:
        key = row["group"], row["attempt"]
        end, answered = ends.get(key, (0, True))
        ends[key] = max(end, row["finish_ns"]), answered and row["outcome"] == FINISHED
    for row in rows:
        group, attempt = row["group"], row["attempt"]
        first = int(np.searchsorted(table.group, group))
        timeout = int(table.timeout_ns[first])
        spent = row["finish_ns"] - row["arrival_ns"]
        assert row["outcome"] != TIMED_OUT or spent == timeout > 0
        assert not timeout or spent <= timeout
        assert table.stop_ns is None or row["arrival_ns"] < table.stop_ns
        gated = table.gate[first] >= 0
        if attempt:
            end, answered = ends[group, attempt - 1]
            assert not answered
            assert row["arrival_ns"] == end + max(1, int(table.retry_delays_ns[first, attempt - 1]))
            assert table.retry_delays_ns[first, attempt - 1] >= 0
        elif first and table.session[first] == table.session[first - 1]:
            last = max(key for key in ends if key[0] == group - 1)
            end, answered = ends[last]
            ready = end + max(1, int(table.delay_ns[first]))
            assert answered
            per_request = gated and not table.gates[0].holds_session
            assert row["arrival_ns"] >= ready if per_request else row["arrival_ns"] == ready
        else:
            start = int(table.arrival_ns[first])
            assert row["arrival_ns"] >= start if gated else row["arrival_ns"] == start


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_who_gives_up_leaves_no_block_behind(async_scheduling):
    """The laws check that all slots come back; here most requests give up in every state."""
    rng = np.random.default_rng(5)
    rows = [(int(t), 60, 30, 0) for t in np.sort(rng.integers(0, 1_000_000, 300))]
    waits = np.full((300, 2), 4_000, dtype=np.int64)
    table = impatient(rows, 14_000, retry_delays_ns=waits)
    config = replace(SMALL, async_scheduling=async_scheduling)
    trace = run(table, config, LinearCost(7, 1, 1))
    outcomes = np.bincount(trace.tables["requests"]["outcome"], minlength=4)
    assert outcomes[TIMED_OUT] > 300 > outcomes[FINISHED] > 50
    assert trace.tables["requests"]["preemptions"].sum() > 0
