"""Copies to the host, against the public rates that their constants were fitted to."""

import numpy as np
import pytest

from kvsim.cost.affine import AffineCost
from kvsim.cost.pcie import HostLink
from kvsim.cost.preemption import preemption_costs

PCIE_5 = 64e9
# Bytes of a piece, bytes/s: MI300X in four sizes (vLLM PR 40549), MI300 in four (ROCm clr 273).
MEASURED = np.array(
    [
        (4e3, 0.75e9),
        (32e3, 3.3e9),
        (128e3, 10.6e9),
        (512e3, 24e9),
        (4096, 1.7e9),
        (16384, 6.6e9),
        (262144, 18e9),
        (1048576, 37e9),
    ]
)


def rate(piece_bytes, link=None, peak=PCIE_5):
    """Bytes/s of one piece."""
    link = link or HostLink()
    return piece_bytes / link.copy_ns(piece_bytes, 1, peak) * 1e9


def squares(launch_s):
    link = HostLink(launch_s=launch_s)
    predicted = np.array([rate(piece, link) for piece in MEASURED[:, 0]])
    return (np.log(predicted / MEASURED[:, 1]) ** 2).sum()


def test_the_launch_is_the_least_squares_fit_to_public_rates():
    launches_s = np.linspace(1e-6, 12e-6, 1101)
    best_s = launches_s[np.argmin([squares(launch_s) for launch_s in launches_s])]
    assert HostLink().launch_s == pytest.approx(best_s, abs=0.05e-6)


def test_public_rates_are_met_within_a_factor_of_two():
    ratios = [rate(piece) / measured for piece, measured in MEASURED]
    assert 0.49 < min(ratios) < 0.6
    assert 1.6 < max(ratios) < 2


def test_large_pieces_reach_the_share_of_the_peak_that_h100_reaches():
    assert rate(2e6) == pytest.approx(50e9 * (2e6 / 50e9) / (2e6 / 50e9 + 4.6e-6), rel=0.01)
    assert rate(1e9) == pytest.approx(0.78 * PCIE_5, rel=1e-3)


def test_a_block_is_copied_in_pieces_or_as_one():
    per_layer, whole = HostLink(), HostLink(layout="whole_block")
    size_bytes, tensors = 13_107_200, 80  # OPT-13B, 16 tokens
    pieces_ns = per_layer.copy_ns(size_bytes, tensors, 32e9)
    assert pieces_ns == pytest.approx(tensors * per_layer.copy_ns(size_bytes // tensors, 1, 32e9))
    assert pieces_ns - whole.copy_ns(size_bytes, tensors, 32e9) == pytest.approx(79 * 4600)


def test_recomputing_is_flat_in_the_block_size_and_swapping_falls():
    """The costs cross between 1 and 256 tokens a block, near the paper's 16 to 64."""
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    cost = AffineCost(fixed_ns=20e6, per_token_ns=90_000)  # OPT-13B on A100, about
    found = list(preemption_costs(cost, HostLink(), 512, 819_200, 80, 32e9, sizes))
    assert [each.block_size_tokens for each in found] == sizes
    assert {each.recompute_ns for each in found} == {20_000_000 + 512 * 90_000}
    swaps_ns = [each.swap_ns for each in found]
    assert swaps_ns == sorted(swaps_ns, reverse=True)
    assert swaps_ns[0] > 5 * found[0].recompute_ns
    for each in found[4:7]:
        assert 0.5 < each.recompute_ns / each.swap_ns < 2
    launches_ns = 2 * 80 * 4600  # of a block, out and in
    assert swaps_ns[0] - swaps_ns[1] == pytest.approx(256 * launches_ns, rel=1e-6)


def test_the_last_block_is_copied_whole():
    (found,) = preemption_costs(AffineCost(fixed_ns=1), HostLink(), 33, 1000, 2, 32e9, [16])
    three_ns = 3 * HostLink().copy_ns(16_000, 2, 32e9)
    assert found.swap_out_ns == found.swap_in_ns == round(three_ns)
