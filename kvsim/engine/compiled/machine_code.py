"""The loop's machine code: kept in the user's cache directory, loaded without numba.

numba takes 20 s to compile the loop, and almost a second to load what it has compiled. So another
process compiles, once for a machine and these sources, and LLVM alone loads the object file: in
some hundredths of a second.
"""

import ctypes
import hashlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kvsim.tables
from kvsim.engine.compiled.jit import BUILDER
from kvsim.engine.compiled.layout import Cost, Replicas
from kvsim.errors import require

Advance = Callable[[Replicas, Cost], int]

_ROOT = str(Path(kvsim.tables.__file__).parents[1])
_PATIENCE_S = 600  # compiling takes 20 s, several times that on a busy machine
_DIGEST_BYTES = hashlib.sha256().digest_size
# What numba's own wrappers and error paths would call. The loop has neither errors nor objects.
_NEVER_CALLED = (
    "NRT_Free",
    "NRT_MemInfo_call_dtor",
    "NRT_adapt_ndarray_from_python",
    "numba_do_raise",
    "numba_gil_ensure",
    "numba_gil_release",
    "numba_runtime_build_excinfo_struct",
    "numba_unpickle",
)


def can_compile() -> bool:
    """Tell whether numba is there (`kvsim[fast]`) and hasn't failed; untried on Windows."""
    if sys.platform == "win32" or find_spec("numba") is None:
        return False
    return not failure().exists()


def is_kept() -> bool:
    """Tell whether the loop was compiled on this machine before."""
    return can_compile() and _place().is_file()


@cache
def load() -> Advance | None:
    """Return the compiled `advance`; compile it first if need be.

    None if that can't be done: the loop of objects does the same. What numba says then is kept
    beside the place of the machine code, so that nobody tries again.
    """
    try:
        if not _place().is_file():
            _compile(_place())
        name, object_file = _unpacked(_place().read_bytes())
        return _Function(name, object_file)
    except ValueError:  # the file is damaged: the next process compiles anew
        _place().unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        _keep_failure(str(error))
    except subprocess.CalledProcessError as error:
        if error.returncode > 0:  # else it was killed, perhaps with this process
            _keep_failure(error.stderr.decode(errors="replace"))
    return None


@cache
def compile_aside() -> None:
    """Let another process compile, which goes on when this one ends; at most one a machine."""
    mark = _place().with_suffix(".begun")
    with suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        if mark.exists() and time.time() - mark.stat().st_mtime > _PATIENCE_S:
            mark.unlink(missing_ok=True)  # whoever began is gone
        mark.touch(exist_ok=False)
        null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        environment = os.environ | {"PYTHONPATH": _ROOT}
        command = [sys.executable, "-m", __package__]
        os.posix_spawn(sys.executable, command, environment, file_actions=null, setpgroup=0)


def _unpacked(content: bytes) -> tuple[str, bytes]:
    """Return the name and the object file; LLVM would crash at one that is damaged."""
    digest, packed = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(packed).digest() != digest:
        raise ValueError("the file of machine code is damaged")
    name, object_file = pickle.loads(packed)
    return name, object_file


class _Function:
    """A function of an object file, called as numba calls it."""

    def __init__(self, name: str, object_file: bytes) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
        for symbol in _NEVER_CALLED:
            llvm.add_symbol(symbol, abort)
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(object_file))
        self._engine.finalize_object()
        self._address = self._engine.get_function_address(name)

    def __call__(self, replicas: Replicas, cost: Cost) -> int:
        values: list[Any] = []
        kinds: list[Any] = []
        for array in (*replicas, *cost):
            assert array.flags.c_contiguous
            # numba's array: two owners, size, size of an item, data, shape, strides.
            values += [None, None, array.size, array.itemsize, array.ctypes.data]
            values += [*array.shape, *array.strides]
            kinds += [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]
            kinds += [ctypes.c_int64] * (2 * array.ndim)
        result, error = ctypes.c_int64(), ctypes.c_void_p()
        call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *kinds)(
            self._address
        )
        status = call(ctypes.addressof(result), ctypes.addressof(error), *values)
        require(status == 0, "the compiled loop raises nothing")
        return result.value


@cache
def _place() -> Path:
    """Return where the machine code of these very sources lies, for this processor."""
    import llvmlite.binding as llvm

    digest = hashlib.sha256()
    for path in (*sorted(Path(__file__).parent.glob("*.py")), Path(kvsim.tables.__file__)):
        digest.update(path.read_bytes())
    machine = (llvm.get_host_cpu_name(), str(llvm.get_host_cpu_features()), sys.version)
    digest.update(repr((machine, version("numba"), version("llvmlite"))).encode())
    return _user_cache_dir() / "kvsim" / f"loop-{digest.hexdigest()[:24]}"


def failure() -> Path:
    """Return where it is kept why numba couldn't compile."""
    return _place().with_suffix(".failed")


def _keep_failure(reason: str) -> None:
    with suppress(OSError):
        failure().write_text(reason, encoding="utf-8")


def _user_cache_dir() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    given = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return Path(given) if given else Path.home() / ".cache"


def _compile(place: Path) -> None:
    """Compile in another process; several may do so at once, and one of them is the last."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        file = Path(folder) / "loop"
        environment = os.environ | {"NUMBA_CACHE_DIR": folder, "PYTHONPATH": _ROOT}
        command = [sys.executable, "-m", BUILDER, str(file)]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        packed = file.read_bytes()
        file.write_bytes(hashlib.sha256(packed).digest() + packed)
        file.replace(place)
        place.with_suffix(".begun").unlink(missing_ok=True)
