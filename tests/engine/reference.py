"""A plain, slow engine: no SimPy, no calendars, every running request touched in every step.

It says in the most direct way what one replica must do; the production loop has to give the same
timestamps and decisions, bit for bit. Pools are the production allocators,
asked for exactly the tokens of each step.
"""

import math
from dataclasses import dataclass, field

from kvsim.cost import StepCost
from kvsim.engine.allocators import KVAllocator, Shortage
from kvsim.engine.allocators._hybrid import HybridPool
from kvsim.engine.config import EngineConfig
from kvsim.engine.content import Content

WAITING_FOR = {
    Shortage.MEMORY: "kv_blocks",
    Shortage.HOLE: "hole",
    Shortage.WATERMARK: "watermark",
}


@dataclass
class Job:
    number: int
    arrival_ns: int
    prompt_tokens: int
    max_tokens: int
    answer_tokens: int
    priority: int = 0
    computed: int = 0
    slots: int = 0  # asked of the allocator so far
    slid: int = 0  # tokens that were processed when its windows last gave blocks back
    passed: list[int] = field(default_factory=list)  # null blocks at admission, by group
    token_times_ns: list[int] = field(default_factory=list)
    admitted_ns: int = -1
    preemptions: int = 0
    recomputed: int = 0
    stalled: bool = False  # decoding, but the budget didn't reach it
    target: int = 0  # tokens to compute as prompt: after a preemption its answer so far as well
    content: Content | None = None
    in_flight: int = 0  # tokens sampled for it in steps that have not ended
    lost: int = 0  # computed before it was preempted
    cached: int = 0
    done: bool = False

    def __post_init__(self) -> None:
        self.target = self.prompt_tokens

    @property
    def generated_tokens(self) -> int:
        return len(self.token_times_ns)

    @property
    def in_decode(self) -> bool:
        return self.stalled or self.computed >= self.target

    @property
    def known(self) -> int:
        return self.prompt_tokens + len(self.token_times_ns)

    @property
    def known_tokens(self) -> int:
        return self.known

    @property
    def rests(self) -> bool:
        """Its last token, by max_tokens, is in flight."""
        return self.known + self.in_flight == self.prompt_tokens + self.max_tokens

    def block_keys(self, first: int, end: int, block_size: int) -> list[int]:
        assert self.content is not None
        return self.content.block_keys(first, end, block_size)


@dataclass
class Step:
    start_ns: int
    duration_ns: int
    scheduled: list[tuple[int, int, int]]
    preempted: list[int]
    running: int
    waiting: int
    head_lacks: str
    held: int
    inside: int
    chunks: tuple[int, int, int, int, int]  # seqs, tokens, contexts, pairs, attention ns
    decodes: tuple[int, int]  # seqs, contexts
    taken: int
    rounding: int
    holes: int
    free: int
    shared: int
    end_ns: int = 0
    jobs: list[tuple[Job, bool]] = field(default_factory=list)  # and whether a token is sampled
    discarded: int = 0


class ReferenceEngine:
    def __init__(self, config: EngineConfig, pool: KVAllocator, cost: StepCost) -> None:
        self.config, self.pool, self.cost = config, pool, cost
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.steps: list[Step] = []
        self.flight: list[Step] = []
        self.most_in_flight = 2 if config.async_scheduling else 1
        self.free_at_ns = 0
        self.next_prefill = 0  # step before which prefill work is held back
        self.left_waiting = False
        self.prefilled = False  # in this call: as vLLM's prefill_scheduled and prefill_admitted
        self.left: list[int] = []  # the jobs that ended, in their order
        self.stalls = 0
        self.ended_waiting = 0  # whose last token was in flight when they were preempted
        self.withdrawn = 0  # victims that had been scheduled in the same step

    def run(self, jobs: list[Job]) -> list[Step]:
        now, to_come = 0, list(jobs)
        while to_come or self.waiting or self.running or self.flight:
            if not (self.waiting or self.running or self.flight):
                now = max(now, to_come[0].arrival_ns)
            while to_come and to_come[0].arrival_ns <= now:
                self._wait(to_come.pop(0))
            scheduled = (self.waiting or self.running) and self._step(now)
            if scheduled and len(self.flight) < self.most_in_flight:
                continue
            step = self.flight.pop(0)
            now = step.end_ns
            self._take_output(step)
        return self.steps

    def _step(self, now: int) -> bool:
        config = self.config
        cap = config.max_num_batched_tokens
        requests = len(self.running) + len(self.waiting)
        if config.long_prefill_token_threshold and requests > 1:
            least = cap // requests if config.long_prefill_token_threshold_adaptive else 0
            cap = max(config.long_prefill_token_threshold, least)
        throttled = (
            len(self.steps) < self.next_prefill
            and any(job.in_decode for job in self.running)
            and not self.left_waiting
        )
        plan: dict[int, tuple[Job, int]] = {}
        self.prefilled = False
        preempted = self._schedule_running(plan, cap, throttled)
        for job in self.running:
            if job.in_decode and job.number not in plan and not job.rests:
                self.stalls += 1
                job.stalled, job.target = True, job.computed + 1
        lacks = "nothing"
        if self.waiting:
            lacks = "preempting" if preempted else self._admit(now, plan, cap, throttled)
        if self.prefilled:
            executed = len(self.steps) + bool(plan)
            self.next_prefill = executed - 1 + config.prefill_schedule_interval
        if not throttled and not preempted:
            self.left_waiting = bool(self.waiting)
        return self._execute(now, list(plan.values()), preempted, lacks)

    def _left(self, plan: dict[int, tuple[Job, int]]) -> int:
        budget = self.config.max_num_scheduled_tokens or self.config.max_num_batched_tokens
        return budget - sum(tokens for _, tokens in plan.values())

    def _schedule_running(
        self, plan: dict[int, tuple[Job, int]], cap: int, throttled: bool
    ) -> list[Job]:
        preempted: list[Job] = []
        for job in list(self.running):
            tokens = min(job.known + job.in_flight - job.computed, cap, self._left(plan))
            if job in preempted or tokens == 0 or (throttled and not job.in_decode) or job.rests:
                continue
            job.slid = job.computed - self._in_flight(job)
            self.pool.release(job.number, job.slid)
            while not self._room(job, job.computed + tokens):
                victim = self._victim()
                self.running.remove(victim)
                self.withdrawn += plan.pop(victim.number, None) is not None
                self._preempt(victim)
                preempted.append(victim)
                if victim is job:
                    break
            else:
                plan[job.number] = job, tokens
                self.prefilled |= not job.in_decode
                self._publish(job, min(job.computed + tokens, job.known))
        return preempted

    def _admit(self, now: int, plan: dict[int, tuple[Job, int]], cap: int, throttled: bool) -> str:
        config = self.config
        while self.waiting:
            if len(self.running) == (config.max_num_active_seqs or config.max_num_seqs):
                binds = len(self.running) < config.max_num_seqs
                return "active_sequence_slot" if binds else "sequence_slot"
            job, budget = self.waiting[0], self._left(plan)
            cached = self.pool.lookup(job)
            tokens = min(job.known - cached, cap)
            if tokens > budget and not config.enable_chunked_prefill:
                tokens = 0
            tokens = min(tokens, budget)
            if tokens == 0:
                limit = config.max_num_scheduled_tokens or config.max_num_batched_tokens
                binds = limit < config.max_num_batched_tokens
                return "scheduled_token_budget" if binds else "token_budget"
            if throttled and job.known - cached > 1:
                return "prefill_step"
            idle = not self.running
            shortage = self.pool.shortage(job, cached + tokens, idle, at_once=True)
            if config.scheduler_reserve_full_isl:
                shortage = self.pool.shortage(job, job.known, idle) or shortage
            if shortage:
                return WAITING_FOR[shortage]
            self.waiting.pop(0)
            assert self.pool.allocate(job, job.number, cached + tokens)
            self._publish(job, cached + tokens)
            self._note_passed(job)
            job.slots, job.computed, job.target = cached + tokens, cached, job.known
            job.recomputed += max(0, job.lost - cached)
            job.lost = 0
            if job.admitted_ns < 0:
                job.admitted_ns, job.cached = now, cached
            self.running.append(job)
            plan[job.number] = job, tokens
            self.prefilled |= job.known - cached > 1
        return "nothing"

    def _note_passed(self, job: Job) -> None:
        """Note the blocks of windows that were found, but aren't needed."""
        job.passed = []
        if isinstance(self.pool, HybridPool):
            job.passed = [table.count(0) for table in self.pool.block_tables(job.number)]

    def _in_flight(self, job: Job) -> int:
        """The tokens of a job that steps in flight compute."""
        return sum(
            tokens
            for step in self.flight
            for number, tokens, _ in step.scheduled
            if number == job.number
        )

    def _victim(self) -> Job:
        if self.config.scheduling_policy == "fcfs":
            return self.running[-1]
        worst = max((job.priority, job.arrival_ns) for job in self.running)
        return next(job for job in self.running if (job.priority, job.arrival_ns) == worst)

    def _wait(self, job: Job, back: bool = True) -> None:
        self.waiting.insert(len(self.waiting) if back else 0, job)
        if self.config.scheduling_policy == "priority":
            self.waiting.sort(key=lambda each: (each.priority, each.arrival_ns, each.number))

    def _room(self, job: Job, slots: int) -> bool:
        if slots > job.slots:
            if not self.pool.append(job.number, slots - job.slots):
                return False
            job.slots = slots
        return True

    def _preempt(self, job: Job) -> None:
        self.pool.free(job.number)
        job.preemptions += 1
        job.lost = job.computed
        job.computed = job.slots = job.slid = job.in_flight = 0
        job.stalled = False
        self._wait(job, back=False)

    def _publish(self, job: Job, tokens: int) -> None:
        if self.config.enable_prefix_caching:
            self.pool.publish(job, job.number, tokens)

    def _take_output(self, step: Step) -> None:
        for job, sampled in step.jobs:
            if not sampled:
                continue
            if job.done:
                step.discarded += 1
                continue
            job.token_times_ns.append(step.end_ns)
            job.in_flight = max(0, job.in_flight - 1)
            job.done = job.generated_tokens == job.answer_tokens
            if job.done:
                self.left.append(job.number)
            if job in self.running:
                self._publish(job, job.computed - job.in_flight)
                if job.done:
                    self.pool.free(job.number)
                    self.running.remove(job)
            elif job.done:
                self.waiting.remove(job)
                self.ended_waiting += 1

    def _execute(
        self, now: int, plan: list[tuple[Job, int]], preempted: list[Job], lacks: str
    ) -> bool:
        if not plan:
            assert self.flight
            return False
        decodes = [job for job, _ in plan if job.computed >= job.target]
        chunks = [(job, tokens) for job, tokens in plan if job not in decodes]
        chunks_ns = self.cost.chunks_ns([(tokens, job.computed) for job, tokens in chunks])
        kv_tokens = sum(job.computed + 1 for job in decodes)
        duration = self.cost.step_ns(
            sum(tokens for _, tokens in plan), len(plan), len(decodes), kv_tokens, chunks_ns
        )
        scheduled = [(job.number, tokens, job.computed) for job, tokens in plan]
        jobs = []
        for job, tokens in plan:
            job.computed += tokens
            job.stalled = False
            sampled = job.computed == job.known + job.in_flight
            job.in_flight += sampled
            jobs.append((job, sampled))
        shape = (
            len(chunks),
            sum(tokens for _, tokens in chunks),
            sum(job.computed for job, _ in chunks),
            sum(sum(range(job.computed - tokens + 1, job.computed + 1)) for job, tokens in chunks),
            round(chunks_ns),
        )
        start = max(now, self.free_at_ns)
        self.free_at_ns = start + duration
        self._record(start, duration, scheduled, preempted, lacks, shape, len(decodes), kv_tokens)
        self.steps[-1].end_ns, self.steps[-1].jobs = self.free_at_ns, jobs
        self.flight.append(self.steps[-1])
        return True

    def _owned(self, job: Job) -> tuple[int, int]:
        """The slots of a job that hold tokens, and those that none will ever fill."""
        final = job.prompt_tokens + job.answer_tokens - 1
        if self.config.async_scheduling and job.answer_tokens < job.max_tokens:
            final += 1
        if not isinstance(self.pool, HybridPool):
            return job.computed, max(0, self.pool.slots_tokens(job.number) - final)
        held = inside = 0
        largest = math.lcm(*(group.block_size for group in self.config.kv_groups))
        for group, at_first in zip(self.config.kv_groups, job.passed, strict=True):
            size, window = group.block_size, group.window_tokens
            slots = largest // size  # of a token
            passed = max(at_first, max(0, job.slid + 1 - window) // size if window else 0)
            held += (job.computed - passed * size) * slots
            inside += max(0, math.ceil(job.slots / size) * size - final) * slots
        return held, inside

    def _record(
        self,
        now: int,
        duration: int,
        scheduled: list[tuple[int, int, int]],
        preempted: list[Job],
        lacks: str,
        chunks: tuple[int, int, int, int, int],
        decode_seqs: int,
        decode_kv_tokens: int,
    ) -> None:
        pool = self.pool
        held, inside = map(sum, zip((0, 0), *map(self._owned, self.running), strict=True))
        self.steps.append(
            Step(
                now,
                duration,
                scheduled,
                [job.number for job in preempted],
                len(self.running),
                len(self.waiting),
                lacks,
                held - pool.shared_tokens,
                inside,
                chunks,
                (decode_seqs, decode_kv_tokens),
                pool.taken_tokens,
                pool.rounding_tokens,
                pool.holes_tokens,
                pool.free_tokens - pool.reusable_tokens,
                pool.shared_tokens,
            )
        )
