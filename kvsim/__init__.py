"""kvsim: how many GPUs, of which kind, for this traffic, and with which latency."""

__version__ = "0.1.0"
