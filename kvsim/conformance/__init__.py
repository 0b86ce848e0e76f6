"""Is kvsim's engine the one that was recorded? Schedules of a real scheduler, replayed, compared.

`recording` reads a file, `replay` drives the production engine through it, `compare` tells the
first difference. The format is that of `docs/conformance.md`.
"""
