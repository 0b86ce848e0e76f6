"""Router and step loop once more, so that numba can compile them: the same rows, much sooner.

It does the plain case: vLLM V1's scheduler, first come first served, a paged cache in which no
prefix is found, clients that wait for nothing, routers that take the least loaded of all replicas
or of some drawn ones. `replica.py` does everything, and says what is right; tests compare every
value of every row.

`layout` names the places in arrays. `loop` sends requests and lets replicas go on, turn by turn;
`stretch` does steps in which nothing changes, `schedule` the others, `price` is what they cost, and
`books` has blocks, queue and rows. `build` compiles all this, and `machine_code` loads it. `state`
is how a run begins, `unwritten` what it has in its buffers, and `run` goes on to the end.
"""

# Loading machine code takes as long as so many requests do without it, and so does compiling it.
LEAST_REQUESTS, LEAST_TO_COMPILE = 1_000, 100_000

_requests = 0  # of this process, so far


def pays(requests: int) -> bool:
    """Tell whether to run so many requests compiled, if numba is installed (`kvsim[fast]`).

    It pays once a process has simulated so much that loading would have been made up for: then it
    never takes more than twice the time of the better choice. The same goes for compiling. Until
    then another process compiles, which nobody waits for, so that later runs find it done.
    """
    global _requests
    _requests += requests
    if _requests < LEAST_REQUESTS:
        return False
    from kvsim.engine.compiled.machine_code import can_compile, compile_aside, is_kept

    if is_kept():
        return True
    if not can_compile():
        return False
    if _requests < LEAST_TO_COMPILE:
        compile_aside()
        return False
    return True
