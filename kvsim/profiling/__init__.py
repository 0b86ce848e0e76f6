"""Kernel timings of the user's own GPU: a model's shapes → timed in torch → tables.

`shapes` says what an engine would compute, `kernels` and `collectives` run it in torch, `timing`
takes the time, `measure` goes through all of it, and `tables` writes what came out.
"""
