"""What to change next in a scenario, and what it brings: capacity searches on a few changes."""
