"""A way to break each rule of `docs/vllm-rules.md`, for tests that see the replay notice it.

Each function takes pytest's `monkeypatch`; it breaks the rule that it is named after, and no other
if that can be helped.
"""

from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kvsim.engine import queues
from kvsim.engine import replica as step_loop
from kvsim.engine.allocators._block_pool import BlockPool
from kvsim.engine.allocators._hybrid import HybridPool
from kvsim.engine.allocators._hybrid_lookup import Lookup
from kvsim.engine.allocators._lru import LruQueue
from kvsim.engine.allocators._prefix_cache import PrefixCachingPool
from kvsim.engine.allocators.paged import PagedPool
from kvsim.engine.queues import VICTIMS, FcfsQueue, PriorityQueue
from kvsim.engine.reader import RequestReader
from kvsim.engine.replica import Replica
from kvsim.engine.request import Request
from kvsim.engine.schedulers.vllm import LACKS_BLOCKS, VllmScheduler


def wrap(patch, owner, name):
    """Replace a function by what the decorated one makes of it: it gets the original first."""
    original = getattr(owner, name)

    def decorate(broken):
        patch.setattr(owner, name, lambda *args, **kwargs: broken(original, *args, **kwargs))

    return decorate


def r1_the_latest_prompt_gets_the_budget_first(patch):
    @wrap(patch, VllmScheduler, "_share_budget")
    def _(original, scheduler, behind=-1):
        scheduler.prefilling.reverse()
        original(scheduler, behind)
        scheduler.prefilling.reverse()


def r2_the_budget_is_that_of_memory(patch):
    @wrap(patch, VllmScheduler, "__init__")
    def _(original, scheduler, config, *rest):
        original(scheduler, config, *rest)
        scheduler._step_tokens = config.max_num_batched_tokens


def r3_prompts_are_computed_to_their_end(patch):
    @wrap(patch, VllmScheduler, "__init__")
    def _(original, scheduler, *rest):
        original(scheduler, *rest)
        scheduler._last_position = 1 << 40


def r4_the_threshold_holds_for_the_only_request(patch):
    @wrap(patch, VllmScheduler, "_chunk_cap_tokens")
    def _(original, scheduler):
        return scheduler.config.long_prefill_token_threshold or original(scheduler)


def r4_the_threshold_does_not_adapt(patch):
    @wrap(patch, VllmScheduler, "_chunk_cap_tokens")
    def _(original, scheduler):
        threshold = scheduler.config.long_prefill_token_threshold
        alone = len(scheduler.running) + len(scheduler.waiting) <= 1
        return original(scheduler) if alone or not threshold else threshold


def r5_the_second_overtakes_the_head_that_lacks_blocks(patch):
    @wrap(patch, VllmScheduler, "_admit")
    def _(original, scheduler, plan):
        original(scheduler, plan)
        if plan.head_lacks == LACKS_BLOCKS and isinstance(scheduler.waiting, FcfsQueue):
            admitted = plan.admitted
            head = scheduler.waiting.popleft()
            original(scheduler, plan)
            plan.admitted = [*admitted, *plan.admitted]
            scheduler.waiting.appendleft(head)


def r5_max_num_active_seqs_is_not_looked_at(patch):
    @wrap(patch, VllmScheduler, "__init__")
    def _(original, scheduler, config, *rest):
        original(scheduler, config, *rest)
        scheduler._most_running = config.max_num_seqs


def r6_a_call_that_preempted_admits(patch):
    @wrap(patch, VllmScheduler, "schedule")
    def _(original, scheduler, *args):
        plan = original(scheduler, *args)
        if plan.preempted:
            scheduler._admit(plan)
        return plan


def r7_preempted_requests_go_to_the_back(patch):
    patch.setattr(FcfsQueue, "requeue", FcfsQueue.append)


def r8_the_queue_is_in_order_of_arrival(patch):
    @wrap(patch, queues, "_entry")
    def _(original, request):
        return 0, -request.arrival_ns, -request.number, request


def r8_a_preempted_request_goes_to_the_front(patch):
    patch.setattr(
        PriorityQueue,
        "requeue",
        lambda queue, request: queue._entries.append((1, 0, 0, request)),
    )


def r9_prefills_are_not_paced(patch):
    patch.setattr(VllmScheduler, "_throttles", lambda scheduler, step: False)


def r9_admission_for_the_last_token_counts(patch):
    patch.setattr(VllmScheduler, "_does_prefill", lambda scheduler, plan: bool(plan.chunks))


def r9_a_prefill_that_was_withdrawn_does_not_count(patch):
    @wrap(patch, VllmScheduler, "_does_prefill")
    def _(original, scheduler, plan):
        scheduler._prefill_withdrawn = False
        return original(scheduler, plan)


def r10_the_token_being_sampled_gets_a_slot(patch):
    for pool in (PagedPool, PrefixCachingPool):

        @wrap(patch, pool, "allocate")
        def _(original, pool, request, seq, tokens):
            return original(pool, request, seq, tokens + 1)


def r11_there_is_no_null_block(patch):
    @wrap(patch, PagedPool, "__init__")
    def _(original, pool, shape, null_block=True):
        original(pool, shape, null_block=False)


def r11_the_watermark_is_a_share_of_the_usable_blocks(patch):
    @wrap(patch, PagedPool, "__init__")
    def _(original, pool, shape, null_block=True):
        original(pool, shape, null_block)
        pool._watermark_blocks = int(shape.watermark * (shape.num_gpu_blocks - 1))


def r12_the_first_admitted_is_preempted(patch):
    patch.setitem(VICTIMS, "fcfs", lambda running: next(iter(running.values())))


def r13_of_equal_ones_the_last_is_preempted(patch):
    def last_of_the_least_urgent(running):
        by_place = [(r.priority, r.arrival_ns, rank) for rank, r in running.items()]
        return running[max(by_place)[-1]]

    patch.setitem(VICTIMS, "priority", last_of_the_least_urgent)


def r13_the_tokens_of_a_victim_are_lost(patch):
    @wrap(patch, VllmScheduler, "_share_budget")
    def _(original, scheduler, behind=-1):
        if behind < 0:
            original(scheduler, behind)


def r14_who_is_its_own_victim_stops_the_others(patch):
    @wrap(patch, VllmScheduler, "_grow")
    def _(original, scheduler, step, plan, needing):
        grown, stopped = [], False
        for request in needing:
            if stopped:
                request.chunk_tokens = 0
            elif request.rank >= 0:
                original(scheduler, step, plan, [request])
                grown += plan.grown
                stopped = request.rank < 0
        plan.grown = [request for request in grown if request.rank >= 0]


def r15_a_preempted_request_forgets_its_answer(patch):
    @wrap(patch, VllmScheduler, "_preempt")
    def _(original, scheduler, *args):
        victim = original(scheduler, *args)
        victim.known_tokens = victim.prompt_tokens
        return victim


def r16_the_watermark_holds_back_running_requests(patch):
    @wrap(patch, PagedPool, "_extend")
    def _(original, pool, seq, tokens):
        kept_tokens = pool._watermark_blocks * pool._block_size
        if len(pool._tables) > 1 and pool.free_tokens - pool._block_size < kept_tokens:
            return False
        return original(pool, seq, tokens)


def r17_only_the_first_chunk_has_to_fit(patch):
    @wrap(patch, VllmScheduler, "_shortage")
    def _(original, scheduler, request, first_tokens):
        return scheduler.allocator.shortage(request, first_tokens, idle=not scheduler.running)


def r18_the_rest_of_other_prompts_is_held_back(patch):
    @wrap(patch, VllmScheduler, "_shortage")
    def _(original, scheduler, request, first_tokens):
        held_tokens = sum(
            other.known_tokens - other.computed_tokens - other.chunk_tokens
            for other in scheduler.prefilling
        )
        need_tokens = held_tokens + request.known_tokens
        return scheduler.allocator.shortage(request, need_tokens, idle=not scheduler.running)


def r19_the_watermark_holds_for_an_idle_engine(patch):
    for pool in (PagedPool, PrefixCachingPool):

        @wrap(patch, pool, "shortage")
        def _(original, pool, request, known_tokens, idle):
            return original(pool, request, known_tokens, idle=False)


def r19_there_is_no_watermark(patch):
    for pool in (PagedPool, PrefixCachingPool):

        @wrap(patch, pool, "shortage")
        def _(original, pool, request, known_tokens, idle):
            return original(pool, request, known_tokens, idle=True)


def r20_hits_in_the_free_queue_cost_nothing(patch):
    @wrap(patch, PrefixCachingPool, "shortage")
    def _(original, pool, request, known_tokens, idle):
        hits_tokens = len(pool._lru.among(pool._hits(request))) * pool._block_size
        pool.free_tokens += hits_tokens
        shortage = original(pool, request, known_tokens, idle)
        pool.free_tokens -= hits_tokens
        return shortage


def r20_hits_need_new_blocks(patch):
    @wrap(patch, PrefixCachingPool, "shortage")
    def _(original, pool, request, known_tokens, idle):
        return PagedPool.shortage(pool, request, known_tokens, idle)


def r21_partial_blocks_are_found(patch):
    @wrap(patch, PrefixCachingPool, "publish")
    def _(original, pool, request, seq, tokens):
        blocks = min(len(pool._tables[seq]), -(-tokens // pool._block_size))
        original(pool, request, seq, blocks * pool._block_size)


def r22_all_known_tokens_are_found(patch):
    @wrap(patch, PrefixCachingPool, "_hits")
    def _(original, pool, request):
        more = SimpleNamespace(
            number=request.number,
            known_tokens=request.known_tokens + 1,
            block_keys=request.block_keys,
        )
        return original(pool, more)


def r23_blocks_are_found_a_step_later(patch):
    due = []

    @wrap(patch, PrefixCachingPool, "publish")
    def _(original, *args):
        due.append((original, args))

    @wrap(patch, VllmScheduler, "schedule")
    def _(original, scheduler, *args):
        for publish, (pool, request, seq, tokens) in due:
            if seq in pool._published:
                publish(pool, request, seq, tokens)
        due.clear()
        return original(scheduler, *args)


def r24_answers_are_not_found(patch):
    @wrap(patch, PrefixCachingPool, "publish")
    def _(original, pool, request, seq, tokens):
        original(pool, request, seq, min(tokens, request.prompt_tokens))


def r25_the_newest_of_equal_blocks_is_found(patch):
    def add_twin(pool, key, block):
        pool._twins.setdefault(key, deque()).appendleft(pool._block_of[key])
        pool._block_of[key] = block

    patch.setattr(PrefixCachingPool, "_add_twin", add_twin)


def r25_equal_blocks_are_kept_once(patch):
    def add_twin(pool, key, block):
        del pool._key_of[block]

    patch.setattr(PrefixCachingPool, "_add_twin", add_twin)

    @wrap(patch, PrefixCachingPool, "free")
    def _(original, pool, seq):
        original(pool, seq)
        without_key = [block for block in pool._lru if block not in pool._key_of]
        pool._lru.remove(without_key)
        pool._free_blocks += reversed(without_key)


def r26_a_shared_block_is_released_by_its_first_user(patch):
    @wrap(patch, PagedPool, "_disown")
    def _(original, pool, block):
        return original(pool, block) and False


def r27_the_block_used_last_is_evicted_first(patch):
    def take(lru, blocks):
        taken = [*lru][: -blocks - 1 : -1]
        lru.remove(taken)
        return taken

    patch.setattr(LruQueue, "take", take)


def r28_blocks_are_released_head_first(patch):
    for pool in (PagedPool, PrefixCachingPool):

        @wrap(patch, pool, "free")
        def _(original, pool, seq):
            table, keyed = pool._tables[seq], 0
            if isinstance(pool, PrefixCachingPool):
                keyed = pool._published[seq]
            pool._tables[seq] = table[:keyed][::-1] + table[keyed:][::-1]
            original(pool, seq)


def r28_blocks_without_key_go_to_the_back(patch):
    @wrap(patch, PagedPool, "free")
    def _(original, pool, seq):
        released = len(pool._tables[seq])
        original(pool, seq)
        front = pool._free_blocks[-released:]
        pool._free_blocks[:] = front + pool._free_blocks[:-released]


def r29_ended_requests_are_freed_after_the_next_call(patch):
    ended = []

    @wrap(patch, VllmScheduler, "finish")
    def _(original, scheduler, request, step):
        scheduler._leave(request, step)
        ended.append(request)

    @wrap(patch, VllmScheduler, "schedule")
    def _(original, scheduler, *args):
        plan = original(scheduler, *args)
        for request in ended:
            scheduler.allocator.free(request.number)
        ended.clear()
        return plan


def r29_ended_requests_are_freed_last_first(patch):
    class LastFirst(list):
        def sort(self, *, key):
            super().sort(key=key, reverse=True)

    @wrap(patch, Replica, "_complete")
    def _(original, replica, batch):
        if batch.step in replica._ending:
            replica._ending[batch.step] = LastFirst(replica._ending[batch.step])
        original(replica, batch)


def r30_answers_go_a_token_beyond_the_context(patch):
    @wrap(patch, RequestReader, "read")
    def _(original, reader, *args):
        reader._max_model_len += 1
        request, answer_tokens = original(reader, *args)
        reader._max_model_len -= 1
        return request, answer_tokens


def r30_each_chunk_of_a_prompt_gives_a_token(patch):
    @wrap(patch, Replica, "_advance_chunks")
    def _(original, replica, plan, batch):
        for request in plan.chunks:
            request.known_tokens = request.computed_tokens + request.chunk_tokens
        original(replica, plan, batch)


def r29_who_waits_ends_before_the_others(patch):
    patch.setattr(step_loop, "_place_in_step", lambda request: request.rank)


def r32_a_prompt_that_never_fits_lets_others_pass(patch):
    @wrap(patch, VllmScheduler, "_admit")
    def _(original, scheduler, plan):
        capacity = scheduler.allocator.capacity_tokens
        while scheduler.waiting and scheduler.waiting.head.known_tokens > capacity:
            scheduler.waiting.popleft()
        original(scheduler, plan)


def r33_an_answer_that_outgrows_the_pool_ends(patch):
    @wrap(patch, FcfsQueue, "requeue")
    def _(original, queue, request):
        if request.known_tokens < 160:
            original(queue, request)


def r34_a_prompt_beyond_the_context_ends_with_it(patch):
    @wrap(patch, RequestReader, "read")
    def _(original, reader, *args):
        request, answer_tokens = original(reader, *args)
        request.known_tokens = min(request.known_tokens, reader._max_model_len - 1)
        return request, answer_tokens


def r35_windows_keep_what_they_have_passed(patch):
    patch.setattr(HybridPool, "release", lambda *_: None)


def r35_blocks_that_a_window_has_passed_come_back_first_first(patch):
    @wrap(patch, BlockPool, "release")
    def _(original, pool, blocks):
        original(pool, blocks[::-1])


def r36_windows_count_the_tokens_of_one_step_in_flight(patch):
    @wrap(patch, HybridPool, "__init__")
    def _(original, pool, shape):
        original(pool, replace(shape, max_chunk_tokens=shape.max_chunk_tokens // 2))


def r37_the_leftmost_window_counts(patch):
    @wrap(patch, Lookup, "_leading_window")
    def _(original, lookup, keys, group, members):
        for count in range(1, len(keys) + 1):
            if any(lookup._row(key, members) is None for key in keys[:count]):
                return original(lookup, keys[: count - 1], group, members)
        return original(lookup, keys, group, members)


def r38_windows_keep_all_they_have_seen(patch):
    patch.setattr(
        HybridPool, "_kept", lambda pool, index, request, own, first, end: range(first, end)
    )


def r38_only_what_full_attention_found_is_kept(patch):
    @wrap(patch, Lookup, "_search")
    def _(original, lookup, request):
        hits = original(lookup, request)
        full = any(not group.window_tokens for group, _ in lookup._alike)
        return hits if full else replace(hits, longest_tokens=0)


def r40_who_rests_goes_on(patch):
    patch.setattr(Replica, "_rest_ended", lambda replica: None)


def r41_a_block_is_findable_before_its_last_token_is_known(patch):
    @wrap(patch, VllmScheduler, "__init__")
    def _(original, scheduler, *args):
        original(scheduler, *args)
        scheduler._known_new_tokens = 1


def r41_the_last_block_is_not_findable_when_the_last_token_comes(patch):
    @wrap(patch, Replica, "_finish")
    def _(original, replica, request):
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(PrefixCachingPool, "publish", lambda *_: None)
            original(replica, request)


def r41_windows_pass_what_is_in_flight(patch):
    patch.setattr(
        Request, "processed_before", lambda request, step, _: request.computed_before(step)
    )


def r41_windows_pass_chunks_in_flight(patch):
    patch.setattr(
        Request,
        "processed_before",
        lambda request, step, in_flight: (
            request.computed_before(step) - (request.decoding and in_flight)
        ),
    )


def r41_windows_stay_behind_when_nothing_is_in_flight(patch):
    @wrap(patch, Request, "processed_before")
    def _(original, request, step, in_flight):
        return original(request, step, 1)


def r42_who_is_preempted_loses_its_token(patch):
    @wrap(patch, Replica, "_stop_decoding")
    def _(original, replica, request):
        original(replica, request)
        request.generated_tokens -= request.awaiting
        request.known_tokens -= request.awaiting
