"""The step loop of one replica once more, so that numba can compile it: the same rows, much sooner.

It does the plain case: vLLM V1's scheduler, first come first served, a paged cache in which no
prefix is found, clients that wait for nothing. `replica.py` does everything, and says what is
right; tests compare every value of every row.

`layout` names the places in arrays, `price` is the cost of a step, `loop` decides, `build` compiles
and `machine_code` loads it; `replica` and `fleet` give it requests and write its rows.
"""

# Loading machine code takes as long as so many requests do without it, and so does compiling it.
LEAST_REQUESTS, LEAST_TO_COMPILE = 1_000, 100_000

_requests = 0  # of this process, so far


def pays(requests: int) -> bool:
    """Tell whether to run so many requests compiled, if numba is installed (`kvsim[fast]`).

    It pays once a process has simulated so much that loading would have been made up for: then it
    never takes more than twice the time of the better choice. The same goes for compiling.
    """
    global _requests
    _requests += requests
    if _requests < LEAST_REQUESTS:
        return False
    from kvsim.engine.compiled.machine_code import can_compile, is_kept

    return is_kept() or (_requests >= LEAST_TO_COMPILE and can_compile())
