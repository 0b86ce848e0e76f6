"""A crew of the workers of a Dask cluster.

Dask's scheduler deals out the items, through its interface of `concurrent.futures`, and has what a
dead worker had in hand done again elsewhere. Workers need kvsim in the driver's version, but not
its disk: the files that a scenario names travel with the work. The scheduler doesn't need kvsim:
the tasks that it sees are made of functions of Python's library.
"""

import hashlib
import operator
import pickle
import pkgutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import kvsim
from kvsim.copies import with_copies
from kvsim.errors import InputError, Problem
from kvsim.scenario.load import ScenarioFile
from kvsim.study.point import Point, files_of_point
from kvsim.study.tasks import Crew, DeadWorkerError, Work

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")

_CONNECT_S = 5
_LOOK_S = 1.0  # between two looks at who is there
_PATIENCE_S = 300.0  # clusters that grow as there is work begin with nobody


def dask_crew(address: str, patience_s: float = _PATIENCE_S) -> Crew:
    """Return the workers of a cluster, those that join later included.

    Args:
        address: Of the scheduler, such as `tcp://10.0.0.7:8786`.
        patience_s: So long the cluster may have no worker at all.

    Raises:
        InputError: `distributed` is not installed, no scheduler answers at the address, or a worker
            has another version of kvsim, or none.
    """
    return Cluster(address, patience_s)


class Cluster:
    """See `dask_crew`."""

    def __init__(self, address: str, patience_s: float) -> None:
        self.size = 1
        self._address = address
        self._patience_s = patience_s
        self._waiting: set[Future[Any]] = set()
        self._connect()

    def start(self, work: Work[Any, Any, Any]) -> None:
        """See `Crew`."""
        if self._left.is_set():
            self._connect()
        self._scenarios = list(_within(work.shared, ScenarioFile))
        self._cargo = _Cargo(self._client)
        attempt = partial(_attempt, kvsim.__version__, work)
        self._attempt = self._cargo.load(pickle.dumps(attempt), pickle.loads)
        self._refuse_others()

    def submit(self, item: Any) -> "Future[Any]":
        """See `Crew`."""
        outcome: Future[Any] = Future()
        try:
            packed = pickle.dumps(item)
        except Exception as error:  # whatever an object raises that can't be pickled
            outcome.set_exception(error)
            return outcome
        self._waiting.add(outcome)
        try:
            files = self._cargo.load_files(_files_read(self._scenarios, item))
            done = self._executor.submit(operator.call, self._attempt, *files, packed)
        except Exception as error:  # Dask's are of many kinds
            self._tell(outcome, error=self._lost(error))
        else:
            done.add_done_callback(lambda done: self._pass_on(done, outcome))
        return outcome

    def stop(self) -> None:
        """See `Crew`."""
        if not self._left.is_set():
            self._left.set()
            self._executor.shutdown(wait=False)
            self._client.close()

    def _connect(self) -> None:
        self._client = _client_of(self._address)
        self._executor = self._client.get_executor(pure=False)
        self._left = threading.Event()
        threading.Thread(target=self._watch, args=(self._client, self._left), daemon=True).start()
        try:
            self._refuse_others()
        except InputError:
            self.stop()
            raise

    def _refuse_others(self) -> None:
        """Refuse workers of another version before they are sent what only kvsim knows."""
        ours, problems = f"kvsim {kvsim.__version__}", []
        try:
            answers = self._client.run(pkgutil.resolve_name, "kvsim:__version__", on_error="return")
        except OSError as error:
            raise self._lost(error) from error
        for worker, theirs in sorted(answers.items()):
            if isinstance(theirs, ImportError | AttributeError):
                problems.append(f"worker {worker} has no kvsim; here is {ours}")
            elif theirs != kvsim.__version__ and isinstance(theirs, str):
                problems.append(f"worker {worker} has kvsim {theirs}; here is {ours}")
        if problems:
            raise InputError(*problems)

    def _watch(self, client: "Client", left: threading.Event) -> None:
        """Look how many there are; give up when there has been nobody for long."""
        seen_s = time.monotonic()
        while not left.wait(_LOOK_S):
            with suppress(Exception):  # the scheduler may be away for a moment
                self.size = sum(client.nthreads().values())
                seen_s = time.monotonic() if self.size else seen_s
            if time.monotonic() - seen_s > self._patience_s:
                lack = f"the cluster at {self._address} has had no worker for"
                for outcome in list(self._waiting):
                    self._tell(outcome, error=InputError(f"{lack} {self._patience_s:g} s"))

    def _pass_on(self, done: "Future[bytes]", outcome: "Future[Any]") -> None:
        """Tell the outcome in words that don't depend on the kind of crew."""
        from distributed import KilledWorker

        try:
            self._tell(outcome, pickle.loads(done.result()))
        except CancelledError as error:
            self._tell(outcome, error=self._lost(error))
        except KilledWorker as error:
            self._tell(outcome, error=DeadWorkerError(error.allowed_failures + 1))
        except (ImportError, AttributeError) as error:
            lack = f"a worker that has joined lacks kvsim {kvsim.__version__}: {error}"
            self._tell(outcome, error=InputError(lack))
        except Exception as error:
            self._tell(outcome, error=error)

    def _lost(self, error: BaseException) -> InputError:
        return InputError(f"the cluster at {self._address} was lost: {str(error) or 'no answer'}")

    def _tell(
        self, outcome: "Future[Any]", result: Any = None, error: Exception | None = None
    ) -> None:
        self._waiting.discard(outcome)
        with suppress(InvalidStateError):  # it was given up meanwhile
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error)


class _Cargo:
    """What many items have in common: sent once, and from worker to worker as they need it.

    It is made by tasks, not scattered, so that it outlives all workers.
    """

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._futures: dict[str, Any] = {}
        self._digests: dict[tuple[Path, int, int], str] = {}

    def load(self, content: bytes, read: Callable[[bytes], Any]) -> Any:
        """Return Dask's future of what `read` makes of some content."""
        return self._futures[self._load(content, read)]

    def load_files(self, paths: Iterable[Path]) -> tuple[dict[Path, str], list[Any]]:
        """Return the digests of files by path, and the futures of their contents.

        What can't be read is left out: who needs it will tell.
        """
        found = {}
        for path in paths:
            with suppress(OSError, ValueError):
                state = path.stat()
                key = path, state.st_mtime_ns, state.st_size
                if key not in self._digests:
                    self._digests[key] = self._load(path.read_bytes(), bytes)
                found[path] = self._digests[key]
        return found, [self._futures[digest] for digest in found.values()]

    def _load(self, content: bytes, read: Callable[[bytes], Any]) -> str:
        import dask

        digest = hashlib.sha256(content).hexdigest()
        if digest not in self._futures:
            # Dask would have large data read by the workers, which may not see this disk.
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
                self._futures[digest] = self._client.submit(read, content, key=f"kvsim-{digest}")
        return digest


def _files_read(scenarios: Iterable[ScenarioFile], item: Any) -> set[Path]:
    """Return the files that scenarios read at the points in an item, or in all their variants."""
    found: set[Path] = set()
    points = list(_within(item, Point))
    for file in (*scenarios, *_within(item, ScenarioFile)):
        for point in points or [Point(variant=name) for name in file.variants]:
            found |= files_of_point(file, point)
    return found


def _within(value: Any, kind: type[T]) -> Iterator[T]:
    """Yield what is of a kind in a value: itself, or in its items, values or fields."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, tuple | list | Mapping):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _within(inner, kind)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _within(getattr(value, field.name), kind)


def _client_of(address: str) -> "Client":
    try:
        from distributed import Client
        from distributed.comm import get_address_host_port
    except ImportError as error:
        lack = "workers of a cluster need the extra: pip install 'kvsim[dask]'"
        raise InputError(lack) from error
    client: Future[Client] = Future()

    def connect() -> None:
        try:
            client.set_result(Client(address, timeout=_CONNECT_S, set_as_default=False))
        except BaseException as error:
            client.set_exception(error)

    try:
        get_address_host_port(address, strict=True)
        # In a thread: who speaks another protocol there keeps the client waiting for ever.
        threading.Thread(target=connect, daemon=True).start()
        return client.result(timeout=2 * _CONNECT_S)
    except TimeoutError as error:
        raise InputError(f"no Dask scheduler answers at {address}") from error
    except ValueError as error:
        what = f"{address!r} is no address of a Dask scheduler, such as tcp://10.0.0.7:8786"
        raise InputError(f"{what}: {error}") from error
    except OSError as error:
        raise InputError(f"no Dask scheduler answers at {address}: {error}") from error


# In a worker

_writing = threading.Lock()


def _attempt(
    version: str,
    work: Work[Any, Any, Any],
    files: Mapping[Path, str],
    contents: Sequence[bytes],
    item: bytes,
) -> bytes:
    """Return a packed result.

    Args:
        version: Of kvsim at the driver.
        work: What is done.
        files: Path of a file at the driver → digest of its content.
        contents: Of these files.
        item: Packed.

    Raises:
        InputError: kvsim has another version here: this worker joined later.
    """
    if version != kvsim.__version__:
        from distributed import get_worker

        worker, theirs = get_worker().address, kvsim.__version__
        raise InputError(f"worker {worker} has kvsim {theirs}; the driver has {version}")
    copies = {
        path: _copy(digest, path.name, content)
        for (path, digest), content in zip(files.items(), contents, strict=True)
    }
    return replace(work, call=partial(_call_with, copies, work.call)).attempt_packed(item)


def _call_with(
    copies: Mapping[Path, Path], call: Callable[[Any, Any], Any], shared: Any, item: Any
) -> Any:
    """Make a call with copies of files; what is wrong in them is told by their own paths."""
    try:
        with with_copies(copies):
            return call(shared, item)
    except InputError as error:
        raise InputError(*(_as_there(problem, copies) for problem in error.problems)) from None


def _as_there(problem: Problem, copies: Mapping[Path, Path]) -> Problem:
    for path, copy in copies.items():
        message = problem.message.replace(str(copy), str(path))
        file = problem.file and problem.file.replace(str(copy), str(path))
        problem = replace(problem, message=message, file=file)
    return problem


def _copy(digest: str, name: str, content: bytes) -> Path:
    place = Path(_folder().name) / digest / name
    with _writing:
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(content)
    return place


@cache
def _folder() -> "TemporaryDirectory[str]":
    """Return the folder of the copies; Dask clears it away if this process is killed."""
    from distributed import get_worker

    return TemporaryDirectory(prefix="kvsim-", dir=get_worker().local_directory)
