import pickle
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.study.here import Here
from kvsim.study.tasks import MOST_DEATHS, DeadWorkerError, Failure, Work, run_tasks
from tests.study import calls
from tests.study.imagined import Imagined


def test_every_item_is_done_once_and_keeps_its_key() -> None:
    items = ((f"key {number}", number) for number in range(50))
    results = list(run_tasks(Here(), Work(calls.add, 100), items))
    assert results == [(f"key {number}", 100 + number) for number in range(50)]


def test_no_items_no_results() -> None:
    assert list(run_tasks(Here(), Work(calls.add, 1), [])) == []


def test_a_crew_of_one_yields_each_result_before_the_next_item_is_taken() -> None:
    taken: list[int] = []

    def items() -> Iterator[tuple[int, int]]:
        for number in range(3):
            taken.append(number)
            yield number, number

    for key, _ in run_tasks(Here(), Work(calls.add, 0), items()):
        assert taken[-1] == key


def test_a_mistake_in_the_input_is_recorded_with_every_problem() -> None:
    ((_, result),) = run_tasks(Here(), Work(calls.refuse, None), [(0, 0)])
    assert result == Failure("refused", "a.yaml:3: is wrong\nis wrong, too")


def test_a_defect_is_recorded_with_its_traceback_and_the_others_go_on() -> None:
    results = dict(run_tasks(Here(), Work(calls.divide, 6), [(n, n) for n in (0, 1, 2)]))
    failure = results.pop(0)
    assert results == {1: 6.0, 2: 3.0}
    assert isinstance(failure, Failure)
    assert failure.kind == "defect"
    assert failure.message.startswith("Traceback")
    assert failure.message.rstrip().endswith("ZeroDivisionError: division by zero")


def test_want_of_memory_is_no_defect() -> None:
    ((_, result),) = run_tasks(Here(), Work(calls.exhaust, None), [(0, 0)])
    assert isinstance(result, Failure)
    assert result.kind == "killed"


def test_packed_attempts_give_the_same_results() -> None:
    work = Work(calls.divide, 6)
    for item in (0, 3):
        assert pickle.loads(work.attempt_packed(pickle.dumps(item))) == work.attempt(item)


def test_what_cannot_be_packed_or_unpacked_is_a_defect() -> None:
    work = Work(calls.unsendable, None)
    for failure in (work.attempt_packed(pickle.dumps(1)), work.attempt_packed(b"nonsense")):
        assert pickle.loads(failure).kind == "defect"


def test_a_crew_that_is_left_in_the_middle_is_stopped() -> None:
    crew = Imagined(3)
    results = run_tasks(crew, Work(calls.add, 0), ((n, n) for n in range(100)))
    next(results)
    results.close()
    assert crew.stopped


def test_items_that_cannot_be_made_stop_the_crew_and_are_told() -> None:
    def items() -> Iterator[tuple[int, int]]:
        yield 0, 0
        raise InputError("no more")

    crew = Imagined(2)
    with pytest.raises(InputError, match="no more"):
        list(run_tasks(crew, Work(calls.add, 0), items()))
    assert crew.stopped


def test_a_crew_stays_ready_for_the_next_work() -> None:
    crew = Imagined(2)
    list(run_tasks(crew, Work(calls.add, 0), [(0, 0)]))
    assert not crew.stopped


def test_a_crew_with_nobody_left_is_told() -> None:
    crew = Imagined(2, outcomes={1: [InputError("all have left")]})
    with pytest.raises(InputError, match="all have left"):
        list(run_tasks(crew, Work(calls.add, 0), ((n, n) for n in range(9))))


def test_an_item_that_cannot_be_sent_is_a_defect_and_the_others_go_on() -> None:
    crew = Imagined(2, outcomes={1: [TypeError("cannot pickle")]})
    results = dict(run_tasks(crew, Work(calls.add, 0), ((n, n) for n in range(9))))
    failure = results.pop(1)
    assert isinstance(failure, Failure)
    assert failure.kind == "defect"
    assert "cannot pickle" in failure.message
    assert results == {n: n for n in range(9) if n != 1}


def test_many_items_are_taken_as_there_is_room_for_them() -> None:
    taken = done = 0

    def items() -> Iterator[tuple[int, int]]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield number, number

    for _ in run_tasks(Imagined(3), Work(calls.add, 0), items()):
        done += 1
        assert taken - done <= 2 * 3
    assert done == 1000


@given(
    deaths=st.lists(st.integers(0, MOST_DEATHS + 2), max_size=12),
    size=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_whatever_dies_every_item_has_one_result(deaths: list[int], size: int, seed: int) -> None:
    # An item with n deaths kills all workers n times: those beside it are lost each time, too.
    crew = Imagined(size, order=Random(seed), deaths=dict(enumerate(deaths)))
    results = list(run_tasks(crew, Work(calls.add, 10), ((n, n) for n in range(len(deaths)))))
    assert len(results) == len(deaths)
    for key, result in results:
        killed = Failure("killed", f"{MOST_DEATHS} workers died of it")
        # One death may have been another's; there is no telling whose.
        assert result == (10 + key if deaths[key] < MOST_DEATHS - 1 else killed) or (
            deaths[key] == MOST_DEATHS - 1 and result == 10 + key
        )


def test_deaths_that_a_crew_has_seen_itself_count_when_the_item_was_alone() -> None:
    dead = [DeadWorkerError(4), DeadWorkerError(4)]
    crew = Imagined(2, outcomes={0: dead[:], 1: dead[:1]})
    results = dict(run_tasks(crew, Work(calls.add, 0), [(0, 0), (1, 1)]))
    assert results == {0: Failure("killed", "5 workers died of it"), 1: 1}
