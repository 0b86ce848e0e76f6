import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

import kvsim
import kvsim.study.dask
from kvsim.errors import InputError
from kvsim.scenario.load import ScenarioFile, load_scenario
from kvsim.study.dask import Cluster, dask_crew
from kvsim.study.here import Here
from kvsim.study.point import Point, run_point
from kvsim.study.tasks import Failure, Work, run_tasks
from tests.study import calls

TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
    f"{number / 4},{100 + number},{10 + number % 7}\n" for number in range(40)
)
SCENARIO = """\
model: models/tiny
gpu: {name: mine, hbm_bytes: 80.0e9, hbm_bytes_per_s: 2.0e12, bf16_flop_per_s: 4.0e14}
cost: {profile: ../profile.yaml}
workload:
  arrivals:
    kind: trace
    file: trace.csv
    columns: {arrival: arrival_s, prompt_tokens: prompt_tokens, output_tokens: output_tokens}
  lengths: {kind: trace}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    two_deaths = {"distributed.scheduler.allowed-failures": 1}  # by default four: takes long
    with (
        dask.config.set(two_deaths),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            host="127.0.0.1",
            silence_logs=50,
        ) as local,
    ):
        yield local


@pytest.fixture
def crew(cluster: LocalCluster) -> Iterator[Cluster]:
    found = dask_crew(cluster.scheduler_address)
    assert isinstance(found, Cluster)
    yield found
    found.stop()


def numbered(count: int) -> Iterator[tuple[int, int]]:
    return ((number, number) for number in range(count))


def test_results_are_those_of_this_process(crew: Cluster) -> None:
    for work in (Work(calls.divide, 6), Work(calls.refuse, None), Work(calls.exhaust, None)):
        here = dict(run_tasks(Here(), work, numbered(5)))
        there = dict(run_tasks(crew, work, numbered(5)))
        assert there.keys() == here.keys()
        for key, result in here.items():
            if isinstance(result, Failure) and result.kind == "defect":
                continue
            assert there[key] == result


def figures(file: ScenarioFile, point: Point) -> dict[str, float]:
    return dict(run_point(file, point).summary()["figures"])


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScenarioFile:
    """A scenario that reads files of all kinds, by paths that mean nothing to the workers."""
    data, folder = Path(kvsim.__file__).parent / "data", tmp_path / "scenarios"
    (folder / "models" / "tiny").mkdir(parents=True)
    config = (data / "models" / "facebook--opt-13b.json").read_text(encoding="utf-8")
    (folder / "models" / "tiny" / "config.json").write_text(config, encoding="utf-8")
    profile = (data / "profiles" / "vllm-0.23.yaml").read_text(encoding="utf-8")
    (tmp_path / "profile.yaml").write_text(profile, encoding="utf-8")
    (folder / "trace.csv").write_text(TRACE, encoding="utf-8")
    (folder / "half.csv").write_text("".join(TRACE.splitlines(True)[:20]), encoding="utf-8")
    (folder / "bad.csv").write_text(TRACE + "11,nothing,2\n", encoding="utf-8")
    (folder / "s.yaml").write_text(SCENARIO, encoding="utf-8")
    monkeypatch.chdir(folder)
    return load_scenario(Path("s.yaml"))


def test_files_of_a_scenario_and_its_points_travel_with_them(
    crew: Cluster, scenario: ScenarioFile
) -> None:
    trace = "workload.arrivals.file"
    points = [
        Point(),
        Point({"seed": 3}),
        Point({trace: "half.csv"}),
        Point({trace: str(Path("half.csv").absolute())}),
        Point({trace: "../scenarios/half.csv", "engine.max_num_seqs": 1}),
        Point({trace: "bad.csv"}),
        Point({trace: "none.csv"}),
        Point({"model": "models/none"}),
        Point({"no.such": 1}),
    ]
    items = list(enumerate(points))
    here = dict(run_tasks(Here(), Work(figures, scenario), items))
    there = dict(run_tasks(crew, Work(figures, scenario), items))
    assert there == here
    kinds = [getattr(here[key], "kind", "done") for key in range(len(points))]
    assert kinds == ["done"] * 5 + ["refused"] * 4
    assert here[0] != here[2] == here[3]
    assert "bad.csv" in here[5].message  # type: ignore[union-attr]


def first_figure(shared: dict[str, tuple[ScenarioFile, str]], points: list[Point]) -> float:
    file, name = shared["one"]
    return figures(file, points[0])[name]


def summary_of(shared: object, file: ScenarioFile) -> object:
    return run_point(file, Point()).summary()


def test_files_of_scenarios_within_something_else_travel_too(
    crew: Cluster, scenario: ScenarioFile
) -> None:
    work = Work(first_figure, {"one": (scenario, "requests_per_s")})
    items = [(0, [Point({"workload.arrivals.file": "half.csv"})]), (1, [Point()])]
    assert dict(run_tasks(crew, work, items)) == dict(run_tasks(Here(), work, items))
    held = Work(summary_of, None), [(0, scenario)]
    assert dict(run_tasks(crew, *held)) == dict(run_tasks(Here(), *held))


def test_a_file_that_has_changed_is_sent_anew(crew: Cluster, scenario: ScenarioFile) -> None:
    first = dict(run_tasks(crew, Work(figures, scenario), [(0, Point())]))
    Path("trace.csv").write_bytes(Path("half.csv").read_bytes())
    second = dict(run_tasks(crew, Work(figures, scenario), [(0, Point())]))
    assert first != second == dict(run_tasks(Here(), Work(figures, scenario), [(0, Point())]))


def kill_a_worker(cluster: LocalCluster) -> None:
    """Kill one of them; its nanny starts another."""
    os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)


def test_a_worker_that_is_killed_in_the_middle_loses_nothing(
    cluster: LocalCluster, crew: Cluster, scenario: ScenarioFile
) -> None:
    points = [(n, Point({"seed": n, "engine.max_num_seqs": 1 + n % 3})) for n in range(16)]
    here = dict(run_tasks(Here(), Work(figures, scenario), points))
    there = {}
    for key, result in run_tasks(crew, Work(figures, scenario), points):
        assert key not in there
        there[key] = result
        if len(there) == 3:
            kill_a_worker(cluster)
    assert there == here


def test_an_item_that_kills_workers_is_named_and_the_others_finish(crew: Cluster) -> None:
    results = list(run_tasks(crew, Work(calls.killed_by, frozenset({2})), numbered(8)))
    assert len(results) == 8
    found = dict(results)
    failure = found.pop(2)
    assert isinstance(failure, Failure)
    assert failure == Failure("killed", "3 workers died of it")  # one that counts, and two alone
    assert found == {n: n**2 for n in range(8) if n != 2}


def test_what_cannot_be_sent_is_a_defect_of_one_item(crew: Cluster) -> None:
    results = dict(run_tasks(crew, Work(calls.unsendable, None), numbered(4)))
    assert [getattr(results[n], "kind", results[n]) for n in range(4)] == [0, "defect", 2, "defect"]
    items = [(0, 1), (1, lambda: 1)]
    results = dict(run_tasks(crew, Work(calls.add, 1), items))  # type: ignore[arg-type]
    assert results[0] == 2
    assert isinstance(results[1], Failure)


def test_a_crew_that_was_stopped_can_be_started_again(crew: Cluster) -> None:
    results = run_tasks(crew, Work(calls.rest, None), numbered(100))
    next(results)
    results.close()
    assert dict(run_tasks(crew, Work(calls.add, 1), [(0, 0)])) == {0: 1}


# Clusters that are not as they should be


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Start a program of Dask's with what it finds as kvsim."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, version: str | None = None) -> "subprocess.Popen[bytes]":
        package = tmp_path / f"kvsim {version}" / "kvsim"
        package.mkdir(parents=True, exist_ok=True)
        code = f"__version__ = {version!r}" if version else "raise ImportError('no kvsim')"
        (package / "__init__.py").write_text(code, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            f"distributed.cli.{words[0]}",
            *words[1:],
            "--no-dashboard",
        ]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(package.parent)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    start.started = started  # type: ignore[attr-defined]
    yield start
    for process in started:
        process.kill()
    for process in started:
        process.wait()


@pytest.fixture
def address(run: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path) -> str:
    """A scheduler without workers."""
    file = tmp_path / "scheduler.json"
    run("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
    deadline = time.monotonic() + 30
    while not file.exists() or not file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found: str = json.loads(file.read_text())["address"]
    return found


def test_nobody_at_the_address() -> None:
    began = time.monotonic()
    with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        dask_crew("tcp://127.0.0.1:9")
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("address", ["nonsense", "", "tcp://host", "foo://host:1", "host:port"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(InputError, match="is no address of a Dask scheduler"):
        dask_crew(address)


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"kvsim\[dask\]"):
        dask_crew("tcp://127.0.0.1:9")


def test_workers_of_another_version_or_without_kvsim_are_refused(
    address: str, run: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    run("dask_worker", address, "--nthreads", "1", "--no-nanny", version="0.0.9")
    run("dask_worker", address, "--nthreads", "1", "--no-nanny")
    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=30)
    with pytest.raises(InputError) as refused:
        dask_crew(address)
    text = str(refused.value)
    assert f"has kvsim 0.0.9; here is kvsim {kvsim.__version__}" in text
    assert f"has no kvsim; here is kvsim {kvsim.__version__}" in text


@pytest.mark.parametrize("version", ["0.0.9", None])
def test_a_worker_of_another_version_that_joins_later_ends_the_work(
    address: str, run: Callable[..., "subprocess.Popen[bytes]"], version: str | None
) -> None:
    crew = dask_crew(address, patience_s=60)
    results = run_tasks(crew, Work(calls.add, 1), numbered(3))
    run("dask_worker", address, "--nthreads", "1", "--no-nanny", version=version)
    with pytest.raises(InputError, match=f"lacks kvsim {kvsim.__version__}"):
        list(results)


def test_a_cluster_without_workers_is_waited_for_and_given_up(address: str) -> None:
    crew = dask_crew(address, patience_s=2)
    with pytest.raises(InputError, match=r"has had no worker for 2 s"):
        list(run_tasks(crew, Work(calls.add, 1), numbered(3)))


def test_a_scheduler_that_is_lost_is_told(
    run: Callable[..., "subprocess.Popen[bytes]"], address: str
) -> None:
    crew = dask_crew(address, patience_s=4)
    results = run_tasks(crew, Work(calls.rest, 1), numbered(3))
    run.started[0].kill()  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"no worker for|was lost"):
        list(results)


def test_a_server_that_speaks_another_protocol_is_no_scheduler(monkeypatch):
    monkeypatch.setattr(kvsim.study.dask, "_CONNECT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # takes the call, and says nothing
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(InputError, match="no Dask scheduler answers"):
            dask_crew(address).start(Work(pow, 1))
