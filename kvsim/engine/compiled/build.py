"""Compiles the loop and writes its machine code: `python -m kvsim.engine.compiled.build FILE`.

This takes about 20 s, and only this process needs numba.
"""

import pickle
import sys
from pathlib import Path
from typing import Any, get_type_hints

from kvsim.engine.compiled.layout import DIMENSIONS, Cost, Floats, Ints, Replicas
from kvsim.engine.compiled.loop import advance


def machine_code() -> tuple[str, bytes]:
    """Return the name of the compiled `advance`, and an object file that has it."""
    import numba

    def type_of(kind: Any) -> Any:
        dtypes = {Ints: numba.int64, Floats: numba.float64}
        hints = get_type_hints(kind)
        arrays = [
            numba.types.Array(dtypes[hints[name]], DIMENSIONS[kind].get(name, 1), "C")
            for name in kind._fields
        ]
        return numba.types.NamedTuple(arrays, kind)

    function: Any = advance
    signature = (type_of(Replicas), type_of(Cost))
    function.compile(signature)
    compiled = function.overloads[signature]
    _, _, (object_file, _) = compiled.library.serialize_using_object_code()
    return compiled.fndesc.llvm_func_name, object_file


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(pickle.dumps(machine_code()))
