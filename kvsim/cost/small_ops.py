"""Element-wise kernels: norms, rotary embedding, activation, embedding, sampler."""

from typing import Literal

from kvsim.cost import Part
from kvsim.cost.formats import SIXTEEN_BIT_BYTES
from kvsim.cost.tables import Floats
from kvsim.gpu import GpuSpec
from kvsim.units import NS_PER_S, NS_PER_US

STREAMING_EFFICIENCY = 0.8  # share of the HBM bandwidth
LAUNCH_NS = 2.0 * NS_PER_US  # of one small kernel in a CUDA graph
SAMPLER_NS = 15.0 * NS_PER_US
SAMPLER_BYTES_PER_LOGIT = 6  # a logit is read in 16 bit and written in 32
# Top-p and top-k sort the logits: a radix sort of 4-byte keys with 8-byte indices moves 24 bytes in
# each of four passes; softmax, prefix sums, masks and scattering back move about as many again, and
# such kernels reach about half of the bandwidth. 200 to 600 are possible.
SORT_BYTES_PER_LOGIT = 400
Sampling = Literal["plain", "top_p"]
SMALL_OPS = Part("norms_and_activations", "hbm", "physical", "2 µs a kernel and its bytes")


def streaming_ns(gpu: GpuSpec, size_bytes: Floats, kernels: int = 1) -> Floats:
    """Price kernels that only move bytes: 2 µs each, and 0.8 of the HBM bandwidth.

    Both constants are the recommendation that comes with the kernel tables. Against their timings
    of single layers: 2.0 to 3.3 µs for few tokens (RTX PRO 6000, RTX 4090), so right; with 500 to
    2,000 tokens two to three times too slow there, since the tensors stay in a large L2 cache;
    additions, activations and rotary embeddings within a third on H100 and A100. The norms of these
    two (6 to 7 µs) are kernels of 2023, which engines have replaced.
    """
    rate = STREAMING_EFFICIENCY * gpu.hbm_bytes_per_s
    return LAUNCH_NS * kernels + size_bytes / rate * NS_PER_S


def norm_ns(gpu: GpuSpec, tokens: Floats, width: int) -> Floats:
    """Price a norm with residual addition: reads two tensors, writes two."""
    return streaming_ns(gpu, tokens * (4.0 * width * SIXTEEN_BIT_BYTES))


def rope_ns(gpu: GpuSpec, tokens: Floats, width: int) -> Floats:
    """Price the rotary embedding of queries and keys, in place."""
    return streaming_ns(gpu, tokens * (2.0 * width * SIXTEEN_BIT_BYTES))


def activation_ns(gpu: GpuSpec, tokens: Floats, width: int, gated: bool) -> Floats:
    """Price the activation of an MLP: reads one or two tensors, writes one."""
    return streaming_ns(gpu, tokens * ((3.0 if gated else 2.0) * width * SIXTEEN_BIT_BYTES))


def embedding_ns(gpu: GpuSpec, tokens: Floats, width: int) -> Floats:
    """Price the look-up of token embeddings."""
    return streaming_ns(gpu, tokens * (2.0 * width * SIXTEEN_BIT_BYTES))


def sampler_ns(gpu: GpuSpec, seqs: Floats, vocabulary: int, sampling: Sampling = "plain") -> Floats:
    """Price sampling: 15 µs and 6 bytes for each logit at 0.8 of the bandwidth; top-p sorts them.

    Measured on RTX PRO 6000 and RTX 4090: 10 to 25 µs for one sequence, 118 to 199 µs for 192 (the
    form says 118 to 198). Sorting is physics, see `SORT_BYTES_PER_LOGIT`.
    """
    logits = seqs * float(vocabulary)
    ns = SAMPLER_NS - LAUNCH_NS + streaming_ns(gpu, logits * SAMPLER_BYTES_PER_LOGIT)
    if sampling == "top_p":
        ns += logits * SORT_BYTES_PER_LOGIT / gpu.hbm_bytes_per_s * NS_PER_S
    return ns
