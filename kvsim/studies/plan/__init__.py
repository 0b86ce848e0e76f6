"""The cheapest fleet for a demand: candidates, bounds that rule some out, runs of the rest."""
