"""Named random streams: a new stream shifts no other, and every draw has a seed."""

import hashlib

import numpy as np


def stream(root_seed: int, name: str, replication: int = 0) -> np.random.Generator:
    """Return the generator of one named stream.

    The stream depends on its name and not on the order in which streams are asked for, so that
    all variants of a scenario face the same draws (common random numbers).
    """
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    sequence = np.random.SeedSequence(root_seed, spawn_key=(key, replication))
    return np.random.Generator(np.random.PCG64(sequence))
