"""Questions that take many simulations: each room here asks one, and makes its points itself.

`kvsim.study` runs them. A room has no name of the Python API's functions, `kvsim.sweep` and others.
"""
