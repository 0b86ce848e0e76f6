import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.gpu import load_gpu
from kvsim.memory import memory_budget, resolve_flags
from kvsim.memory.budget import split_memory
from kvsim.memory.stages import Stage, model_of, stages
from kvsim.model import Parallelism, load_model

H100 = load_gpu("h100_sxm")
LLAMA = load_model("meta-llama/Llama-3.1-70B-Instruct")
QWEN = load_model("Qwen/Qwen3-235B-A22B-FP8")


@given(st.integers(1, 130), st.data())
def test_stages_have_all_layers_and_differ_by_one_at_most(layers, data):
    size = data.draw(st.integers(1, layers))
    parts = stages(layers, size)
    counts = [stage.layers for stage in parts]
    assert (len(parts), sum(counts)) == (size, layers)
    assert max(counts) - min(counts) <= 1
    assert counts[-1] == min(counts)
    assert [stage.is_first for stage in parts] == [True] + [False] * (size - 1)
    assert [stage.is_last for stage in parts] == [False] * (size - 1) + [True]


def test_remaining_layers_go_to_the_stages_before_the_last():
    assert [stage.layers for stage in stages(61, 8)] == [7, 7, 8, 8, 8, 8, 8, 7]


@pytest.mark.parametrize("name", ["openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3"])
def test_a_stage_has_its_share_of_each_kind_of_layers(name):
    model = load_model(name)
    for size in (2, 3, 4):
        for stage in stages(model.num_layers, size):
            part = model_of(stage, model)
            assert part.num_layers == stage.layers
            for group in part.layers:
                (whole,) = [
                    g for g in model.layers if (g.attention, g.mlp) == (group.attention, group.mlp)
                ]
                assert abs(group.count - whole.count * stage.layers / model.num_layers) < 1


def test_one_stage_is_the_whole_model():
    (only,) = stages(LLAMA.num_layers, 1)
    assert (only, model_of(only, LLAMA)) == (Stage(80), LLAMA)


def budget(model, **flags):
    return split_memory(model, H100, resolve_flags(model, H100, max_model_len=4096, **flags))


def test_stages_share_layers_and_kv_and_keep_their_own_end():
    whole, half = (
        budget(LLAMA, tensor_parallel_size=4),
        budget(LLAMA, tensor_parallel_size=4, pipeline_parallel_size=2),
    )
    assert half.kv_bytes_per_token * 2 == whole.kv_bytes_per_token
    assert half.weights_bytes["mlp"] * 2 == whole.weights_bytes["mlp"]
    ends = {"embedding", "lm_head"} & set(half.weights_bytes)
    assert len(ends) == 1  # equal stages: either end has one matrix of the vocabulary
    assert half.num_gpu_blocks > 2 * whole.num_gpu_blocks


def test_every_gpu_of_a_larger_layout_holds_its_share_of_the_experts():
    def experts(**flags):
        return budget(QWEN, **flags).weights_bytes["experts"]

    alone = experts()
    assert experts(tensor_parallel_size=4, enable_expert_parallel=True) == pytest.approx(alone / 4)
    assert experts(data_parallel_size=8, enable_expert_parallel=True) == pytest.approx(alone / 8)
    assert experts(tensor_parallel_size=2, data_parallel_size=4) == pytest.approx(alone / 8)
    ranks = budget(QWEN, data_parallel_size=8, enable_expert_parallel=True)
    assert ranks.weights_bytes["attention"] == budget(QWEN).weights_bytes["attention"]
    assert ranks.kv_bytes_per_token == budget(QWEN).kv_bytes_per_token


def test_the_fullest_gpu_counts_where_experts_do_not_come_out_even():
    gpt = load_model("openai/gpt-oss-120b")  # 128 experts
    (expert, *_) = [w for _, w in gpt.weights() if w.part == "experts"]
    share = Parallelism(3, 1, 1, enable_expert_parallel=True).share(expert)
    assert share == 43 / 128


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"pipeline_parallel_size": 81}, "81 is more than the 80 layers"),
        ({"enable_expert_parallel": True}, "has no experts"),
        ({"data_parallel_size": 0}, "data_parallel_size must be at least 1"),
    ],
)
def test_impossible_layouts_are_refused(flags, message):
    with pytest.raises(InputError, match=message):
        memory_budget(LLAMA, H100, resolve_flags(LLAMA, H100, max_model_len=4096, **flags))
