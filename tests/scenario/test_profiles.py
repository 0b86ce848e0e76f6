"""Profiles: those that ship, and a user's own."""

import pytest

from kvsim.cost.front_end import FrontEnd
from kvsim.errors import InputError
from kvsim.scenario.profiles import DEFAULT_PROFILE, load_profile, profile_names

OWN = """\
engine: vllm
versions: ours
async_scheduling: false
overhead: {kind: none}
front_end: {request_s: 0.002, per_prompt_token_s: 0.000001}
basis: a stopwatch
"""


@pytest.mark.parametrize("name", profile_names())
def test_those_that_ship_say_on_what_they_rest(name):
    profile = load_profile(name)
    assert profile.basis
    assert profile.versions
    assert name.split("-")[0] == {"tensorrt_llm": "trtllm"}.get(profile.engine, profile.engine)
    assert 0 <= profile.front_end.busy_ns(0) + profile.front_end.rest_ns < 20_000_000


def test_the_default_is_one_of_them():
    assert DEFAULT_PROFILE in profile_names()


def test_a_file_beside_the_scenario_is_one(tmp_path):
    (tmp_path / "ours.yaml").write_text(OWN)
    profile = load_profile("ours.yaml", tmp_path)
    assert (profile.overhead.kind, profile.async_scheduling) == ("none", False)
    assert profile.front_end.busy_ns(1000) == 1_000_000
    assert profile.front_end.rest_ns == 2_000_000


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("engine: vllm", "engine: vlm", 1, "vlm"),
        ("kind: none", "kind: nine", 4, "nine"),
        ("request_s: 0.002", "request_s: -1", 5, "greater than or equal to 0"),
        ("basis: a stopwatch\n", "", None, "is required"),
        ("basis:", "bassis:", 6, "did you mean basis?"),
    ],
)
def test_a_mistake_has_its_line(tmp_path, old, new, line, message):
    path = tmp_path / "ours.yaml"
    path.write_text(OWN.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_profile(str(path))
    told = [p for p in caught.value.problems if message in p.message]
    assert told
    assert told[0].file == str(path)
    assert line is None or told[0].line == line


def test_a_name_that_nobody_knows_is_told():
    with pytest.raises(InputError, match="did you mean"):
        load_profile("vllm-0.2")


def test_the_front_end_takes_a_time_for_requests_and_one_for_tokens():
    front_end = FrontEnd(request_s=0.001, busy_s=0.0005, per_prompt_token_s=2e-6)
    assert [front_end.busy_ns(tokens) for tokens in (0, 1, 500)] == [500_000, 502_000, 1_500_000]
    assert front_end.rest_ns == 1_000_000
