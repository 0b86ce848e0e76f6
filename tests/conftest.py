from hypothesis import settings

# A machine that is busy with something else must not fail a test.
settings.register_profile("kvsim", deadline=None)
settings.load_profile("kvsim")
