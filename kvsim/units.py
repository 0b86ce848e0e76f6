"""Units and their display. Seconds and bytes inside; the engine's clock counts nanoseconds."""

KIB = 1024
MIB = 1024**2
GIB = 1024**3
NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
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


_DAY_S, _YEAR_S = 86_400, 365.25 * 86_400
_DURATIONS = (  # from so many seconds on; how many make one, or how many one makes
    (2 * _YEAR_S, _YEAR_S, 1, "years"),
    (4 * _DAY_S, _DAY_S, 1, "days"),
    (7200, 3600, 1, "h"),
    (120, 60, 1, "min"),
    (1, 1, 1, "s"),
    (1e-3, 1, 1e3, "ms"),
    (0, 1, 1e6, "µs"),
)


def format_duration(seconds: float) -> str:
    """Show a time with three digits: `850 µs`, `12.3 ms`, `4.56 s`, `31.5 min`, `12 days`."""
    if not seconds:
        return "0 s"
    shown = abs(float(f"{seconds:.3g}"))  # 999.9 ms is 1 s
    fitting = (unit for unit in _DURATIONS if shown >= unit[0])
    _, size, in_one, name = next(fitting, _DURATIONS[-1])
    return f"{seconds * in_one / size:.3g} {name}"
