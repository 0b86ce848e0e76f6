"""Pipeline parallelism: an iteration of all sequences, of which each stage computes a part.

vLLM keeps as many batches in flight as there are stages, each of a part of the sequences. In the
steady state every stage works on another batch; a cycle over all of them is one iteration here,
and yields a token for each sequence. With p stages and b = min(p, sequences) batches it lasts

    all layers at tokens / b, + p hops, + p times what the host adds to a turn of a stage;

if the pipe is full (b = p), the slowest stage sets the pace: p times its layers, and p times the
logits and the sampler, which the last stage alone has.

Limits of this form: the batches are taken to be equal. A long prompt is in one of them, so a step
that has one among decodes lasts longer than this; a prompt alone is one batch, though vLLM lets
its chunks follow each other through the stages. A batch has max_num_batched_tokens in vLLM, here
all batches together have them: prompts are computed in smaller pieces, which matters where those
are small.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvsim.cost import Basis, Part, StepShape
from kvsim.cost.step import AttentionLayers, KernelCost, Work
from kvsim.cost.tables import Curve, Floats


@dataclass(frozen=True, slots=True)
class Kernels:
    """What iterations are made of, all layers in one batch.

    Attributes:
        tokens: Curves of the layers and the model's ends, by tokens.
        hops: Curves of all copies between stages, by tokens.
        last: Curves by sequences of what only the last stage does.
        host: The host's part of a turn of a stage, by sequences.
        attention: All attention layers.
        upkeep: What the host takes for 0 and 1 token of decoded context, once for each stage.
        work: What the GPUs of all stages do together.
    """

    tokens: Sequence[Curve]
    hops: Sequence[Curve]
    last: Sequence[Curve]
    host: Curve
    attention: Sequence[AttentionLayers]
    upkeep: Curve
    work: Work

    def cost(self) -> KernelCost:
        """Return the price of iterations without pipeline stages."""
        seqs = [*self.last, self.host]
        return KernelCost(self.tokens, seqs, self.attention, self.work, self.upkeep)


class PipelineCost:
    """Prices iterations of a server with pipeline stages: by the number of batches in flight."""

    def __init__(self, kernels: Kernels, stages: int, slowest_share: float) -> None:
        """Tabulate an iteration for each number of batches.

        Args:
            kernels: What iterations are made of.
            stages: Pipeline stages p, at least 2.
            slowest_share: Part of all layers that the longest stage has, at least 1/p.
        """
        self._stages = stages
        full = [1.0] * (stages - 1) + [stages * slowest_share]
        # By batches; no sequence counts as one.
        self._chunk_shares = [full[0]] + [full[b - 1] / b for b in range(1, stages + 1)]
        costs = [_of_batches(kernels, b, stages, full[b - 1]) for b in range(1, stages + 1)]
        self._costs = [costs[0], *costs]

    @property
    def basis(self) -> Sequence[tuple[str, Basis, str]]:
        """Component, on what its price rests, and what to know about it; without repeats."""
        return self._costs[-1].basis

    def chunks_ns(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Return the attention time, over all layers, of a step's prefill chunks (new, prefix)."""
        return self._costs[0].chunks_ns(chunks)

    def step_ns(
        self, tokens: int, seqs: int, decode_seqs: int, decode_kv_tokens: int, chunks_ns: float
    ) -> int:
        """Return the duration of an iteration, at least 1, rounded once."""
        batches = seqs if seqs < self._stages else self._stages
        chunks_ns *= self._chunk_shares[batches]
        return self._costs[batches].step_ns(tokens, seqs, decode_seqs, decode_kv_tokens, chunks_ns)

    def decode_steps_ns(self, seqs: int, decode_kv_tokens: int, steps: int) -> list[int]:
        """Return the durations of steps that only decode, the same sequences in each."""
        batches = seqs if seqs < self._stages else self._stages
        return self._costs[batches].decode_steps_ns(seqs, decode_kv_tokens, steps)

    def parts_ns(self, steps: StepShape) -> Mapping[Part, NDArray[np.float64]]:
        """Split the durations of many steps into parts; they sum to the duration within 1 ns."""
        in_flight = np.minimum(steps.prefill_seqs + steps.decode_seqs, self._stages)
        sums: dict[Part, Floats] = {}
        for batches in range(1, self._stages + 1):
            chunks_ns = steps.prefill_attention_ns * self._chunk_shares[batches]
            split = self._costs[batches].parts_ns(replace(steps, prefill_attention_ns=chunks_ns))
            where = np.maximum(in_flight, 1) == batches
            for part, ns in split.items():
                sums[part] = sums.get(part, 0.0) + np.where(where, ns, 0.0)
        return sums

    def work(self, steps: StepShape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return model FLOPs and HBM bytes (weights, KV) of each step, of the mean GPU."""
        in_flight = np.maximum(np.minimum(steps.prefill_seqs + steps.decode_seqs, self._stages), 1)
        each = [cost.work(steps) for cost in self._costs[1:]]
        flops, size_bytes = (
            np.choose(in_flight - 1, [work[i] for work in each]) / self._stages for i in (0, 1)
        )
        return flops, size_bytes

    def peaks(self) -> tuple[float, float]:
        """Return the GPU's peak FLOP/s (of the weights' dtype, dense) and HBM bytes/s."""
        return self._costs[0].peaks()


def _of_batches(kernels: Kernels, batches: int, stages: int, slowest: float) -> KernelCost:
    """Return the price of a cycle over equal batches; `slowest` is the full pipe's imbalance."""
    turns = stages if batches == stages else 1
    tokens = [_split(curve, batches, slowest) for curve in kernels.tokens]
    tokens += [_split(curve, batches) for curve in kernels.hops]
    seqs = [_split(curve, batches, turns) for curve in kernels.last]
    seqs.append(_split(kernels.host, batches, stages))
    attention = [_split_attention(layers, batches, slowest) for layers in kernels.attention]
    upkeep = Curve(kernels.upkeep.part, kernels.upkeep.ns * (stages / batches))
    read = kernels.work.weight_bytes
    read = batches * read[_share_of(len(read), batches)]
    return KernelCost(tokens, seqs, attention, replace(kernels.work, weight_bytes=read), upkeep)


def _share_of(count: int, batches: int) -> NDArray[np.int64]:
    """Return what the largest of the batches gets of 0, 1, 2, ... tokens or sequences."""
    return -(-np.arange(count) // batches)


def _split(curve: Curve, batches: int, times: float = 1.0) -> Curve:
    return Curve(curve.part, curve.ns[_share_of(len(curve.ns), batches)] * times)


def _split_attention(layers: AttentionLayers, batches: int, slowest: float) -> AttentionLayers:
    """Divide the sequences of decode; the time of chunks is divided when it is known."""
    prefill, decode = layers.prefill, layers.decode
    return replace(
        layers,
        prefill=replace(prefill, fixed_ns=prefill.fixed_ns * slowest),
        decode=replace(
            decode,
            fixed_ns=decode.fixed_ns * slowest,
            # Of the batches one has the chunks, so the decodes of the others aren't slowed.
            mixed_factor=1 + (decode.mixed_factor - 1) / batches,
            shared_ns=decode.shared_ns * slowest / batches,
            seq_ns=decode.seq_ns * (slowest / batches),
            ratios=decode.ratios.of_batches(batches) if decode.ratios else None,
        ),
    )
