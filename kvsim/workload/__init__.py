"""Who arrives, when, with how many tokens: everything random is drawn before the simulation."""
