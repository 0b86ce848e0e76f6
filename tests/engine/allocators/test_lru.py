"""The least recently used part of the free queue against a list."""

from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.allocators._lru import LruQueue

BLOCKS = st.integers(0, 9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.lists(BLOCKS, unique=True)),
        st.tuples(st.just("remove"), st.lists(BLOCKS, unique=True)),
        st.tuples(st.just("take"), st.integers(0, 10)),
    ),
    max_size=30,
)


@given(STEPS)
def test_blocks_leave_in_the_order_in_which_they_came(steps):
    queue, naive = LruQueue(), []
    for verb, what in steps:
        if verb == "extend":
            blocks = [block for block in what if block not in naive]
            queue.extend(blocks)
            naive += blocks
        elif verb == "remove":
            blocks = [block for block in what if block in naive]
            assert queue.among(what) == blocks
            queue.remove(blocks)
            naive = [block for block in naive if block not in blocks]
        else:
            count = min(what, len(naive))
            assert queue.take(count) == naive[:count]
            del naive[:count]
        assert list(queue) == naive
        assert len(queue) == len(naive)
