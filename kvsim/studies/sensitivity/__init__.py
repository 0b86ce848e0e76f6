"""Which inputs move a figure: one at a time (`tornado`), or all together (`indices`).

Both ask a `Model` for values; `simulated` is the model that simulates a scenario.
"""
