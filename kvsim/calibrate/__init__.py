"""A user's own measurements → what kvsim prices her servers from: a profile, a GPU's kernels."""
