"""Which fleet is the cheapest that serves a demand within its SLO.

`candidates` says what there is to choose from, `bounds` (with `step_floor`) what each needs at
least, `trial` judges one fleet, `fleet` finds the fewest replicas, `search` the cheapest candidate;
the `result` is told by `answer`, `page` and `winner`.
"""
