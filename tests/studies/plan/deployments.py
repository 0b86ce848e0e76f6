"""Small scenarios for the tests of plans."""

from pathlib import Path

from kvsim.scenario.load import load_scenario

AFFINE = (
    "{kind: affine, fixed_ns: 4000000, per_token_ns: 9000, per_seq_ns: 700, "
    "per_context_token_ns: 20}"
)


def scenario_text(**sections):
    """Return a scenario's YAML; sections replace those of the same name, None leaves one out."""
    usual = {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "h100_sxm",
        "engine": "{max_model_len: 4096, max_num_seqs: 16, max_num_batched_tokens: 512}",
        "routing": "least_requests",
        "workload": "{arrivals: {kind: poisson, rate_per_s: 12}, num_requests: 120, lengths: "
        "{kind: lognormal, prompt_mean_tokens: 300, prompt_cv: 1, prompt_max_tokens: 2000, "
        "output_mean_tokens: 40, output_cv: 1, output_max_tokens: 300}}",
        "slo": "{ttft_p90_s: 1.0, tpot_p90_s: 0.05}",
        "cost": AFFINE,
    }
    sections = {**usual, **sections}
    return "".join(f"{key}: {value}\n" for key, value in sections.items() if value is not None)


def scenario_file(folder: Path, **sections):
    """Return such a scenario, read from a file of the folder."""
    path = folder / "fleet.yaml"
    path.write_text(scenario_text(**sections))
    return load_scenario(path)
