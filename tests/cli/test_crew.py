import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="the system has no such signal")
def test_a_command_is_told_of_a_worker_that_has_died_and_goes_on():
    """Elsewhere it ends where nobody reads what it writes; a dead worker reads nothing either."""
    code = """
        import os, signal
        from kvsim.cli.crew import crew

        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        reader, writer = os.pipe()
        os.close(reader)
        with crew(2):
            try:
                os.write(writer, b"work")
            except BrokenPipeError:
                print("told", flush=True)
        os.write(writer, b"an answer")
        print("never")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == "told\n", done.stderr
    assert done.returncode == -signal.SIGPIPE
