"""A file of settings (`vllm serve --config FILE`) → the words that it stands for."""

import json
from collections.abc import Iterator
from pathlib import Path

from kvsim.scenario.document import read_document


def words_of(file: Path) -> Iterator[str]:
    """Yield the file's settings as arguments, as vLLM reads them.

    Raises:
        InputError: It can't be read, or is not a mapping in YAML; with the line.
    """
    for key, value in read_document(file).data.items():
        if isinstance(value, bool):
            yield f"--{key}" if value else f"--no-{key}"
            continue
        yield f"--{key}"
        if isinstance(value, list):
            yield from map(str, value)
        else:
            yield json.dumps(value) if isinstance(value, dict) else str(value)
