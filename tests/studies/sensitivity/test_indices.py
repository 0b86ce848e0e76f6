"""Sensitivities of functions whose answer is known."""

import builtins
import math

import numpy as np
import pytest

from kvsim.errors import InputError
from kvsim.rng import stream
from kvsim.studies.sensitivity.answer import indices_dict, indices_sentences, indices_table
from kvsim.studies.sensitivity.factors import Factor
from kvsim.studies.sensitivity.indices import indices_of
from kvsim.studies.sensitivity.model import Answer
from kvsim.studies.sensitivity.tornado import tornado


def factor(name, low=-math.pi, high=math.pi, whole=False):
    return Factor(name, low, high, None, whole, lambda value: {name: value})


def model_of(function, noise=0.0, paired=True):
    """Return the model of a function of all factors, 0 where a factor is as in the scenario."""

    def model(asks):
        answers = []
        for place, ask in enumerate(asks):
            values = [0.0 if value is None else value for value in ask.values]
            draws = stream(1, "noise", ask.replication if paired else 1000 + place)
            answers.append(Answer(function(*values) + noise * draws.standard_normal()))
        return answers

    return model


def ishigami(x, y, z):
    """Return the function of Ishigami and Homma (1990) with a = 7, b = 0.1."""
    return math.sin(x) + 7 * math.sin(y) ** 2 + 0.1 * z**4 * math.sin(x)


def ishigami_indices(a=7.0, b=0.1):
    """Return its first-order and total indices, in closed form."""
    of_x = (1 + b * math.pi**4 / 5) ** 2 / 2
    of_y = a**2 / 8
    of_xz = b**2 * math.pi**8 * 8 / 225
    total = of_x + of_y + of_xz
    return (
        np.array([of_x, of_y, 0.0]) / total,
        np.array([of_x + of_xz, of_y, of_xz]) / total,
    )


def test_sobol_of_ishigami_is_as_known():
    factors = [factor(name) for name in "xyz"]
    found = indices_of(factors, model_of(ishigami), "sobol", 1024, seed=3)
    assert found.evaluations == 1024 * 5
    by_name = {index.factor.name: index for index in found.indices}
    for place, name in enumerate("xyz"):
        for index, known in zip(("S1", "ST"), ishigami_indices(), strict=True):
            value, half = by_name[name].values[index], by_name[name].confidence[index]
            assert abs(value - known[place]) <= max(1.5 * half, 0.01)
            assert half < 0.1
    assert [index.factor.name for index in found.indices] == ["x", "y", "z"]


def test_morris_of_a_plane_is_its_slopes():
    """The elementary effect of a linear function is its slope times the range, without spread."""
    factors = [factor("small", 0, 10), factor("none", 0, 1), factor("large", -2, 2)]
    found = indices_of(factors, model_of(lambda x, y, z: 3 * x - 20 * z), "morris", 8, seed=0)
    assert [index.factor.name for index in found.indices] == ["large", "small", "none"]
    assert [index.values["mu_star"] for index in found.indices] == pytest.approx([80, 30, 0])
    assert [index.values["sigma"] for index in found.indices] == pytest.approx([0] * 3, abs=1e-9)
    assert found.evaluations == 8 * 4


def test_replications_are_averaged_and_paired():
    factors = [factor("x", 0, 1), factor("y", 0, 1)]
    exact = indices_of(factors, model_of(lambda x, y: x + 2 * y), "morris", 4, seed=1)
    noisy = indices_of(factors, model_of(lambda x, y: x + 2 * y, noise=5.0), "morris", 4, 1, 3)
    for one, other in zip(exact.indices, noisy.indices, strict=True):
        assert one.values["mu_star"] == pytest.approx(other.values["mu_star"])


def test_same_seed_same_indices():
    factors = [factor(name) for name in "xyz"]
    once, again, other = (
        indices_of(factors, model_of(ishigami), "sobol", 32, seed) for seed in (1, 1, 2)
    )
    assert once == again
    assert once != other


def test_whole_factors_are_evaluated_at_whole_numbers():
    seen = []

    def model(asks):
        seen.extend(value for ask in asks for value in ask.values)
        return [Answer(sum(ask.values)) for ask in asks]

    indices_of([factor("a", 1, 9, True), factor("b", 1, 9, True)], model, "sobol", 8, 0)
    assert all(float(value).is_integer() for value in seen)


def test_words_and_tables_have_every_factor():
    factors = [factor(name) for name in "xyz"]
    found = indices_of(factors, model_of(ishigami), "sobol", 4096, 0)
    assert "depends most on x" in indices_sentences(found, "ttft_p99_s")[0]
    few = indices_of(factors, model_of(ishigami), "sobol", 8, 0)
    assert indices_sentences(few, "ttft_p99_s")[0].startswith("Too few samples to tell")
    assert [row[0] for row in indices_table(found).rows] == [i.factor.name for i in found.indices]
    facts = indices_dict(found, "ttft_p99_s")
    assert {"S1", "S1_confidence", "ST", "ST_confidence"} <= facts["factors"][0].keys()


def test_mistakes_are_told(monkeypatch):
    pair = [factor("x"), factor("y")]
    with pytest.raises(InputError, match="at least two factors"):
        indices_of(pair[:1], model_of(ishigami), "sobol", 8, 0)
    with pytest.raises(InputError, match="power of two"):
        indices_of(pair, model_of(ishigami), "sobol", 9, 0)
    none = [Answer(None, "out of range")] * 8 * 4
    with pytest.raises(InputError, match=r"32 of the samples have no value.*x .*: out of range"):
        indices_of(pair, lambda asks: none, "sobol", 8, 0)
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("SALib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("importlib.import_module", lambda name: without(name))
    with pytest.raises(InputError, match=r"kvsim\[sensitivity\]"):
        indices_of(pair, model_of(ishigami), "morris", 8, 0)


# One at a time


def test_tornado_of_a_plane_is_exact():
    factors = [factor("a", -1, 2), factor("b", 10, 20), factor("c", -5, 5)]
    found = tornado(factors, model_of(lambda a, b, c: 100 + a - 3 * b), 1)
    assert found.base.mean == 100
    assert [bar.factor.name for bar in found.bars] == ["b", "a", "c"]
    changes = [(bar.low.change.mean, bar.high.change.mean) for bar in found.bars]
    assert changes == [(-30, -60), (-1, 2), (0, 0)]
    assert [bar.is_clear for bar in found.bars] == [True, True, False]


def test_paired_draws_cancel_and_independent_ones_do_not():
    factors = [factor("strong", 0, 10), factor("weak", 0, 0.01)]
    plane = lambda strong, weak: strong + weak  # noqa: E731
    paired = tornado(factors, model_of(plane, noise=3.0), 5)
    assert [bar.is_clear for bar in paired.bars] == [True, True]
    assert paired.bars[1].high.change.half_width < 1e-9
    apart = tornado(factors, model_of(plane, noise=3.0, paired=False), 5)
    by_name = {bar.factor.name: bar for bar in apart.bars}
    assert not by_name["weak"].is_clear
    assert by_name["strong"].is_clear
    assert by_name["strong"].high.change.half_width > 1


def test_intervals_of_an_effect_of_zero_span_zero_nineteen_times_in_twenty():
    clear = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)

        def model(asks, rng=rng):
            return [Answer(float(rng.standard_normal())) for _ in asks]

        (bar,) = tornado([factor("none")], model, 6).bars
        change = bar.high.change
        clear += change.low > 0 or change.high < 0
    assert 2 <= clear <= 20


def test_ends_without_a_figure_are_kept_with_their_reason():
    def model(asks):
        return [
            Answer(None, "does not start") if (ask.values[0] or 0) > 1 else Answer(1.0)
            for ask in asks
        ]

    found = tornado([factor("x", 0, 2), factor("y", 0, 2)], model, 2)
    bar = next(bar for bar in found.bars if bar.factor.name == "x")
    assert bar.high.change is None
    assert bar.high.why == "does not start"
    with pytest.raises(InputError, match="the scenario as it is"):
        tornado([factor("x", 0, 2)], lambda asks: [Answer(None, "nothing")] * len(asks), 2)
