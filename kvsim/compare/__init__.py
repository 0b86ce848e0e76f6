"""Runs side by side, from their directories alone: what differs, how surely, and in which settings.

`sides` (which runs, which variants) → `pairs` (the same requests in two of them) → `parts` (a
figure again without, or with, some of a run) → `change` (difference and ratio, and how sure both
are) → `figures` (every figure's change) → `answer`, `tables`, `charts`, `page`.
"""
