"""Policies are found by the names of their files; a field takes those of one package."""

import sys
from typing import Annotated

import pytest
from pydantic import ValidationError

from kvsim.engine import routers
from kvsim.engine.allocators.paged import Paged
from kvsim.engine.routers.random import Random
from kvsim.policy import OneOf, Parameters, Policy, kinds_in, policies_in, policy_of
from kvsim.workload import arrivals, lengths
from kvsim.workload.arrivals.trace import TraceArrivals
from kvsim.workload.lengths.trace import TraceLengths

IMPORTS = "from typing import Literal\nfrom kvsim.policy import Policy\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a package that has one policy, in the file `plain`."""
    folder = tmp_path / "own_policies"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "_shared.py").touch()
    text = f'{IMPORTS}class Plain(Policy):\n    kind: Literal["plain"] = "plain"\n'
    (folder / "plain.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import own_policies

    yield own_policies
    for name in [name for name in sys.modules if name.startswith("own_policies")]:
        del sys.modules[name]


def test_policies_are_found_by_the_names_of_their_files(package):
    assert kinds_in(package) == ["plain"]
    assert [policy.__name__ for policy in policies_in(package)] == ["Plain"]
    assert policy_of(package, "plain")().kind == "plain"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('class Other(Policy):\n    kind: Literal["other"] = "other"\n', "'other'"),
        ("class Other(Policy):\n    kind: Literal['late']\n", "none with a kind"),
        ("from own_policies.plain import Plain\n", "none with a kind"),
    ],
)
def test_a_file_without_its_policy_is_told_with_what_it_holds(package, tmp_path, text, what):
    (tmp_path / "own_policies" / "late.py").write_text(IMPORTS + text)
    expected = f"own_policies.late .* kind is by default 'late', .* it holds {what}$"
    with pytest.raises(LookupError, match=expected):
        policy_of(package, "late")


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
