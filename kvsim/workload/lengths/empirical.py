"""Empirical lengths: rows of a file, drawn with replacement."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.files import ReadsFile
from kvsim.workload.limits import Printable
from kvsim.workload.traces import Columns, read_lengths


class Empirical(ReadsFile):
    """Draws whole rows, so that a prompt keeps its answer's length.

    The same as lengths of kind `trace` with a file whose columns are named.
    """

    kind: Literal["empirical"] = "empirical"
    file: Printable
    """CSV file with a header, JSONL or Parquet, beside the scenario file."""
    prompt_column: Printable = "prompt_tokens"
    """Column of the prompt lengths."""
    output_column: Printable = "output_tokens"
    """Column of the answer lengths."""

    def lengths_tokens(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw rows with replacement; InputError for a file that can't be used; see `LengthLaw`."""
        columns = Columns(prompt_tokens=self.prompt_column, output_tokens=self.output_column)
        prompt, output = read_lengths(self.path, columns=columns)
        rows = rng.integers(0, len(prompt), count)
        return prompt[rows], output[rows]
