"""Plain, slow engines of 2022 and 2023: lists and counters, nothing of the production ones.

Each says in the most direct way what one replica must do. KV memory is a number of free blocks, or
of free places for sequences.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field


@dataclass(eq=False)
class Job:
    number: int
    arrival_ns: int
    prompt: int
    answer: int
    computed: int = 0
    times_ns: list[int] = field(default_factory=list)  # of its tokens
    admitted_ns: int = -1
    finish_ns: int = -1
    preemptions: int = 0
    recomputed: int = 0
    lost: int = 0  # computed tokens that are to be computed again
    blocks: int = 0

    @property
    def known(self) -> int:
        return self.prompt + len(self.times_ns)

    @property
    def done(self) -> bool:
        return len(self.times_ns) == self.answer


@dataclass
class Row:
    """A step, as the steps table has it."""

    start_ns: int
    duration_ns: int
    prefill_tokens: int
    decode_seqs: int
    decode_kv_tokens: int
    running_seqs: int
    waiting_seqs: int
    preempted_seqs: int
    paused_seqs: int
    discarded_seqs: int = 0
    swapped_seqs: int = 0
    swap_ns: int = 0
    kv_held_tokens: int = 0
    owned_tokens: int = 0


class Engine(ABC):
    """Time, arrivals and rows; a subclass says in `plan` who is computed next."""

    def __init__(self, cost, max_seqs, budget):
        self.cost, self.max_seqs, self.budget = cost, max_seqs, budget
        self.waiting, self.running, self.rows = [], [], []

    def run(self, jobs):
        now, to_come = 0, list(jobs)
        while to_come or self.waiting or self.running or self.elsewhere():
            if not (self.waiting or self.running or self.elsewhere()):
                now = max(now, to_come[0].arrival_ns)
            while to_come and to_come[0].arrival_ns <= now:
                self.waiting.append(to_come.pop(0))
            self.preempted = self.copied_blocks = 0
            chunks, decodes, ended = self.plan(now)
            now = self.execute(now, chunks, decodes, ended)
        return self.rows

    def elsewhere(self):
        return ()

    def swap_ns(self):
        return 0

    @abstractmethod
    def owned_tokens(self):
        """How many slots are owned."""

    def execute(self, now, chunks, decodes, ended):
        """Compute whole prompts, and a token for each of `decodes`; `ended` rows are for nobody."""
        chunks_ns = self.cost.chunks_ns([(job.known, 0) for job in chunks])
        tokens = sum(job.known for job in chunks)
        seqs = len(decodes) + len(ended)
        contexts = sum(job.computed + 1 for job in decodes)
        duration = self.swap_ns() + self.cost.step_ns(
            tokens + seqs, len(chunks) + seqs, seqs, contexts, chunks_ns
        )
        computing = [*chunks, *decodes, *ended]
        idle = [job for job in self.running if job not in computing and not job.done]
        paused = sum(job.computed > 0 for job in idle)
        for job in decodes:
            job.computed += 1
        for job in chunks:
            job.computed = job.known
        self.rows.append(
            Row(
                now,
                duration,
                tokens,
                seqs,
                contexts,
                len(self.running),
                len(self.waiting),
                self.preempted,
                paused,
                len(ended),
                len(self.elsewhere()),
                self.swap_ns(),
                sum(job.computed for job in self.running),
                self.owned_tokens(),
            )
        )
        for job in [*chunks, *decodes]:
            job.times_ns.append(now + duration)
        self.end(now + duration)
        return now + duration

    def end(self, now):
        for job in [job for job in self.running if job.done]:
            job.finish_ns = now
            self.running.remove(job)
            self.give_back(job)

    def take_in(self, job, now):
        if job.admitted_ns < 0:
            job.admitted_ns = now
        job.recomputed += job.lost
        job.lost = job.computed = 0
        self.running.append(job)


class Places(Engine):
    """Memory for so many sequences of the longest length."""

    def __init__(self, cost, max_seqs, budget, places, longest):
        super().__init__(cost, max_seqs, budget)
        self.most, self.longest = min(places, max_seqs), longest

    def owned_tokens(self):
        return len(self.running) * self.longest

    def give_back(self, job):
        pass


class PlainOrca(Places):
    def plan(self, now):
        decodes, chunks = list(self.running), []
        budget = self.budget - len(decodes)
        while self.waiting and len(self.running) < self.most:
            if self.waiting[0].known > budget:
                break
            job = self.waiting.pop(0)
            self.take_in(job, now)
            budget -= job.known
            chunks.append(job)
        return chunks, decodes, []


class PlainStaticBatches(Places):
    def plan(self, now):
        if not self.running:
            while self.waiting and len(self.running) < self.most:
                self.take_in(self.waiting.pop(0), now)
        chunks = []
        for job in self.running:
            if not job.computed:
                if chunks and sum(each.known for each in [*chunks, job]) > self.budget:
                    break
                chunks.append(job)
        if chunks:
            return chunks, [], []
        going_on = [job for job in self.running if not job.done]
        return [], going_on, [job for job in self.running if job.done]

    def end(self, now):
        if all(job.done for job in self.running):
            super().end(now)


class PlainV0(Engine):
    def __init__(self, cost, max_seqs, budget, blocks, size, watermark_blocks, host, apart):
        super().__init__(cost, max_seqs, budget)
        self.apart = apart
        self.free, self.size, self.watermark = blocks, size, watermark_blocks
        self.host_free, self.block_ns = host or (0, 0)
        self.swapped = []

    def elsewhere(self):
        return self.swapped

    def swap_ns(self):
        return self.copied_blocks * self.block_ns

    def owned_tokens(self):
        return sum(job.blocks for job in self.running) * self.size

    def needed(self, tokens):
        return -(-tokens // self.size)

    def fits(self, blocks):
        return blocks + (self.watermark if self.running else 0) <= self.free

    def take(self, job, blocks):
        job.blocks += blocks
        self.free -= blocks

    def give_back(self, job):
        self.free += job.blocks
        job.blocks = 0

    def plan(self, now):
        if not self.apart:
            decodes = self.go_on()
            left = self.budget - len(decodes)
            return self.admit(now, left) if not self.preempted else [], decodes, []
        chunks = self.admit(now, self.budget)
        return chunks, [] if chunks else self.go_on(), []

    def admit(self, now, budget):
        chunks = []
        if not self.swapped:
            while self.waiting and len(self.running) < self.max_seqs:
                job = self.waiting[0]
                if job.known > budget or not self.fits(self.needed(job.known)):
                    break
                self.waiting.pop(0)
                self.take_in(job, now)
                self.take(job, self.needed(job.known))
                budget -= job.known
                chunks.append(job)
        return chunks

    def go_on(self):
        for job in list(self.running):
            missing = self.needed(job.computed + 1) - job.blocks
            while job in self.running and not (
                self.free or (not missing and len(self.running) == 1)
            ):
                self.evict(self.running.pop())
            if job in self.running:
                self.take(job, missing)
        if not self.preempted:
            self.swap_in()
        return list(self.running)

    def evict(self, job):
        self.preempted += 1
        job.preemptions += 1
        blocks = job.blocks
        self.give_back(job)
        if blocks <= self.host_free:
            self.host_free -= blocks
            job.host_blocks = blocks
            self.copied_blocks += blocks
            self.swapped.insert(0, job)
        else:
            job.lost = job.computed
            self.waiting.insert(0, job)

    def swap_in(self):
        while self.swapped and len(self.running) < self.max_seqs:
            job = self.swapped[0]
            wanted = job.host_blocks + 1 if self.running else self.needed(job.computed + 1)
            if not self.fits(wanted):
                break
            self.swapped.pop(0)
            self.host_free += job.host_blocks
            self.copied_blocks += job.host_blocks
            self.take(job, self.needed(job.computed + 1))
            self.running.append(job)
