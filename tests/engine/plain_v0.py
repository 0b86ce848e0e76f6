"""vLLM V0 with groups of sequences, told plainly: each sequence is the list of who wrote its slots.

Every write has a number of its own. A fork copies the list, and a block is the same memory for two
sequences exactly as long as its last slot was written by the same write: copy-on-write, reference
counts and tables follow from that, and none of them is kept here.
"""

from dataclasses import dataclass, field
from itertools import count

# What a step is compared by.
COMPARED = (
    "start_ns", "duration_ns", "prefill_seqs", "prefill_tokens", "decode_seqs", "decode_kv_tokens",
    "running_seqs", "waiting_seqs", "preempted_seqs", "swapped_seqs", "owned", "held", "shared",
)  # fmt: skip


@dataclass
class Group:
    """What one client sent at once; `slots` has the writers of each sequence that is left."""

    arrival: int
    prompt: int
    answers: list[int]
    parents: list[list[int]] | None = None  # of beams, by choice
    prefix: tuple[int, int] | None = None  # system prompt, and its length
    slots: dict[int, list[int]] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)  # tokens of each answer so far
    followed: int = 0

    def __post_init__(self):
        self.done = dict.fromkeys(range(len(self.answers)), 0)


class PlainV0:
    """One replica; `run` returns a dictionary for each step."""

    def __init__(self, groups, config, cost, swap_blocks, swap_ns, policy):
        self.groups, self.config, self.cost = groups, config, cost
        self.swap_blocks, self.swap_ns, self.swaps_single = swap_blocks, swap_ns, policy.swaps
        self.declares, self.apart = policy.declared_prefixes, policy.prompts_apart
        self.block = config.block_size
        self.blocks = config.num_gpu_blocks - 1
        self.kept_back = int(config.watermark * config.num_gpu_blocks)
        self.waiting, self.running, self.swapped = [], [], []
        self.residents = {}
        self.writes = count()

    # Memory

    def blocks_of(self, sequences):
        """Blocks in use, each told by its place and its last write."""
        return {
            (place, slots[min(place + self.block, len(slots)) - 1])
            for slots in sequences
            for place in range(0, len(slots), self.block)
        }

    def in_use(self, more=()):
        groups = [slots for group in self.running for slots in group.slots.values()]
        return self.blocks_of([*groups, *self.residents.values(), *more])

    def free(self):
        return self.blocks - len(self.in_use())

    def tables(self):
        lengths = [len(slots) for group in self.running for slots in group.slots.values()]
        return sum(-(-length // self.block) for length in lengths)

    # Steps

    def run(self):
        pending, now, steps = sorted(self.groups, key=lambda g: g.arrival), 0, []
        while pending or self.waiting or self.running or self.swapped:
            if not (self.waiting or self.running or self.swapped):
                now = max(now, pending[0].arrival)
            while pending and pending[0].arrival <= now:
                self.waiting.append(pending.pop(0))
            self.follow()
            self.copied_ns, self.lost = 0, 0
            prompts, decoding = self.plan_apart() if self.apart else self.plan_both()
            steps.append(self.record(now, prompts, decoding))
            now += steps[-1]["duration_ns"]
            self.sample(prompts, decoding)
        return steps

    def plan_apart(self):
        prompts = self.admit(self.config.max_num_batched_tokens) if not self.swapped else []
        return prompts, [] if prompts else self.go_on()

    def plan_both(self):
        decoding = list(self.go_on())
        written = sum(len(group.slots) for group in decoding)
        left = self.config.max_num_batched_tokens - written
        return self.admit(left) if not (self.lost or self.swapped) else [], decoding

    def go_on(self):
        self.write()
        if self.swapped and not self.lost:
            self.swap_in()
        return self.running

    def follow(self):
        for group in self.running:
            written = len(next(iter(group.slots.values()))) - group.prompt
            if group.parents and written > group.followed:
                chosen = group.parents[group.followed]
                group.slots = {at: list(group.slots[p]) for at, p in enumerate(chosen)}
                group.followed = written

    def admit(self, budget):
        prompts = []
        while self.waiting:
            group = self.waiting[0]
            known = group.prompt + max(group.done.values())
            found, start, resident = self.beginning(group)
            slots = start + [next(self.writes) for _ in range(known - len(start))]
            before = self.in_use()
            needed = len(self.in_use([slots, *resident.values()]) - before)
            kept_back = self.kept_back if self.running else 0
            sequences = len(group.done)
            running = sum(len(each.slots) for each in self.running)
            if len(before) + needed + kept_back > self.blocks or known > budget:
                break
            if running + sequences > self.config.max_num_seqs:
                break
            budget -= known
            self.waiting.pop(0)
            self.residents |= resident
            group.slots = {at: list(slots) for at in group.done}
            self.running.append(group)
            prompts.append((group, known - found, found))
        return prompts

    def beginning(self, group):
        """What a group finds, what it begins with, and the resident that it brings."""
        if not (self.declares and group.prefix):
            return 0, [], {}
        number, length = group.prefix
        if number in self.residents:
            return length, self.residents[number], {}
        new = [next(self.writes) for _ in range(length)]
        return 0, new, {number: new}

    def write(self):
        for group in list(self.running):
            while group in self.running and len(group.slots) > self.free():
                if self.running == [group]:
                    break
                self.preempt(self.running[-1])
            if group in self.running:
                for slots in group.slots.values():
                    slots.append(next(self.writes))
        assert self.free() >= 0

    def preempt(self, group):
        self.running.remove(group)
        self.lost += len(group.slots)
        resident = self.blocks_of(self.residents.values())
        blocks = len(self.blocks_of(group.slots.values()) - resident)
        if len(group.slots) == 1 and not (self.swaps_single and blocks <= self.swap_blocks):
            group.slots = {}
            self.waiting.insert(0, group)
            return
        assert blocks <= self.swap_blocks
        self.swap_blocks -= blocks
        self.copied_ns += round(blocks * self.swap_ns)
        self.swapped.insert(0, (group, blocks))

    def swap_in(self):
        while self.swapped:
            group, blocks = self.swapped[0]
            extra = len(group.slots) + self.kept_back if self.running else 0
            running = sum(len(each.slots) for each in self.running)
            if running + len(group.slots) > self.config.max_num_seqs:
                return
            if blocks + extra > self.free():
                return
            self.swapped.pop(0)
            self.swap_blocks += blocks
            self.copied_ns += round(blocks * self.swap_ns)
            self.running.append(group)
            for slots in group.slots.values():
                slots.append(next(self.writes))

    def record(self, now, prompts, decoding):
        contexts = [len(slots) for group in decoding for slots in group.slots.values()]
        chunk = sum(new for _, new, _ in prompts)
        chunks_ns = self.cost.chunks_ns([(new, found) for _, new, found in prompts])
        owned = self.in_use()
        seqs = len(prompts) + len(contexts)
        duration = self.cost.step_ns(
            chunk + len(contexts), seqs, len(contexts), sum(contexts), chunks_ns
        )
        filled = {
            (place // self.block, write)
            for slots in [
                *(slots for group in self.running for slots in group.slots.values()),
                *self.residents.values(),
            ]
            for place, write in enumerate(slots)
        }
        # A copy of a block holds the slots that were written before it was copied, too.
        copies = {
            (place, last): min(self.block, length - place) for place, last, length in self.ends()
        }
        assert len(filled) <= sum(copies.values())
        return {
            "start_ns": now,
            "duration_ns": duration + self.copied_ns,
            "prefill_seqs": len(prompts),
            "prefill_tokens": chunk,
            "decode_seqs": len(contexts),
            "decode_kv_tokens": sum(contexts),
            "running_seqs": sum(len(group.slots) for group in self.running),
            "waiting_seqs": sum(len(group.done) for group in self.waiting),
            "preempted_seqs": self.lost,
            "swapped_seqs": sum(len(group.slots) for group, _ in self.swapped),
            "owned": len(owned) * self.block,
            "held": sum(copies.values()),
            "shared": (self.tables() - len(owned)) * self.block,
        }

    def ends(self):
        sequences = [slots for group in self.running for slots in group.slots.values()]
        for slots in [*sequences, *self.residents.values()]:
            for place in range(0, len(slots), self.block):
                yield place, slots[min(place + self.block, len(slots)) - 1], len(slots)

    def sample(self, prompts, decoding):
        """Each sequence of the step gets a token; answers that are complete leave."""
        for group in [*(group for group, _, _ in prompts), *decoding]:
            for at in list(group.slots):
                group.done[at] += 1
                if group.done[at] == group.answers[at]:
                    del group.slots[at], group.done[at]
            if not group.slots:
                self.running = [each for each in self.running if each is not group]
