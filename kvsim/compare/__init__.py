"""Runs side by side, from their directories alone: what differs, how surely, and in which settings.

`sides` (which runs, which variants) → `pairs` (the same requests in two of them) → `figures`
(every figure's `change`) → `result` → `answer`, `tables`, `page`.
"""
