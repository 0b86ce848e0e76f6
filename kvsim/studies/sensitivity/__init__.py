"""Which inputs move the answer: one at a time, or all of them together."""
