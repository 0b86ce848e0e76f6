"""Scenario files: read and checked with line numbers, defaults of vLLM filled in."""
