"""Write `docs/results.md` from the table schemas; a test compares the two."""

from pathlib import Path

from kvsim.tables import MAP_TABLES, TABLES, Column

DOC = Path(__file__).parents[1] / "docs" / "results.md"

ALL = {**TABLES, **MAP_TABLES}

INTRODUCTION = """\
# What a run leaves behind

Written by `tools/write_results_doc.py` from `kvsim/tables.py`.

`kvsim run` writes one directory, `reports/<scenario name>/` or `--out DIR`. It is written under a
temporary name and renamed when complete, so a run that fails leaves nothing half-written. An older
run in its place is replaced; anything else is left alone.

| file | holds |
| --- | --- |
| `manifest.json` | the scenario as resolved, its hash and that of the requests, seed, versions |
| `requests.parquet` | one row a request of each variant, whatever became of it |
| `steps.parquet` | one row an engine iteration of each replica |
| `events.parquet` | preemptions, rejections, compactions |
| `memory_looks.parquet` | with a report: what the first KV cache held at 100 instants, in sum |
| `memory_map.parquet` | with a report: what lay where in it at these instants |
| `replications.parquet` | one row a replication of each variant: its [figures](metrics.md) |
| `summary.json` | for each variant verdict, limits, [figures](metrics.md), and how sure they are |
| `report.html` | the same to look at: one file, no network |

Same scenario, seed, machine and `requirements.lock`: the same bytes in each of them. On another
machine: the same decisions and times.

The three tables, and the report's charts, are of the first replication; the others are simulated in
memory, and leave their figures.

## Definitions

- **Clock.** Nanoseconds since the start of the run, as integers.
- **Horizon.** Arrivals stop at it: `duration_s`, or the length of the trace's cut, or where the
  gaps to the last of `num_requests` end. Throughput, goodput and utilization are taken over the
  window from 0 to the horizon.
- **Drain.** After the horizon the run goes on until the last request has left, or until
  `max_simulated_s`. Latencies count these requests too.
- **Outcome.** Each request has one row and one outcome: `finished` (answered in full), `rejected`
  (could never be served), `unfinished` (in the system when the run was cut off), `timed_out` (its
  client gave up after `timeout_s`). All but the first miss the SLO.
- **Warm-up.** Requests that arrive before `warmup_s` have their rows, but no part in the latencies.
- **Accounting of the KV cache.** At every step, on each replica: held + to come + inside +
  rounding + holes + free = capacity, all in tokens.

Tables hold facts only; everything derived has its formula in [metrics.md](metrics.md). Each begins
with the column `variant`. Units and descriptions are part of the Parquet schema.
"""


def main() -> None:
    """Write the page."""
    DOC.write_text(render(), encoding="utf-8")
    print(f"{DOC.name}: {', '.join(ALL)}")


def render() -> str:
    """Return the page as Markdown."""
    tables = [f"## {name}.parquet\n\n{_table(columns)}" for name, columns in ALL.items()]
    return "\n".join((INTRODUCTION, *tables))


def _table(columns: tuple[Column, ...]) -> str:
    rows = ["| column | unit | meaning |", "| --- | --- | --- |"]
    for column in columns:
        codes = f": {', '.join(f'`{code}`' for code in column.codes)}" if column.codes else ""
        rows.append(f"| `{column.name}` | {column.unit} | {column.description}{codes} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
