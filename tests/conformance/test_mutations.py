"""Each rule has a replay that fails when the rule is broken."""

import inspect
import re

import pytest

from kvsim.conformance.compare import judge
from tests.conformance import mutations
from tests.conformance.recorded import recorded

NOTICED_BY = {
    mutations.r1_the_latest_prompt_gets_the_budget_first: "14_random_small/rand22",
    mutations.r2_the_budget_is_that_of_memory: "07_limits/max_num_scheduled_tokens_300",
    mutations.r3_prompts_are_computed_to_their_end: (
        "09_never_fit/bypassing_frontend_prompt_ge_max_model_len"
    ),
    mutations.r4_the_threshold_holds_for_the_only_request: (
        "07_limits/threshold_100_alone_then_not"
    ),
    mutations.r4_the_threshold_does_not_adapt: "07_limits/threshold_64_adaptive",
    mutations.r5_the_second_overtakes_the_head_that_lacks_blocks: "14_random_small/rand15",
    mutations.r5_max_num_active_seqs_is_not_looked_at: "14_random_small/rand07",
    mutations.r6_a_call_that_preempted_admits: "08_priority/budget_refund_4",
    mutations.r7_preempted_requests_go_to_the_back: "02_preemption/nocache_no_full_isl",
    mutations.r8_the_queue_is_in_order_of_arrival: "08_priority/budget_refund_4",
    mutations.r8_a_preempted_request_goes_to_the_front: "08_priority/budget_refund_2",
    mutations.r9_prefills_are_not_paced: "07_limits/prefill_schedule_interval_4",
    mutations.r9_admission_for_the_last_token_counts: "15_pacing_and_ends/g3_s1011",
    mutations.r9_a_prefill_that_was_withdrawn_does_not_count: "15_pacing_and_ends/withdrawn_p6",
    mutations.r10_the_token_being_sampled_gets_a_slot: "13_edge_cases/eviction_order",
    mutations.r11_there_is_no_null_block: "13_edge_cases/eviction_order",
    mutations.r11_the_watermark_is_a_share_of_the_usable_blocks: "14_random_small/rand20",
    mutations.r12_the_first_admitted_is_preempted: "09_never_fit/decode_outgrows_pool",
    mutations.r13_of_equal_ones_the_last_is_preempted: "08_priority/budget_refund_4",
    mutations.r13_the_tokens_of_a_victim_are_lost: "08_priority/budget_refund_2",
    mutations.r14_who_is_its_own_victim_stops_the_others: "08_priority/budget_refund_7_livelock",
    mutations.r15_a_preempted_request_forgets_its_answer: "13_edge_cases/preempt_nocache",
    mutations.r16_the_watermark_holds_back_running_requests: ("07_limits/watermark_0.1_small_pool"),
    mutations.r17_only_the_first_chunk_has_to_fit: "02_preemption/nocache",
    mutations.r18_the_rest_of_other_prompts_is_held_back: "08_priority/budget_refund_2",
    mutations.r19_the_watermark_holds_for_an_idle_engine: "07_limits/watermark_0.1_idle_engine",
    mutations.r19_there_is_no_watermark: "07_limits/watermark_0.1_small_pool",
    mutations.r20_hits_in_the_free_queue_cost_nothing: "10_parallel_sampling/cache_small_pool",
    mutations.r20_hits_need_new_blocks: "10_parallel_sampling/cache_small_pool",
    mutations.r21_partial_blocks_are_found: "13_edge_cases/lengths_cache",
    mutations.r22_all_known_tokens_are_found: "13_edge_cases/prefix_hits",
    mutations.r23_blocks_are_found_a_step_later: "13_edge_cases/prefix_hits",
    mutations.r24_answers_are_not_found: "13_edge_cases/prefix_hits",
    mutations.r25_the_newest_of_equal_blocks_is_found: "05_cache_off_on/on",
    mutations.r25_equal_blocks_are_kept_once: "13_edge_cases/prefix_hits",
    mutations.r26_a_shared_block_is_released_by_its_first_user: "13_edge_cases/prefix_hits",
    mutations.r27_the_block_used_last_is_evicted_first: "13_edge_cases/eviction_order",
    mutations.r28_blocks_are_released_head_first: "13_edge_cases/eviction_order",
    mutations.r28_blocks_without_key_go_to_the_back: "13_edge_cases/lengths_nocache",
    mutations.r29_ended_requests_are_freed_after_the_next_call: "13_edge_cases/eviction_order",
    mutations.r29_ended_requests_are_freed_last_first: "13_edge_cases/prefix_hits",
    mutations.r29_who_waits_ends_before_the_others: "15_pacing_and_ends/g3_s1105",
    mutations.r30_answers_go_a_token_beyond_the_context: (
        "09_never_fit/length_cap_at_max_model_len"
    ),
    mutations.r30_each_chunk_of_a_prompt_gives_a_token: "03_long_prompts_chunked/tight",
    mutations.r32_a_prompt_that_never_fits_lets_others_pass: (
        "09_never_fit/prompt_larger_than_pool_default"
    ),
    mutations.r33_an_answer_that_outgrows_the_pool_ends: "09_never_fit/decode_outgrows_pool",
    mutations.r34_a_prompt_beyond_the_context_ends_with_it: (
        "09_never_fit/bypassing_frontend_prompt_ge_max_model_len"
    ),
    mutations.r35_windows_keep_what_they_have_passed: "11_sliding_window_hybrid/swa_only_nocache",
    mutations.r35_blocks_that_a_window_has_passed_come_back_first_first: (
        "11_sliding_window_hybrid/swa_only_cache_retention0"
    ),
    mutations.r36_windows_count_the_tokens_of_one_step_in_flight: (
        "11_sliding_window_hybrid/swa_only_preempt_cache_async"
    ),
    mutations.r37_the_leftmost_window_counts: (
        "11_sliding_window_hybrid/full+swa_cache_retention0"
    ),
    mutations.r38_windows_keep_all_they_have_seen: (
        "11_sliding_window_hybrid/full+swa_cache_retention0"
    ),
    mutations.r38_only_what_full_attention_found_is_kept: "15_pacing_and_ends/g2_s394",
    mutations.r40_who_rests_goes_on: "09_never_fit/length_cap_at_max_model_len_async",
    mutations.r41_a_block_is_findable_before_its_last_token_is_known: (
        "13_edge_cases/preempt_cache_async"
    ),
    mutations.r41_the_last_block_is_not_findable_when_the_last_token_comes: (
        "04_prefix_caching/heavy_pressure_async"
    ),
    mutations.r41_windows_pass_what_is_in_flight: "14_random_small/rand16",
    mutations.r41_windows_pass_chunks_in_flight: "14_random_small/rand16",
    mutations.r41_windows_stay_behind_when_nothing_is_in_flight: "15_pacing_and_ends/sl_s10000",
    mutations.r42_who_is_preempted_loses_its_token: "02_preemption/cache_async",
}


@pytest.mark.parametrize("mutation", NOTICED_BY, ids=lambda mutation: mutation.__name__)
def test_a_replay_notices_a_broken_rule(mutation, monkeypatch):
    recording = recorded(NOTICED_BY[mutation])
    assert judge(recording).identical
    mutation(monkeypatch)
    verdict = judge(recording)
    assert verdict.difference is not None, verdict.not_modeled
    assert verdict.steps_identical < verdict.steps


def test_every_rule_is_broken_once():
    defined = dict(inspect.getmembers(mutations, inspect.isfunction))
    broken = {name for name in defined if re.match(r"r\d+_", name)}
    assert broken == {mutation.__name__ for mutation in NOTICED_BY}
    rules = {int(name[1:].partition("_")[0]) for name in broken}
    # R31 is the front end's (tests/engine/test_vllm_recordings.py), R39 the model's
    # (tests/test_kv_groups.py): no schedule shows them.
    assert rules == {*range(1, 43)} - {31, 39}
