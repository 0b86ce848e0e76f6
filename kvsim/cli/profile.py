"""`kvsim profile`: times the kernels of a model's shapes on the user's own GPU."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from kvsim.model import ModelSpec
    from kvsim.profiling.measure import Measured, Told
    from kvsim.profiling.shapes import Plan


def profile(
    model: Annotated[str, typer.Option(help="Name in the catalog, or path of a config.json.")],
    out: Annotated[
        Path, typer.Option(help="Folder to write the tables to; must not be there yet.")
    ] = Path("profile"),
    tensor_parallel_size: Annotated[
        int, typer.Option(min=1, help="GPUs that share each layer: shapes are those of one.")
    ] = 1,
    quantization: Annotated[
        Literal["fp8"] | None, typer.Option(help="fp8 weights for a 16-bit checkpoint.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens of one engine step.")
    ] = 16384,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Most sequences of one step.")] = 256,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Longest context; by default the model's.")
    ] = None,
    device: Annotated[
        Literal["cuda", "cpu"],
        typer.Option(help="cpu only tries out the format: nothing is priced from it."),
    ] = "cuda",
    name: Annotated[
        str | None, typer.Option(help="What the tables call the GPU; by default as its driver.")
    ] = None,
    format: Annotated[Literal["parquet", "csv"], typer.Option(help="Of the tables.")] = "parquet",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the shapes only.")] = False,
) -> None:
    """Time the kernels of a model on your own GPU, for prices that are measured.

    Needs torch and a CUDA GPU: pip install 'kvsim[profile]'.
    """
    from kvsim.profiling.shapes import Limits, plan

    spec = _spec(model, quantization)
    longest = min(max_model_len or spec.max_position_embeddings, spec.max_position_embeddings)
    limits = Limits(max_num_batched_tokens, max_num_seqs, longest)
    planned = plan(spec, tensor_parallel_size, limits)
    if dry_run:
        print(_plan_text(planned))
        return

    from kvsim.profiling.device import open_device
    from kvsim.profiling.measure import measure
    from kvsim.profiling.tables import new_folder, write_tables

    with new_folder(out) as folder:
        opened = open_device(device, name)
        with _progress(len(planned.shapes)) as told:
            measured = measure(planned.shapes, opened, told)
        about = {
            "gpu": opened.name,
            "device": opened.full_name,
            "torch": str(opened.torch.__version__),
            "cuda": opened.torch.version.cuda,
            "model": model,
            "tensor_parallel_size": tensor_parallel_size,
            **_left_out(planned, measured),
        }
        write_tables(folder, measured.rows, format, about)
    print(_measured_text(measured, out, opened.name))


def _spec(model: str, quantization: Literal["fp8"] | None) -> "ModelSpec":
    from dataclasses import replace

    from kvsim.errors import InputError
    from kvsim.model import load_model, quantized_weights

    spec = load_model(model)
    if quantization is None:
        return spec
    if spec.quantization is not None:
        raise InputError(f"--quantization {quantization}: {model} is quantized already")
    return replace(spec, quantization=quantized_weights(quantization))


@contextmanager
def _progress(total: int) -> Iterator["Told"]:
    """Show a bar on stderr if it is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    shown = sys.stderr is not None and sys.stderr.isatty()  # it may have been closed
    with Progress(console=Console(file=sys.stderr), disable=not shown) as bars:
        task = bars.add_task("kernels", total=total)
        yield lambda done: bars.update(task, completed=done)


def _left_out(planned: "Plan", measured: "Measured") -> dict[str, Any]:
    refused = [
        {"table": table, "shapes": count, "reason": reason}
        for (table, reason), count in measured.refused.items()
    ]
    return {"not_timed": list(planned.left_out), "refused": refused}


def _plan_text(planned: "Plan") -> str:
    """Return a line for each group of shapes that differ in one number only."""
    from kvsim.profiling.groups import grouped

    rows = [("table", "shapes", "what"), *grouped(planned.shapes)]
    lines = [f"{table:<17}  {count:>6}  {what}" for table, count, what in rows]
    lines += ["", f"{len(planned.shapes)} shapes"]
    lines += [f"Not timed: {what}" for what in planned.left_out]
    return "\n".join(lines)


def _measured_text(measured: "Measured", out: Path, gpu: str) -> str:
    from kvsim.cli.text import aligned, wrapped

    counts = [(table, str(len(rows))) for table, rows in measured.rows.items()]
    lines = [aligned([("table", "rows"), *counts]), ""]
    for (table, reason), count in measured.refused.items():
        lines.append(wrapped(f"Left out: {count} of {table}: {reason}"))
    if gpu == "cpu":
        lines.append("Timed on a CPU: the format can be tried with it, nothing priced.")
    return "\n".join([*lines, f"Tables: {out}"])
