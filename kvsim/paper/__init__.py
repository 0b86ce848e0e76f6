"""The world of the PagedAttention paper, simulated: its figures beside ours, one chapter each.

A chapter says which simulations it needs (`tasks`) and what it makes of their results (`chapter`);
`run` sends the tasks of all chapters to processes in parallel, `page` writes what came out.
"""
