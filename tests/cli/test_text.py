"""Text for the terminal."""

from kvsim.cli.text import WIDTH, wrapped


def test_indented_lines_are_no_wider_than_others():
    lines = wrapped("; ".join(["a100_sxm, TP 4, fp8 KV ($26.52/h)"] * 9), "    ").splitlines()
    assert len(lines) > 3
    assert all(line.startswith("    ") and len(line) <= WIDTH for line in lines)
