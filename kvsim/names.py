"""Names that users give, as they are shown."""

NAME_LENGTH = 28
FIRST_STRONG_ISOLATE, POP_ISOLATE = "\u2068", "\u2069"  # keep a name's direction to itself


def short_name(name: str, longest: int = NAME_LENGTH) -> str:
    """Cut a name to what fits in a title; foreign writing can't reorder the words around it."""
    cut = name if len(name) <= longest else name[: longest - 1] + "…"
    return cut if name.isascii() else f"{FIRST_STRONG_ISOLATE}{cut}{POP_ISOLATE}"
