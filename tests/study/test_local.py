import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.study.here import Here
from kvsim.study.local import Local, crew_of
from kvsim.study.tasks import Crew, Failure, Work, run_tasks
from tests.study import calls

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Two processes, kept over the tests that do them no harm."""
    local = Local(2)
    yield local
    local.stop()


def numbered(count: int) -> Iterator[tuple[int, int]]:
    return ((number, number) for number in range(count))


def test_one_job_is_this_process_and_more_are_others() -> None:
    assert isinstance(crew_of(1), Here)
    assert crew_of(3).size == 3


@pytest.mark.parametrize("jobs", [0, -1, 1.5, "2"])
def test_a_crew_has_a_whole_number_of_processes(jobs) -> None:
    with pytest.raises(InputError, match="jobs: should be a whole number from 1 on"):
        crew_of(jobs)


def test_where_nobody_says_which_cores_are_ours_all_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert crew_of().size == 5


def test_results_are_those_of_this_process(crew: Crew) -> None:
    for work in (Work(calls.divide, 6), Work(calls.refuse, None), Work(calls.exhaust, None)):
        here = dict(run_tasks(Here(), work, numbered(5)))
        assert dict(run_tasks(crew, work, numbered(5))) == here


def test_works_follow_each_other_in_the_same_processes(crew: Crew) -> None:
    def pids() -> set[int]:
        return {pid for _, pid in run_tasks(crew, Work(calls.pid, os.urandom(9)), numbered(20))}

    first = pids()
    assert len(first) == 2
    for shared in range(6):
        assert dict(run_tasks(crew, Work(calls.add, shared), [(0, 1)])) == {0: shared + 1}
    assert pids() == first


@pytest.mark.parametrize("call", [calls.unsendable, calls.unreadable])
def test_results_that_cannot_be_sent_or_received_are_defects(crew: Crew, call: object) -> None:
    results = dict(run_tasks(crew, Work(call, None), numbered(6)))  # type: ignore[arg-type]
    kinds = {key: getattr(result, "kind", result) for key, result in results.items()}
    assert kinds == {0: 0, 1: "defect", 2: 2, 3: "defect", 4: 4, 5: "defect"}


def test_a_call_that_leaves_the_process_is_a_defect(crew: Crew) -> None:
    ((_, result),) = run_tasks(crew, Work(calls.leave, None), [(0, 0)])
    assert isinstance(result, Failure)
    assert result.kind == "defect"
    assert "SystemExit: 7" in result.message


def test_items_that_cannot_be_sent_are_defects(crew: Crew) -> None:
    items = [(0, 1), (1, lambda: 1), (2, 3)]
    results = dict(run_tasks(crew, Work(calls.add, 1), items))  # type: ignore[arg-type]
    assert (results[0], results[2]) == (2, 4)
    assert "pickle" in results[1].message  # type: ignore[union-attr]


def test_many_small_items_cost_little_and_take_no_memory(crew: Crew) -> None:
    list(run_tasks(crew, Work(calls.add, 0), numbered(100)))
    began = time.process_time()
    assert sum(1 for _ in run_tasks(crew, Work(calls.add, 0), numbered(3000))) == 3000
    assert (time.process_time() - began) / 3000 < 1e-3  # a third of it, when nothing else runs


@pytest.mark.parametrize(
    ("killers", "count"),
    [
        pytest.param({0, 1, 5}, 6, id="several at once, and the last"),
        pytest.param({0, 1}, 2, id="all"),
    ],
)
def test_items_that_kill_workers_are_named_and_the_others_finish(
    killers: set[int], count: int
) -> None:
    work = Work(calls.killed_by, frozenset(killers))
    results = list(run_tasks(Local(2), work, numbered(count)))
    assert len(results) == count
    killed = Failure("killed", "3 workers died of it")
    assert dict(results) == {n: killed if n in killers else n**2 for n in range(count)}


def test_a_worker_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    results = list(run_tasks(Local(2), Work(calls.killed_once, tmp_path), numbered(4)))
    assert sorted(results) == list(numbered(4))


def test_items_that_cannot_be_made_leave_no_process(tmp_path: Path) -> None:
    def items() -> Iterator[tuple[int, int]]:
        yield 0, 0
        wait_for_workers(tmp_path, 1)
        raise InputError("no more")

    with pytest.raises(InputError, match="no more"):
        list(run_tasks(Local(2), Work(calls.note_and_sleep, tmp_path), items()))
    assert_gone(tmp_path)


# Drivers of their own

DRIVER = """
    import sys, threading
    from pathlib import Path
    from kvsim.cli.main import _interrupted
    from kvsim.study.local import Local
    from kvsim.study.tasks import Work, run_tasks
    from tests.study import calls
    import signal

    if __name__ == "__main__":
        signal.signal(signal.SIGTERM, _interrupted)
        folder = Path(sys.argv[1])
        for result in run_tasks(Local(2), Work(calls.note_and_sleep, folder), enumerate(range(9))):
            print(result)
"""


def started(folder: Path, script: str) -> "subprocess.Popen[str]":
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(path), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def workers(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.worker")]


def wait_for_workers(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(workers(folder)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_gone(folder: Path) -> None:
    """Check that the workers end within seconds."""
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in workers(folder)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_driver_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    driver = started(tmp_path, DRIVER)
    wait_for_workers(tmp_path, 2)
    os.killpg(driver.pid, number) if number == signal.SIGINT else driver.send_signal(number)
    out, err = driver.communicate(timeout=20)
    assert driver.returncode != 0
    assert out == ""
    assert_gone(tmp_path)
    if number == signal.SIGTERM:
        assert err == "interrupted\n"
    assert "BrokenProcessPool" not in err


def test_an_interrupt_while_workers_start_is_told_once(tmp_path: Path) -> None:
    loud = DRIVER.replace("signal.signal(signal.SIGTERM", "signal.signal(signal.SIGINT")
    driver = started(tmp_path, loud)
    deadline = time.monotonic() + 60
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children")
    while children.exists() and len(children.read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.killpg(driver.pid, signal.SIGINT)
    _, err = driver.communicate(timeout=20)
    assert err == "interrupted\n"


UNGUARDED = """
    from operator import add
    from kvsim.errors import InputError
    from kvsim.study.local import Local
    from kvsim.study.tasks import Work, run_tasks

    try:
        print(list(run_tasks(Local(2), Work(add, 1), enumerate(range(3)))))
    except InputError as error:
        print(error)
"""


def test_a_script_without_a_guard_is_told_once_what_it_lacks(tmp_path: Path) -> None:
    out, err = started(tmp_path, UNGUARDED).communicate(timeout=60)
    assert out.startswith("the worker processes end before they have begun")
    assert 'if __name__ == "__main__":' in out
    assert out.count("\n") == 1
    assert err == ""
