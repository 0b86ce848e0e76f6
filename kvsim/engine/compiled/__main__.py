"""Compiles the loop ahead: `python -m kvsim.engine.compiled`."""

from kvsim.engine.compiled.machine_code import load

if __name__ == "__main__":
    load()
