"""Measured servers, simulated: what was measured, what kvsim predicts, how far they are apart."""
