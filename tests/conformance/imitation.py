"""Enough of vLLM's scheduler classes, and of the loops around them, to record a schedule from.

First come, first served, with a budget and memory for all. The clock goes on at every look, as a
real one does.
"""

from types import SimpleNamespace

BLOCK_SIZE = 16


class Request:
    """A request under vLLM's names."""

    def __init__(self, request_id, prompt_token_ids, max_tokens):
        self.request_id, self.prompt_token_ids = request_id, prompt_token_ids
        self.max_tokens, self.priority = max_tokens, 0
        self.output_token_ids = []
        self.num_computed_tokens = 0


class Scheduler:
    """Schedules whole prompts, then a token a step; equal prompts are found in the cache."""

    def __init__(self, asynchronous, caching):
        self.requests, self.waiting, self.running, self.cached = {}, [], [], set()
        self.blocks = {}  # of running requests, shared ones by their content
        self.kv_cache_manager = SimpleNamespace(block_pool=self)
        self.num_gpu_blocks, self.max_model_len = 1001, 512
        self.cache_config = SimpleNamespace(block_size=BLOCK_SIZE, enable_prefix_caching=caching)
        self.scheduler_config = SimpleNamespace(
            max_num_seqs=8,
            max_num_batched_tokens=512,
            policy="fcfs",
            async_scheduling=asynchronous,
        )
        spec = SimpleNamespace(block_size=BLOCK_SIZE)
        self.kv_cache_config = SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)]
        )

    def add_request(self, request):
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def get_num_free_blocks(self):
        used = {block for blocks in self.blocks.values() for block in blocks}
        return self.num_gpu_blocks - 1 - len(used)

    def schedule(self):
        scheduled = {}
        for request in self.running:
            last = len(request.prompt_token_ids) + request.max_tokens - 1
            if request.num_computed_tokens < last:
                scheduled[request.request_id] = 1
        while self.waiting:
            request = self.waiting.pop(0)
            self.running.append(request)
            tokens = request.prompt_token_ids
            request.num_computed_tokens = self._hit_tokens(tokens)
            scheduled[request.request_id] = len(tokens) - request.num_computed_tokens
        for name, tokens in scheduled.items():
            request = self.requests[name]
            request.num_computed_tokens += tokens
            self._take_blocks(request)
        return SimpleNamespace(num_scheduled_tokens=scheduled)

    def update_from_output(self, scheduler_output, model_runner_output):
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests[name]
            request.output_token_ids.append(model_runner_output[name])
            if len(request.output_token_ids) == request.max_tokens:
                self.running.remove(request)
                del self.requests[name], self.blocks[name]

    def shutdown(self):
        pass

    def _hit_tokens(self, tokens):
        found = 0
        while (
            found + BLOCK_SIZE < len(tokens) and tuple(tokens[: found + BLOCK_SIZE]) in self.cached
        ):
            found += BLOCK_SIZE
        return found

    def _take_blocks(self, request):
        """Keep count of blocks: full ones of prompts are shared, and found from now on."""
        caching, prompt = self.cache_config.enable_prefix_caching, request.prompt_token_ids
        blocks = []
        for begin in range(0, request.num_computed_tokens, BLOCK_SIZE):
            key = tuple(prompt[: begin + BLOCK_SIZE])
            full = caching and len(key) == begin + BLOCK_SIZE
            if full:
                self.cached.add(key)
            blocks.append(key if full else (request.request_id, begin))
        self.blocks[request.request_id] = blocks


class Server:
    """The engine core's loop: takes requests in, schedules, computes, takes the output in."""

    def __init__(self, scheduler, clock):
        self.scheduler, self.clock = scheduler, clock
        self.most_in_flight = 2 if scheduler.scheduler_config.async_scheduling else 1
        self.sampled = 0

    def serve(self, to_come):
        """Serve requests, [(time to send in s, request)] in order of time."""
        scheduler, flight, free_at = self.scheduler, [], 0.0
        while to_come or scheduler.requests:
            while to_come and (to_come[0][0] <= self.clock.now_s or not scheduler.requests):
                self.clock.now_s = max(self.clock.now_s, to_come[0][0])
                scheduler.add_request(to_come.pop(0)[1])
            output = scheduler.schedule()
            if output.num_scheduled_tokens:
                tokens = sum(output.num_scheduled_tokens.values())
                free_at = max(self.clock.now_s, free_at) + 0.005 + 0.00002 * tokens
                flight.append((free_at, output))
                if len(flight) < self.most_in_flight:
                    continue
            ends_at, output = flight.pop(0)
            self.clock.now_s = max(self.clock.now_s, ends_at)
            answers = {}
            for name in output.num_scheduled_tokens:
                self.sampled += 1
                answers[name] = 1_000_000 + self.sampled
            scheduler.update_from_output(output, answers)


class Clock:
    """Goes on by 50 µs at every look."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.now_s += 0.00005
        return self.now_s
