"""The engine iteration as a sum of tabulated kernels: a few look-ups for each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.cost import Part, StepShape
from kvsim.cost.attention import DecodePrice, PrefillPrice
from kvsim.cost.tables import Curve, Floats


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """Equal attention layers of one GPU: how many, and what one of them costs and does."""

    count: int
    prefill: PrefillPrice
    decode: DecodePrice
    flop_per_pair: float
    kv_bytes_per_token: float
    window_tokens: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a GPU has to do in a step, beside attention; arrays indexed by tokens."""

    flop_per_token: float
    flop_per_seq: float
    weight_bytes: Floats
    peak_flop_per_s: float
    hbm_bytes_per_s: float


class KernelCost:
    """Prices iterations from curves over tokens, curves over sequences, and attention.

    Attributes:
        basis: Component, on what its price rests, and what to know about it; without repeats.
    """

    def __init__(
        self,
        token_curves: Sequence[Curve],
        seq_curves: Sequence[Curve],
        attention: Sequence[AttentionLayers],
        work: Work,
    ) -> None:
        self._token_curves = _merged(token_curves)
        self._seq_curves = _merged(seq_curves)
        self._attention = tuple(attention)
        self._work = work
        self._tokens = _total(self._token_curves)
        self._seqs = _total(self._seq_curves)
        self._call_ns = sum(layers.count * layers.prefill.fixed_ns for layers in attention)
        self._decode_call_ns = sum(layers.count * layers.decode.fixed_ns for layers in attention)
        self._mixed_factor = sum(
            layers.count * layers.decode.mixed_factor for layers in attention
        ) / sum(layers.count for layers in attention)
        self._decode = np.sum([layers.count * layers.decode.seq_ns for layers in attention], axis=0)
        self._decode_slope = np.append(np.diff(self._decode), 0.0)
        # Lists: indexing one is several times faster than indexing an array.
        self._tokens_ns: list[float] = self._tokens.tolist()
        self._seqs_ns: list[float] = self._seqs.tolist()
        self._decode_ns: list[float] = self._decode.tolist()
        self._decode_slope_ns: list[float] = self._decode_slope.tolist()
        self._chunks = [_chunk_tables(layers) for layers in attention]
        self.basis = tuple(
            dict.fromkeys((part.component, part.basis, part.note) for part in self._parts())
        )

    def chunk_ns(self, new_tokens: int, prefix_tokens: int) -> float:
        """Return the attention time, over all layers, of one prefill chunk on its prefix.

        The fixed cost of the kernel call is not in it: one call serves all chunks of a step, and
        `step_ns` adds it once.
        """
        half = new_tokens / 2
        total_ns = 0.0
        for base_ns, pair_ns, key_ns, tail_ns, window_tokens in self._chunks:
            keys = prefix_tokens + half
            keys = keys if keys < window_tokens else window_tokens
            by_flops = pair_ns[new_tokens] * keys
            by_loop = key_ns[new_tokens] * keys + tail_ns * (half if half < keys else keys)
            total_ns += base_ns[new_tokens] + (by_flops if by_flops > by_loop else by_loop)
        return total_ns

    def step_ns(
        self, tokens: int, seqs: int, decode_seqs: int, decode_kv_tokens: int, chunks_ns: float
    ) -> int:
        """Return the duration of an iteration, at least 1, rounded once."""
        total_ns = self._tokens_ns[tokens] + self._seqs_ns[seqs] + chunks_ns
        if decode_seqs:
            mean = decode_kv_tokens // decode_seqs
            decode_ns = (
                self._decode_call_ns
                + decode_seqs * self._decode_ns[mean]
                + (decode_kv_tokens - decode_seqs * mean) * self._decode_slope_ns[mean]
            )
            total_ns += decode_ns * self._mixed_factor if seqs > decode_seqs else decode_ns
        if seqs > decode_seqs:
            total_ns += self._call_ns
        return round(total_ns) or 1

    def steps_ns(self, steps: StepShape) -> NDArray[np.int64]:
        """Return the durations of many steps at once, bit for bit those of `step_ns`."""
        tokens, seqs = _tokens_and_seqs(steps)
        total_ns = self._tokens[tokens] + self._seqs[seqs] + steps.prefill_attention_ns
        total_ns = total_ns + self._decode_attention_ns(steps)
        total_ns = np.where(seqs > steps.decode_seqs, total_ns + self._call_ns, total_ns)
        durations: NDArray[np.int64] = np.maximum(np.rint(total_ns).astype(np.int64), 1)
        return durations

    def parts_ns(self, steps: StepShape) -> Mapping[Part, NDArray[np.float64]]:
        """Split the durations of many steps into parts; they sum to the duration within 1 ns."""
        tokens, seqs = _tokens_and_seqs(steps)
        parts = {curve.part: curve.ns[tokens] for curve in self._token_curves}
        for curve in self._seq_curves:
            parts[curve.part] = parts.get(curve.part, 0.0) + curve.ns[seqs]
        prefill, decode = _attention_parts(self._attention)
        call_ns = np.where(seqs > steps.decode_seqs, self._call_ns, 0.0)
        parts[prefill] = steps.prefill_attention_ns + call_ns
        parts[decode] = self._decode_attention_ns(steps)
        return parts

    def work(self, steps: StepShape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return model FLOPs and HBM bytes (weights, KV) of each step, of one GPU."""
        tokens, seqs = _tokens_and_seqs(steps)
        flops = self._work.flop_per_token * tokens + self._work.flop_per_seq * seqs
        size_bytes = self._work.weight_bytes[tokens]
        for layers in self._attention:
            pairs, read_tokens = _attended(steps, layers.window_tokens)
            flops = flops + layers.count * layers.flop_per_pair * pairs
            size_bytes = size_bytes + layers.count * layers.kv_bytes_per_token * read_tokens
        return flops, size_bytes

    def peaks(self) -> tuple[float, float]:
        """Return the GPU's peak FLOP/s (of the weights' dtype, dense) and HBM bytes/s."""
        return self._work.peak_flop_per_s, self._work.hbm_bytes_per_s

    def _decode_attention_ns(self, steps: StepShape) -> Floats:
        seqs = np.maximum(steps.decode_seqs, 1)
        mean = steps.decode_kv_tokens // seqs
        rest = steps.decode_kv_tokens - seqs * mean
        ns: Floats = (
            self._decode_call_ns + seqs * self._decode[mean] + rest * self._decode_slope[mean]
        )
        ns = np.where(steps.prefill_seqs > 0, ns * self._mixed_factor, ns)
        return np.where(steps.decode_seqs > 0, ns, 0.0)

    def _parts(self) -> list[Part]:
        curves = [*self._token_curves, *self._seq_curves]
        parts = [curve.part for curve in curves if curve.ns.any()]
        return [*parts, *_attention_parts(self._attention)]


def _merged(curves: Sequence[Curve]) -> list[Curve]:
    """Add up the curves of the same part, in the order of their first appearance."""
    sums: dict[Part, Floats] = {}
    for curve in curves:
        sums[curve.part] = sums[curve.part] + curve.ns if curve.part in sums else curve.ns
    return [Curve(part, ns) for part, ns in sums.items()]


def _total(curves: Sequence[Curve]) -> Floats:
    total: Floats = np.sum([curve.ns for curve in curves], axis=0)
    return total


def _chunk_tables(
    layers: AttentionLayers,
) -> tuple[list[float], list[float], list[float], float, float]:
    price, count = layers.prefill, layers.count
    return (
        (count * price.base_ns).tolist(),
        (count * price.pair_ns).tolist(),
        (count * price.key_ns).tolist(),
        count * price.tail_ns,
        float(layers.window_tokens or np.inf),
    )


def _tokens_and_seqs(steps: StepShape) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    tokens = np.asarray(steps.prefill_tokens + steps.decode_seqs)
    return tokens, np.asarray(steps.prefill_seqs + steps.decode_seqs)


def _attention_parts(attention: Sequence[AttentionLayers]) -> tuple[Part, Part]:
    """Return the parts of prefill and decode attention; the largest group of layers speaks."""
    largest = max(attention, key=lambda layers: layers.count)
    prefill, decode = largest.prefill, largest.decode
    return (
        Part("attention_prefill", "compute", prefill.basis, prefill.note),
        Part("attention_decode", "hbm", decode.basis, decode.note),
    )


def _attended(steps: StepShape, window_tokens: int) -> tuple[Floats, Floats]:
    """Return query-key pairs of a layer, and context tokens that it reads.

    With a sliding window, contexts are cut at their mean (decode) and at most at full windows
    (prefill): an approximation from the sums that a step keeps.
    """
    prefill_pairs = np.asarray(steps.prefill_pairs, np.float64)
    prefill_read = np.asarray(steps.prefill_kv_tokens, np.float64)
    decode_read = np.asarray(steps.decode_kv_tokens, np.float64)
    if window_tokens:
        prefill_pairs = np.minimum(prefill_pairs, steps.prefill_tokens * float(window_tokens))
        seen = steps.prefill_seqs * float(window_tokens) + steps.prefill_tokens
        prefill_read = np.minimum(prefill_read, seen)
        decode_read = np.minimum(decode_read, steps.decode_seqs * float(window_tokens))
    return prefill_pairs + decode_read, prefill_read + decode_read
