"""How fast request logs are read, and in how much memory: `traces.py [ROWS [LOG …]]`.

Writes logs of so many rows (10 million by default) into a temporary folder, reads each in a fresh
process, and prints rows a second (of the clock, and of processor time with the start of Python) and
the peak of resident memory.
"""

import gzip
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvsim.rng import stream

READ = """
import resource, sys, time
from pathlib import Path
from kvsim.workload.traces import read_trace
start = time.perf_counter()
trace = read_trace(Path(sys.argv[1]))
seconds = time.perf_counter() - start
cpu = time.process_time()
peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(len(trace), seconds, cpu, peak_mib)
"""
CHUNK_ROWS = 100_000


def chunks(rows: int, sorted_: bool) -> Iterator[np.ndarray]:
    """Yield (ticks of 100 ns, prompt, output) by rows; unsorted ones are up to a minute late."""
    rng = stream(0, "benchmark")
    last = 0
    for first in range(0, rows, CHUNK_ROWS):
        size = min(CHUNK_ROWS, rows - first)
        ticks = last + np.cumsum(rng.integers(0, 1_000_000, size))
        last = int(ticks[-1])
        if not sorted_:
            ticks = ticks + rng.integers(0, 600_000_000, size)
        yield np.column_stack([ticks, rng.integers(1, 9000, size), rng.integers(1, 2000, size)])


def azure(path: Path, rows: int, *, zone: str = "", sorted_: bool = True) -> None:
    with gzip.open(path, "wb", 1) if path.suffix == ".gz" else path.open("wb") as file:
        file.write(b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n")
        for chunk in chunks(rows, sorted_):
            days, clock = np.divmod(chunk[:, 0], 864_000_000_000)
            dates = (np.datetime64("2023-11-16") + days).astype(str)
            lines = [
                f"{date} {s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}.{f:07}{zone},"
                f"{prompt},{output}\r\n"
                for date, (s, f), (prompt, output) in zip(
                    dates,
                    (divmod(tick, 10**7) for tick in clock.tolist()),
                    chunk[:, 1:].tolist(),
                    strict=True,
                )
            ]
            file.write("".join(lines).encode())


def burstgpt(path: Path, rows: int) -> None:
    with path.open("w") as file:
        file.write(
            "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
            "Log Type\n"
        )
        for chunk in chunks(rows, sorted_=True):
            file.writelines(
                f"{tick / 1e7},{tick % 99991},1.5,ChatGPT,"
                f"{prompt},{output},{prompt + output},API log\n"
                for tick, prompt, output in chunk.tolist()
            )


def mooncake(path: Path, rows: int) -> None:
    with path.open("w") as file:
        for chunk in chunks(rows, sorted_=True):
            file.writelines(
                f'{{"timestamp": {tick // 10**4}, "input_length": {prompt}, '
                f'"output_length": {output}, "hash_ids": {list(range(-(-prompt // 512)))}}}\n'
                for tick, prompt, output in chunk.tolist()
            )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    logs = {
        "azure_2023.csv": azure,
        "azure_2024.csv": lambda path, rows: azure(path, rows, zone="+00:00"),
        "azure_unordered.csv": lambda path, rows: azure(path, rows, sorted_=False),
        "azure.csv.gz": azure,
        "burstgpt.csv": burstgpt,
        "mooncake.jsonl": lambda path, rows: mooncake(path, rows // 10),
    }
    print(
        f"{'log':<22}{'rows':>12}{'MB':>8}{'s':>8}{'rows/s':>12}{'rows/cpu s':>12}{'peak MiB':>10}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[2:] or logs:
            path = Path(folder) / name
            logs[name](path, rows)
            command = [sys.executable, "-c", READ, str(path)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            read, seconds, cpu, peak_mib = map(float, done.stdout.split())
            size = path.stat().st_size / 1e6
            print(
                f"{name:<22}{read:>12,.0f}{size:>8.0f}{seconds:>8.1f}{read / seconds:>12,.0f}"
                f"{read / cpu:>12,.0f}{peak_mib:>10.0f}",
                flush=True,
            )
            path.unlink()


if __name__ == "__main__":
    main()
