"""A run's directory: `write` makes it, `read` opens it again; reading needs no engine."""
