"""Settings that contradict one another are refused, each at its place."""

import pytest

from kvsim.engine.config import EngineConfig
from kvsim.errors import InputError


def config(**settings):
    given = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 96,
        "num_gpu_blocks": 20,
        **settings,
    }
    return EngineConfig(**given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seqs": 65}, "max_num_batched_tokens (64) is less than max_num_seqs (65)"),
        (
            {"max_num_scheduled_tokens": 65},
            "engine.max_num_scheduled_tokens: max_num_scheduled_tokens (65) is more than "
            "max_num_batched_tokens (64)",
        ),
        (
            {"max_num_active_seqs": 9},
            "engine.max_num_active_seqs: max_num_active_seqs (9) is more than max_num_seqs (8)",
        ),
        ({"enable_chunked_prefill": False}, "max_num_batched_tokens (64) must be at least"),
        (
            {
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": 96,
                "max_num_scheduled_tokens": 95,
            },
            "max_num_scheduled_tokens (95) must be at least max_model_len (96)",
        ),
    ],
)
def test_contradictions_are_refused(settings, message):
    with pytest.raises(InputError) as error:
        config(**settings)
    assert message in str(error.value)


def test_the_tighter_limits_decide():
    assert (config().step_tokens, config().running_seqs) == (64, 8)
    tight = config(max_num_scheduled_tokens=5, max_num_active_seqs=3)
    assert (tight.step_tokens, tight.running_seqs) == (5, 3)
