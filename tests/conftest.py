import signal

import pytest
from hypothesis import settings

import kvsim.engine.compiled

# A machine that is busy with something else must not fail a test.
settings.register_profile("kvsim", deadline=None)
settings.load_profile("kvsim")


def pytest_runtest_setup():
    """Whether a run is compiled goes by what its process has run: in tests, by the test alone."""
    kvsim.engine.compiled._requests = 0


@pytest.fixture(autouse=True)
def _own_signals():
    """Commands that run in this process set signals, of which later tests would die."""
    numbers = [number for number in signal.valid_signals() if signal.getsignal(number) is not None]
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
