"""Units and their display. Seconds and bytes inside; the engine's clock counts nanoseconds."""

KIB = 1024
MIB = 1024**2
GIB = 1024**3
NS_PER_S = 1_000_000_000
NS_PER_US = 1_000


def seconds_to_ns(seconds: float) -> int:
    """Round a time in seconds to the engine's clock, an integer count of nanoseconds."""
    return round(seconds * NS_PER_S)


def format_bytes(size_bytes: float) -> str:
    """Show a size in the largest binary unit that keeps it above one, for example `14.96 GiB`."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < KIB:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= KIB
    return f"{size:.2f} TiB"


def format_duration(seconds: float) -> str:
    """Show a time with three significant digits: `850 µs`, `12.3 ms`, `4.56 s`, `31.5 min`."""
    size = abs(seconds)
    if size >= 7200:
        return f"{seconds / 3600:.3g} h"
    if size >= 120:
        return f"{seconds / 60:.3g} min"
    if size >= 1 or size == 0:
        return f"{seconds:.3g} s"
    if size >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} µs"
