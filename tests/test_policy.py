"""A field that takes any policy of a package."""

from typing import Annotated

import pytest
from pydantic import ValidationError

from kvsim.engine import routers
from kvsim.engine.allocators.paged import Paged
from kvsim.engine.routers.random import Random
from kvsim.policy import OneOf, Parameters, Policy
from kvsim.workload import arrivals, lengths
from kvsim.workload.arrivals.trace import TraceArrivals
from kvsim.workload.lengths.trace import TraceLengths


class Routed(Parameters):
    routing: Annotated[Policy, OneOf(routers, "round_robin")]


def test_a_policy_stays_itself_and_one_of_another_package_is_none():
    routing = Random()
    assert Routed(routing=routing).routing is routing
    with pytest.raises(ValidationError, match="Input tag 'paged' found"):
        Routed(routing=Paged())


def test_equal_kinds_of_two_packages_are_told_apart():
    class Sent(Parameters):
        arrivals: Annotated[Policy, OneOf(arrivals)]

    class Drawn(Parameters):
        lengths: Annotated[Policy, OneOf(lengths)]

    log = TraceLengths(file="log.csv")
    assert Drawn(lengths=log).lengths is log
    with pytest.raises(ValidationError, match=f"instance of {TraceArrivals.__name__}"):
        Sent(arrivals=log)
