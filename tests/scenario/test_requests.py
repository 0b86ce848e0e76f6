import numpy as np
import pytest

import kvsim.engine.allocators
from kvsim.errors import InputError
from kvsim.policy import policies_in
from kvsim.scenario.load import load_scenario
from kvsim.scenario.oversized import _oversized, _reasons
from kvsim.scenario.requests import draw_requests
from kvsim.scenario.resolve import resolve_all
from kvsim.workload.requests import NO_LIMIT, RequestTable

FIXED = "{kind: fixed, prompt_tokens: 100, output_tokens: 20}"


def draw(path):
    file = load_scenario(path)
    return draw_requests(file, resolve_all(file))


def scenario(write, tmp_path, rows, more, max_tokens="null"):
    (tmp_path / "t.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    text = write().read_text().replace(FIXED, "{kind: trace}")
    text = text.replace("{kind: poisson, rate_per_s: 2.0}", "{kind: trace, file: t.csv}")
    text = text.replace("num_requests: 10", f"max_tokens: {max_tokens}")
    return write(more, text=text)


def row(prompt, output=5):
    return f"2023-11-16 18:15:00.0,{prompt},{output}"


def test_requests_that_fit_are_drawn(write):
    requests = draw(write())
    assert len(requests) == 10
    assert np.array_equal(requests.prompt_tokens, [100] * 10)


def test_prompts_as_long_as_the_context_are_listed(write, tmp_path):
    rows = [row(511), row(512), row(9000), row(20)]
    path = scenario(write, tmp_path, rows, "engine: {max_model_len: 512}\n")
    with pytest.raises(InputError) as caught:
        draw(path)
    texts = [str(problem) for problem in caught.value.problems]
    assert len(texts) == 3
    assert "request 1 can never be served: its prompt of 512 tokens" in texts[0]
    assert "request 2 can never be served: its prompt of 9000 tokens" in texts[1]
    assert "oversized_requests: reject" in texts[2]
    assert all(text.startswith(str(path)) for text in texts)


def test_a_long_list_is_cut_and_counted(write, tmp_path):
    path = scenario(write, tmp_path, [row(600)] * 25, "engine: {max_model_len: 512}\n")
    with pytest.raises(InputError, match="and 15 more") as caught:
        draw(path)
    assert len(caught.value.problems) == 11


def test_rejecting_them_is_an_option(write, tmp_path):
    more = "engine: {max_model_len: 512}\noversized_requests: reject\n"
    assert len(draw(scenario(write, tmp_path, [row(600), row(10)], more))) == 2


def test_variants_are_checked_too(write, tmp_path):
    more = "variants: {short: {engine: {max_model_len: 64}}}\n"
    with pytest.raises(InputError, match="max_model_len 64"):
        draw(scenario(write, tmp_path, [row(70)], more))


def test_every_allocator_is_asked_and_oracles_are_answered(write):
    kinds = [policy.model_fields["kind"].default for policy in policies_in(kvsim.engine.allocators)]
    variants = "".join(f"  v_{kind}: {{kv_cache: {kind}}}\n" for kind in kinds)
    oracle = "  oracle: {kv_cache: {kind: contiguous, reservation: oracle_pow2}}\n"
    assert len(draw(write(f"variants:\n{variants}{oracle}"))) == 10


@pytest.mark.parametrize("limits", ["none", "all", "some"])
def test_the_longest_request_stands_for_all_only_if_it_can_be_served(write, limits):
    """Against a look at each request, for pools that are just large enough or just not."""
    layouts = [
        "paged",
        *(
            f"{{kind: contiguous, reservation: {reservation}, placement: {placement}}}"
            for reservation in ("max_model_len", "max_tokens", "oracle", "oracle_pow2")
            for placement in ("first_fit", "buddy")
        ),
    ]
    variants = "".join(f"  v{index}: {{kv_cache: {one}}}\n" for index, one in enumerate(layouts))
    engine = "engine: {max_model_len: 512, num_gpu_blocks_override: 33}\n"
    resolved = resolve_all(load_scenario(write(f"{engine}variants:\n{variants}")))
    rng = np.random.default_rng(0)
    told = []
    for longest in (0, 1, 100, 180, 250, 400, 600) * 4:
        prompt, output, limit = rng.integers(min(longest, 1), longest + 1, (3, 30))
        unlimited = {"none": True, "all": False, "some": rng.random(30) < 0.1}[limits]
        table = RequestTable(
            arrival_ns=np.zeros(30, dtype=np.int64),
            prompt_tokens=prompt,
            output_tokens=np.maximum(output, 1),
            max_tokens=np.where(unlimited, NO_LIMIT, np.maximum(limit, 1)),
            group=np.arange(30),
            horizon_ns=0,
        )
        for variant in resolved.values():
            reasons = list(_reasons(variant, table))
            found = _oversized(variant, table)
            assert found == [f"request {row} can never be served: {why}" for row, why in reasons]
            told.append(bool(found))
    assert 0.1 < np.mean(told) < 0.9


def test_nobody_arrives_after_the_end_of_the_simulation(write):
    whole, cut = draw(write()), draw(write("max_simulated_s: 2.5\n"))
    kept = int((whole.arrival_ns < 2_500_000_000).sum())
    assert 0 < kept < len(whole)
    for name in ("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens", "group"):
        assert np.array_equal(getattr(cut, name), getattr(whole, name)[:kept])
    assert cut.horizon_ns == 2_500_000_000
    assert cut.digest() != whole.digest()
    late = draw(write("max_simulated_s: 1000\n"))
    assert late.digest() == whole.digest()


@pytest.mark.parametrize("until_s", ["1.0e-300", "1.0e-9", "0.001"])
def test_an_end_before_all_requests_is_told(write, until_s):
    with pytest.raises(InputError) as caught:
        draw(write(f"max_simulated_s: {until_s}\n"))
    (problem,) = caught.value.problems
    assert (problem.line, problem.path) == (7, "max_simulated_s")
    assert problem.message == "no request arrives before it"


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        ([row(5), "nonsense"], "", ":3: bad row 'nonsense'"),
        ([row(5)], "  num_requests: 4\n", "test.yaml:3: workload: num_requests is 4, but this cut"),
        ([row(5)], "  duration_s: 4\n", "test.yaml:3: workload: duration_s is 4, but this cut"),
    ],
)
def test_a_trace_that_can_not_be_used_is_told_with_its_place(write, tmp_path, rows, more, message):
    with pytest.raises(InputError) as caught:
        draw(scenario(write, tmp_path, rows, more))
    assert message in str(caught.value)


def test_a_missing_trace_is_told(write, tmp_path):
    path = scenario(write, tmp_path, [row(5)], "")
    (tmp_path / "t.csv").unlink()
    with pytest.raises(InputError, match=r"t\.csv: can't be read: No such file"):
        draw(path)
