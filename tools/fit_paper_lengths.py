"""Lengths of the PagedAttention paper's workloads: what its figures say of them, as scenario lines.

Public are the means of ShareGPT and Alpaca as the paper used them, and that prompt and answer
together have at most 2048 tokens. The shape of the answers' law is read from one bar, Orca (Max) in
figure 2. A request of P prompt and A answer tokens stays for A iterations; meanwhile it still has
A / 2 tokens to come on average. Seven of them are always there (floor of 15,728 slots over 2048),
and longer answers are met more often, so that of all slots

    reservation = 7 · E[A²] / (2 · E[A]) / slots.

Alpaca has no such bar: the same coefficient of variation is assumed. So is that of the prompts, on
which little depends. Laws are lognormal; what is cut beyond 2048 lowers the means, so the laws'
parameters are solved for the means after the cut.

Usage: python tools/fit_paper_lengths.py
"""

import json
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
PRINTED = ROOT / "kvsim" / "data" / "measured" / "pagedattention_paper.json"
POINTS = 2000  # of each law
GIB = 2**30

Floats = NDArray[np.float64]


def quantiles(mean: float, cv: float) -> Floats:
    """Return the lengths of a lognormal law at equally likely points, rounded, at least 1."""
    sigma2 = np.log(1 + cv**2)
    normal = [NormalDist().inv_cdf((i + 0.5) / POINTS) for i in range(POINTS)]
    lengths = np.exp(np.log(mean) - sigma2 / 2 + np.sqrt(sigma2) * np.array(normal))
    return np.asarray(np.maximum(np.rint(lengths), 1.0))


def moments(
    prompt: tuple[float, float], answer: tuple[float, float], most: int
) -> tuple[float, float, float]:
    """Return E[P], E[A] and E[A²] / E[A] after the cut; prompt and answer are independent."""
    prompts = np.minimum(quantiles(*prompt), most - 1)
    answers = quantiles(*answer)
    shares = np.minimum(answers[None, :], (most - prompts[::20])[:, None])
    return float(prompts.mean()), float(shares.mean()), float((shares**2).mean() / shares.mean())


def solved(
    means: tuple[float, float], most: int, prompt_cv: float | None, ratio: float
) -> tuple[float, float, float, float]:
    """Return mean and cv of prompts and answers before the cut.

    Args:
        means: Of prompts and answers after the cut.
        most: Tokens of both together.
        prompt_cv: None: as the answers'.
        ratio: E[A²] / E[A] after the cut.
    """
    prompt_mean, answer_mean, cv = *means, 1.0
    for _ in range(60):
        shape = cv if prompt_cv is None else prompt_cv
        found = moments((prompt_mean, shape), (answer_mean, cv), most)
        prompt_mean *= means[0] / found[0]
        answer_mean *= means[1] / found[1]
        cv *= (ratio / found[2]) ** 0.5
    return prompt_mean, shape, answer_mean, cv


def main() -> None:
    """Print the laws, and what they imply for Orca (Max)."""
    paper = json.loads(PRINTED.read_text(encoding="utf-8"))
    bar = paper["figure2_kv_memory_share_percent"]["orca_max"]
    row = paper["table1"][0]
    slots = row["kv_gb"] * GIB // row["kv_bytes_per_token"]
    works = paper["setup"]["workloads"]
    most = works["sharegpt"]["max_total_tokens"]
    batch = slots // most
    ratio = 2 * bar["reservation"] / 100 * slots / batch
    means = works["sharegpt"]["mean_input_tokens"], works["sharegpt"]["mean_output_tokens"]
    print(f"E[A^2] / E[A] = {ratio:.1f} tokens of {batch} requests in {slots} slots")
    for name, prompt_cv in (("as answers", None), ("0.5", 0.5), ("1.5", 1.5)):
        law = solved(means, most, prompt_cv, ratio)
        held = batch * (means[0] + ratio / 2) / slots
        print(
            f"ShareGPT, cv of prompts {name}: prompt {law[0]:.1f} cv {law[1]:.3f}, "
            f"answer {law[2]:.1f} cv {law[3]:.3f}; token states {held:.1%}, printed "
            f"{bar['token_states']} %"
        )
    cv = solved(means, most, None, ratio)[3]
    alpaca = works["alpaca"]["mean_input_tokens"], works["alpaca"]["mean_output_tokens"]
    print(f"Alpaca, nothing is cut: prompt {alpaca[0]}, answer {alpaca[1]}, cv {cv:.3f} (assumed)")


if __name__ == "__main__":
    main()
