"""What commands print: progress while they work, tables when they are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ductwork.engine.progress import Progress
    from ductwork.experiments.results import RunResult


@contextmanager
def watched() -> Iterator[Progress]:
    """A progress bar on a terminal, plain lines elsewhere."""
    from ductwork.engine.progress import for_terminal

    with for_terminal() as progress:
        yield progress


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table as wide as the terminal; in a pipe columns are parted by tabs, so that other programs can read them."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        for row in [head, *rows]:
            print("\t".join(row))
        return
    grid = Table(*head, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        grid.add_row(*row)
    console.print(grid, highlight=False, markup=False)


def results_table(results: Sequence[RunResult]) -> None:
    """Methods with their figures, one a line."""
    head = ["method", "A_bar", "A_B", "forgetting", "seconds"]
    table(
        head, [[r.method, *(_number(v) for v in (r.A_bar, r.A_B, r.forgetting)), f"{r.seconds:.0f}"] for r in results]
    )


def result_line(result: RunResult) -> str:
    """A run in one line."""
    figures = f"A_bar {_number(result.A_bar)}, A_B {_number(result.A_B)}, forgetting {_number(result.forgetting)}"
    return f"{result.method} on {result.stream}: {figures} ({result.seconds:.0f} s)"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
