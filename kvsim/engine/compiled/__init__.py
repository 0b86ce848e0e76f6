"""The step loop of one replica once more, so that numba can compile it: the same rows, much sooner.

It does the plain case: vLLM V1's scheduler, first come first served, a paged cache without prefix
caching, clients that wait for nothing. `replica.py` does everything, and says what is right; tests
compare every value of every row.

`layout` names the places in arrays, `price` is the cost of a step, `loop` decides, `replica` and
`fleet` give it requests and write its rows.
"""

from importlib.util import find_spec

# Loading machine code takes as long as so many requests without it (and compiling it, once on a
# machine, as long as twenty times as many).
LEAST_REQUESTS = 10_000

_requests = 0  # of this process, so far


def pays(requests: int) -> bool:
    """Tell whether to run so many requests compiled, if numba is installed (`kvsim[fast]`).

    It pays once a process has simulated so much that loading would have been made up for: then it
    never takes more than twice the time of the better choice.
    """
    global _requests
    _requests += requests
    return _requests >= LEAST_REQUESTS and find_spec("numba") is not None
