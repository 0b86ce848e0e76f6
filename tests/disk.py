"""What lies in a folder, to compare before with after."""

from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file under a folder, by its path from there."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
