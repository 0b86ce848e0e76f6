"""Many points of one scenario, side by side: from axes to one table and one page.

A sweep file (`schema`) is read and checked (`load`), its axes become points (`axes`, `expand`).
`run` has them simulated by a crew and keeps every result in a `store`, which is all that a sweep
that was killed or extended needs. What they came to (`results`) becomes a `table`, an `answer` and
a `page`.
"""
