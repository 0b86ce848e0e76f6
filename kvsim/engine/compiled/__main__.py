"""Compiles the loop ahead: `python -m kvsim.engine.compiled`."""

import sys
from importlib.util import find_spec

from kvsim.engine.compiled.machine_code import failure, load


def main() -> None:
    """Compile, or say why that can't be done."""
    if find_spec("numba") is None:
        sys.exit("numba is not installed: pip install 'kvsim[fast]'")
    if load() is None:
        reason = f"; {failure()} says why" if failure().exists() else ""
        sys.exit(f"the loop can't be compiled here, runs do without{reason}")


if __name__ == "__main__":
    main()
