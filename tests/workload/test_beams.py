"""Who goes on in beam search: the law of parents, and the rows of a group."""

import numpy as np
import pytest
from pydantic import ValidationError

from kvsim.rng import stream
from kvsim.workload.beams import draw_beams
from kvsim.workload.build import build_requests
from kvsim.workload.parameters import Workload


def workload(**changes):
    return Workload(
        arrivals={"kind": "poisson", "rate_per_s": 1.0},
        lengths={
            "kind": "uniform",
            "prompt_min_tokens": 5,
            "prompt_max_tokens": 50,
            "output_min_tokens": 1,
            "output_max_tokens": 30,
        },
        num_requests=40,
        **changes,
    )


def common_tokens(parents, one, other):
    """How many choices back two beams come from one; all of them if they never do."""
    for back in range(len(parents)):
        if one == other:
            return back
        one, other = parents[-1 - back][one], parents[-1 - back][other]
    return len(parents)


@pytest.mark.parametrize(("width", "turnover"), [(2, 1.0), (6, 1.0), (4, 0.5), (6, 0.25)])
def test_two_beams_have_a_common_parent_as_often_as_the_law_says(width, turnover):
    beams = draw_beams(np.array([200_002]), width, turnover, stream(0, "beams"))
    assert beams.parents.shape == (200_000, width)
    same = beams.parents[:, 0] == beams.parents[:, 1]
    expected = turnover * (2 - turnover) / width
    spread = np.sqrt(expected * (1 - expected) / len(same))
    assert abs(same.mean() - expected) < 5 * spread


@pytest.mark.parametrize(("width", "turnover"), [(2, 1.0), (5, 1.0), (4, 0.3)])
def test_the_way_back_to_a_common_parent_is_geometric(width, turnover):
    choices, groups = 60, 4_000
    output_tokens = np.full(groups, choices + 2)
    beams = draw_beams(output_tokens, width, turnover, stream(1, "beams"))
    parents = beams.parents.reshape(groups, choices, width)
    back = np.array([common_tokens(each, 0, 1) for each in parents])
    once = turnover * (2 - turnover) / width
    mean = (1 - (1 - once) ** choices) / once  # of a geometric law that is cut at the beginning
    assert back.mean() == pytest.approx(mean, abs=5 * back.std() / np.sqrt(groups))


def test_without_turnover_no_beam_dies():
    beams = draw_beams(np.array([50, 3]), 5, 0.0, stream(0, "beams"))
    assert (beams.parents == np.arange(5)).all()
    assert [len(beams.of(group)) for group in range(2)] == [48 * 5, 5]


def test_answers_of_one_or_two_tokens_choose_nothing():
    beams = draw_beams(np.array([1, 2, 3]), 4, 1.0, stream(0, "beams"))
    assert beams.first.tolist() == [0, 0, 0, 1]
    assert beams.of(0) == beams.of(1) == b""


def test_a_group_of_beams_has_one_length_and_its_own_parents():
    table = build_requests(workload(beam_width=4), seed=7)
    assert len(table) == 160
    lengths = table.output_tokens.reshape(-1, 4)
    assert (lengths == lengths[:, :1]).all()
    assert table.group.tolist() == np.repeat(np.arange(40), 4).tolist()
    choices = np.diff(table.beams.first)
    assert choices.tolist() == np.maximum(lengths[:, 0] - 2, 0).tolist()
    again = build_requests(workload(beam_width=4), seed=7)
    other = build_requests(workload(beam_width=4, beam_turnover=0.5), seed=7)
    assert table.digest() == again.digest() != other.digest()
    assert (table.output_tokens == other.output_tokens).all()


def test_arrivals_and_lengths_are_those_without_beams():
    plain, searched = build_requests(workload(), seed=7), build_requests(workload(beam_width=3), 7)
    assert (searched.arrival_ns[::3] == plain.arrival_ns).all()
    assert (searched.output_tokens[::3] == plain.output_tokens).all()
    assert (searched.prompt_tokens[::3] == plain.prompt_tokens).all()
    assert plain.beams is None


def test_samples_may_be_alike():
    alike = build_requests(workload(n=3, samples_alike=True), seed=7).output_tokens.reshape(-1, 3)
    apart = build_requests(workload(n=3), seed=7).output_tokens.reshape(-1, 3)
    assert (alike == apart[:, :1]).all()
    assert (apart != apart[:, :1]).any()


def test_system_prompts_are_marked_where_a_prompt_law_has_them():
    prompts = {"kind": "shared_prefix", "prefix_tokens": 12, "prefix_max_tokens": 30, "groups": 3}
    table = build_requests(workload(prompts=prompts, n=2), seed=0)
    first = table.segments.first[:-1]
    assert (table.segments.tokens[first] == table.prefix_tokens).all()
    assert (table.prefix_tokens < table.prompt_tokens).all()
    assert len(set(table.segments.seed[first].tolist())) == 3
    assert build_requests(workload(), seed=0).prefix_tokens is None


def test_one_samples_or_searches():
    with pytest.raises(ValidationError, match="samples or searches"):
        workload(n=2, beam_width=2)


def test_what_isnt_asked_for_is_not_written():
    """Manifests and hashes of scenarios that sample are what they were."""
    written = workload(n=2).model_dump(mode="json")
    assert {"beam_width", "beam_turnover", "samples_alike"}.isdisjoint(written)
    searched = workload(beam_width=2).model_dump(mode="json")
    assert (searched["beam_width"], searched["beam_turnover"]) == (2, 1.0)
    assert workload(n=2, samples_alike=True).model_dump()["samples_alike"] is True
