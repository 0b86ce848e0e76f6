"""The engine iteration as a sum of tabulated kernels: a few look-ups for each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.cost import Basis, Part, StepShape
from kvsim.cost.attention import DecodePrice, Heads
from kvsim.cost.prefill import PrefillPrice
from kvsim.cost.tables import Curve, Floats, whole_ticks

# Finer than those of times: a slope is multiplied by up to some million tokens.
SLOPE_TICKS_PER_NS = 2**20
EXACT_BELOW_NS = 2**53 // SLOPE_TICKS_PER_NS


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """Equal attention layers of one GPU: how many, and what one of them does and costs."""

    count: int
    heads: Heads
    prefill: PrefillPrice
    decode: DecodePrice


@dataclass(frozen=True, slots=True)
class Work:
    """What a GPU has to do in a step, beside attention; arrays indexed by tokens."""

    flop_per_token: float
    flop_per_seq: float
    weight_bytes: Floats
    peak_flop_per_s: float
    hbm_bytes_per_s: float


class KernelCost:
    """Prices iterations from curves over tokens, curves over sequences, and attention."""

    def __init__(
        self,
        token_curves: Sequence[Curve],
        seq_curves: Sequence[Curve],
        attention: Sequence[AttentionLayers],
        work: Work,
        upkeep: Curve | None = None,
    ) -> None:
        """Tabulate; `upkeep` is what the host takes for 0 and 1 token of decoded context."""
        self._token_curves = _merged(token_curves)
        self._seq_curves = _merged(seq_curves)
        self._attention = tuple(attention)
        self._work = work
        self._upkeep = upkeep if upkeep is not None and upkeep.ns.any() else None
        self._upkeep_ns = float(_slope_ticks(upkeep.ns[1])) if upkeep else 0.0
        self._call_ns = float(
            whole_ticks(sum(layers.count * layers.prefill.fixed_ns for layers in attention))
        )
        most_seqs = len(seq_curves[0].ns) - 1
        self._decode_alone = _decode_table(attention, most_seqs, False, self._upkeep_ns)
        self._decode_mixed = _decode_table(attention, most_seqs, True, self._upkeep_ns)
        # Lists: indexing one is several times faster than indexing an array.
        self._tokens_ns: list[float] = _total(self._token_curves).tolist()
        self._seqs_ns: list[float] = _total(self._seq_curves).tolist()
        self._places: list[int] = self._decode_alone.places.tolist()
        firsts = np.flatnonzero(np.diff(self._places, prepend=-1)).tolist()
        self._knots: list[int] = [*firsts, len(self._places)]
        self._alone_ns = self._decode_alone.as_lists()
        self._mixed_ns = self._decode_mixed.as_lists()
        self._chunks = [_chunk_tables(layers) for layers in attention]

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return all that `step_ns` and `chunks_ns` look up, as `kvsim.engine.compiled.Cost`."""
        columns = [np.array(column) for column in zip(*self._chunks, strict=True)]
        base_ns, pair_ns, key_ns, tail_ns, share_ns, window_tokens, keys_beyond = columns
        alone, mixed = self._decode_alone, self._decode_mixed
        return (
            np.array([0.0, self._call_ns]),
            np.array(self._tokens_ns),
            np.array(self._seqs_ns),
            alone.places,
            np.stack([alone.base_ns, alone.slope_ns, mixed.base_ns, mixed.slope_ns]),
            np.stack([base_ns, pair_ns, key_ns, share_ns]),
            np.stack([tail_ns, window_tokens, keys_beyond]),
        )

    @property
    def basis(self) -> Sequence[tuple[str, Basis, str]]:
        """Component, on what its price rests, and what to know about it; without repeats."""
        curves = [*self._token_curves, *self._seq_curves]
        curves += [self._upkeep] if self._upkeep else []
        parts = [curve.part for curve in curves if curve.ns.any()]
        for layers in self._attention:
            parts += _attention_parts(layers)
        return list(dict.fromkeys((part.component, part.basis, part.note) for part in parts))

    def chunks_ns(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Return the attention time, over all layers, of a step's prefill chunks (new, prefix).

        A lone one takes its own time; several the time of the longest, or the sum of their shares
        if that is more. The fixed cost of the kernel call is not in it: one call serves all chunks,
        and `step_ns` adds it once.
        """
        total_ns, lone = 0.0, len(chunks) == 1
        for base_ns, pair_ns, key_ns, tail_ns, share_ns, window_tokens, keys_beyond in self._chunks:
            longest_ns = shares_ns = 0.0
            for new, prefix in chunks:
                half = new / 2
                keys = prefix + half
                keys = keys if keys < window_tokens else keys_beyond
                by_flops = pair_ns[new] * keys
                by_loop = key_ns[new] * keys + tail_ns * (half if half < keys else keys)
                alone_ns = base_ns[new] + (by_flops if by_flops > by_loop else by_loop)
                shares_ns += share_ns[new] + by_flops
                if alone_ns > longest_ns:
                    longest_ns = alone_ns
            total_ns += longest_ns if lone or longest_ns > shares_ns else shares_ns
        return total_ns

    def step_ns(
        self, tokens: int, seqs: int, decode_seqs: int, decode_kv_tokens: int, chunks_ns: float
    ) -> int:
        """Return the duration of an iteration, at least 1, rounded once."""
        total_ns = self._tokens_ns[tokens] + self._seqs_ns[seqs] + chunks_ns
        decode = self._alone_ns
        if seqs > decode_seqs:
            total_ns += self._call_ns
            decode = self._mixed_ns
        if decode_seqs:
            base_ns, slope_ns = decode
            place = self._places[decode_kv_tokens // decode_seqs]
            total_ns += (
                base_ns[decode_seqs][place] + slope_ns[decode_seqs][place] * decode_kv_tokens
            )
        return round(total_ns) or 1

    def decode_steps_ns(self, seqs: int, decode_kv_tokens: int, steps: int) -> list[int]:
        """Return the durations of steps that only decode, the same sequences in each."""
        fixed_ns = self._tokens_ns[seqs] + self._seqs_ns[seqs]
        base_ns, slope_ns = self._alone_ns
        durations_ns: list[int] = []
        context, end = decode_kv_tokens // seqs, decode_kv_tokens // seqs + steps
        while context < end:  # between two knots the price is a straight line
            place = self._places[context]
            stop = min(end, self._knots[place + 1])
            more_tokens = decode_kv_tokens + (stop - context) * seqs
            sums = range(decode_kv_tokens, more_tokens, seqs)
            durations_ns += _line_ns(fixed_ns, base_ns[seqs][place], slope_ns[seqs][place], sums)
            context, decode_kv_tokens = stop, more_tokens
        return durations_ns

    def parts_ns(self, steps: StepShape) -> Mapping[Part, NDArray[np.float64]]:
        """Split the durations of many steps into parts; they sum to the duration within 1 ns.

        A step's attention counts as one part; the largest group of layers says on what it rests.
        """
        tokens, seqs = _tokens_and_seqs(steps)
        parts = {curve.part: curve.ns[tokens] for curve in self._token_curves}
        for curve in self._seq_curves:
            parts[curve.part] = parts.get(curve.part, 0.0) + curve.ns[seqs]
        chunks = np.asarray(steps.prefill_seqs) > 0
        prefill, decode = _attention_parts(max(self._attention, key=lambda layers: layers.count))
        parts[prefill] = steps.prefill_attention_ns + np.where(chunks, self._call_ns, 0.0)
        parts[decode] = np.where(chunks, self._decode_mixed.ns(steps), self._decode_alone.ns(steps))
        if self._upkeep:
            upkeep_ns = self._upkeep_ns * np.asarray(steps.decode_kv_tokens)
            parts[decode] = parts[decode] - upkeep_ns
            parts[self._upkeep.part] = parts.get(self._upkeep.part, 0.0) + upkeep_ns
        return parts

    def work(self, steps: StepShape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return model FLOPs and HBM bytes (weights, KV) of each step, of one GPU."""
        tokens, seqs = _tokens_and_seqs(steps)
        flops = self._work.flop_per_token * tokens + self._work.flop_per_seq * seqs
        size_bytes = self._work.weight_bytes[tokens]
        for layers in self._attention:
            pairs, read_tokens = _attended(steps, layers.heads)
            flops = flops + layers.count * layers.heads.flop_per_pair * pairs
            size_bytes = size_bytes + layers.count * layers.heads.kv_bytes_per_token * read_tokens
        return flops, size_bytes

    def peaks(self) -> tuple[float, float]:
        """Return the GPU's peak FLOP/s (of the weights' dtype, dense) and HBM bytes/s."""
        return self._work.peak_flop_per_s, self._work.hbm_bytes_per_s


@dataclass(frozen=True, slots=True)
class _DecodeTable:
    """Decode attention of all layers: straight lines in the context, for each number of sequences.

    `places` tells for each mean context between which knots it lies. There, n sequences with a sum
    of contexts S take `base_ns[n, place]` + `slope_ns[n, place]` · S.
    """

    places: NDArray[np.int64]
    base_ns: Floats
    slope_ns: Floats

    def as_lists(self) -> tuple[list[list[float]], list[list[float]]]:
        return self.base_ns.tolist(), self.slope_ns.tolist()

    def ns(self, steps: StepShape) -> Floats:
        """Return the time in many steps."""
        seqs = np.asarray(steps.decode_seqs)
        place = self.places[steps.decode_kv_tokens // np.maximum(seqs, 1)]
        ns: Floats = self.base_ns[seqs, place] + self.slope_ns[seqs, place] * steps.decode_kv_tokens
        return np.where(seqs > 0, ns, 0.0)


def _line_ns(fixed_ns: float, base_ns: float, slope_ns: float, sums: range) -> list[int]:
    """Return the durations at sums of contexts on a line, as `step_ns` computes each of them.

    While ticks of sums are whole numbers of a float, so are those of running sums: nothing is
    rounded before the end.
    """
    first_ns = fixed_ns + (base_ns + slope_ns * sums.start)
    last_ns = fixed_ns + (base_ns + slope_ns * sums[-1])
    if min(first_ns, last_ns) >= 1 and max(first_ns, last_ns) < EXACT_BELOW_NS:
        rises_ns = repeat(slope_ns * sums.step, len(sums) - 1)
        return list(map(round, accumulate(rises_ns, initial=first_ns)))
    return [round(fixed_ns + (base_ns + slope_ns * tokens)) or 1 for tokens in sums]


def _decode_table(
    attention: Sequence[AttentionLayers], most_seqs: int, mixed: bool, upkeep_ns: float
) -> _DecodeTable:
    """Add up the layers, each group slowed by its own factor in steps with prefill chunks.

    What such a step pays once for both is in the price of its chunks. `upkeep_ns` is added for each
    token of context.
    """
    knots = _knots(attention)
    seqs = np.arange(most_seqs + 1, dtype=np.float64)
    ns = np.zeros((len(seqs), len(knots)))
    for layers in attention:
        times = layers.count * (layers.decode.mixed_factor if mixed else 1.0)
        ns += times * layers.decode.ns(seqs, knots)
        if mixed:
            ns -= layers.count * layers.decode.shared_ns
    counts = np.maximum(seqs, 1.0)[:, None]
    rise = np.diff(ns, axis=1, append=ns[:, -1:]) / np.diff(knots, append=knots[-1] + 1)
    slope_ns = _slope_ticks(rise / counts)
    base_ns = whole_ticks(ns - slope_ns * counts * knots)
    places = np.searchsorted(knots, np.arange(knots[-1] + 1), side="right") - 1
    return _DecodeTable(places, base_ns, slope_ns + upkeep_ns)


def _slope_ticks(ns: Floats | float) -> Floats:
    return np.asarray(np.floor(np.multiply(ns, SLOPE_TICKS_PER_NS) + 0.5) / SLOPE_TICKS_PER_NS)


def _knots(attention: Sequence[AttentionLayers]) -> NDArray[np.int64]:
    """Return mean contexts, four in each doubling, and where a sliding window is full."""
    longest = len(attention[0].decode.seq_ns) - 1
    octaves = np.round(2 ** (np.arange(4 * max(1, longest).bit_length()) / 4))
    windows = [layers.heads.window_tokens for layers in attention if layers.heads.window_tokens]
    edges = [edge for window in windows for edge in (window, window + 1)]
    # `np.unique` would import numpy's masked arrays, for half as long as all tables take.
    knots = {0, longest, *octaves.astype(np.int64).tolist(), *map(int, edges)}
    return np.array(sorted(knot for knot in knots if knot <= longest), dtype=np.int64)


def _merged(curves: Sequence[Curve]) -> list[Curve]:
    """Add up the curves of the same part, in the order of their first appearance."""
    sums: dict[Part, Floats] = {}
    for curve in curves:
        sums[curve.part] = sums[curve.part] + curve.ns if curve.part in sums else curve.ns
    return [Curve(part, whole_ticks(ns)) for part, ns in sums.items()]


def _total(curves: Sequence[Curve]) -> Floats:
    total: Floats = np.sum([curve.ns for curve in curves], axis=0)
    return total


def _chunk_tables(
    layers: AttentionLayers,
) -> tuple[list[float], list[float], list[float], float, list[float], float, float]:
    price, count = layers.prefill, layers.count
    return (
        whole_ticks(count * price.base_ns).tolist(),
        whole_ticks(count * price.pair_ns).tolist(),
        whole_ticks(count * price.key_ns).tolist(),
        float(whole_ticks(count * price.tail_ns)),
        whole_ticks(count * price.share_ns).tolist(),
        float(layers.heads.window_tokens or np.inf),
        layers.heads.keys_beyond_window,
    )


def _tokens_and_seqs(steps: StepShape) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    tokens = np.asarray(steps.prefill_tokens + steps.decode_seqs)
    return tokens, np.asarray(steps.prefill_seqs + steps.decode_seqs)


def _attention_parts(layers: AttentionLayers) -> tuple[Part, Part]:
    prefill, decode = layers.prefill, layers.decode
    return (
        Part("attention_prefill", "compute", prefill.basis, prefill.note),
        Part("attention_decode", "hbm", decode.basis, decode.note),
    )


def _attended(steps: StepShape, heads: Heads) -> tuple[Floats, Floats]:
    """Return query-key pairs of a layer, and context tokens that it reads.

    With a window, contexts are cut where their mean exceeds it (decode), and pairs at what every
    query sees beyond it (prefill): an approximation from the sums that a step keeps.
    """
    prefill_pairs = np.asarray(steps.prefill_pairs, np.float64)
    prefill_read = np.asarray(steps.prefill_kv_tokens, np.float64)
    decode_read = np.asarray(steps.decode_kv_tokens, np.float64)
    if heads.window_tokens:
        beyond = heads.keys_beyond_window
        prefill_pairs = np.minimum(prefill_pairs, steps.prefill_tokens * beyond)
        prefill_read = np.minimum(prefill_read, steps.prefill_seqs * beyond + steps.prefill_tokens)
        inside = decode_read <= steps.decode_seqs * float(heads.window_tokens)
        decode_read = np.where(inside, decode_read, steps.decode_seqs * beyond)
    return prefill_pairs + decode_read, prefill_read + decode_read
