"""Many simulations of one scenario: what a point is, how it is run in memory, who does the work.

`point` says what is simulated and gives the result in memory, `tasks` deals out calls to a `Crew`:
this process (`here`), processes of this machine (`local`), or a Dask cluster (`dask`). Sweeps,
searches and plans make points of their own, and decide what to keep of each result.
"""
