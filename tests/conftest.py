from hypothesis import settings

import kvsim.engine.compiled

# A machine that is busy with something else must not fail a test.
settings.register_profile("kvsim", deadline=None)
settings.load_profile("kvsim")


def pytest_runtest_setup():
    """Whether a run is compiled goes by what its process has run: in tests, by the test alone."""
    kvsim.engine.compiled._requests = 0
