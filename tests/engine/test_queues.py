"""Both queues against a plain list that is sorted again for every question."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.queues import new_queue
from kvsim.engine.request import Request

ARRIVALS = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), max_size=30)
OPERATIONS = st.lists(st.sampled_from(["append", "popleft", "requeue", "remove"]), max_size=60)


class PlainQueue:
    def __init__(self, policy):
        self.requests, self.by_priority = [], policy == "priority"

    def append(self, request):
        self.requests.append(request)
        self._sort()

    def requeue(self, request):
        self.requests.insert(0, request)
        self._sort()

    def _sort(self):
        if self.by_priority:
            self.requests.sort(key=lambda each: (each.priority, each.arrival_ns, each.number))


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@given(ARRIVALS, OPERATIONS, st.randoms(use_true_random=False))
def test_a_queue_is_the_list_that_its_policy_says(policy, arrivals, operations, random):
    to_come = [
        Request(number, 0, arrival, 1, 1, priority=priority)
        for number, (priority, arrival) in enumerate(arrivals)
    ]
    running, queue, plain = [], new_queue(policy), PlainQueue(policy)
    for operation in operations:
        if operation == "append" and to_come:
            request = to_come.pop(0)
            queue.append(request)
            plain.append(request)
        elif operation == "requeue" and running:
            request = running.pop(random.randrange(len(running)))
            queue.requeue(request)
            plain.requeue(request)
        elif operation == "popleft" and plain.requests:
            assert queue.head is plain.requests[0]
            running.append(plain.requests.pop(0))
            assert queue.popleft() is running[-1]
        elif operation == "remove" and plain.requests:
            request = plain.requests.pop(random.randrange(len(plain.requests)))
            queue.remove(request)
        assert len(queue) == len(plain.requests)
    while plain.requests:
        assert queue.popleft() is plain.requests.pop(0)
    assert not queue


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_who_does_not_wait_cannot_be_removed(policy):
    queue = new_queue(policy)
    for number in (0, 2):
        queue.append(Request(number, 0, 5, 1, 1))
    for number in (1, 3):
        with pytest.raises(ValueError, match=r"not in|doesn't wait"):
            queue.remove(Request(number, 0, 5, 1, 1))
    assert len(queue) == 2
