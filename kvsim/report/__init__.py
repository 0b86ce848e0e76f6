"""A run → one HTML page that opens from disk, offline."""
