"""The command line: a thin layer over the Python API. Heavy modules are imported when a command runs, not before."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from ductwork.cli import bench, data, demo, listing, report, run
from ductwork.errors import DuctworkError, RankError

# Threads that wait by spinning make a busy machine a hundred times slower than one thread; this must be said before
# torch is loaded. Whoever sets it otherwise is left alone.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings are advice to programmers


class _InterruptedError(Exception):
    pass


class _Commands(TyperGroup):
    """Lets an interruption through to ``main``: Typer would end without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _InterruptedError from None


app = typer.Typer(
    name="ductwork",
    cls=_Commands,
    help="Teach a trained image classifier new visual domains, without the old images and without forgetting.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("bench")(bench.bench)
app.command("report")(report.report)
app.command("list")(listing.listing)
app.add_typer(data.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        from ductwork import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks."),
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    if debug:
        os.environ["DUCTWORK_DEBUG"] = "1"


def main() -> None:
    """Entry point: what the user can put right is one line and exit code 2, an interruption is 130."""
    try:
        app()
    except DuctworkError as error:
        if os.environ.get("DUCTWORK_DEBUG"):
            raise
        # before the processes of a run have met, the first on each machine speaks
        if isinstance(error, RankError) or os.environ.get("LOCAL_RANK", "0") == "0":
            for line in error.lines:
                print(f"ductwork: {' '.join(line.split())}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, _InterruptedError):
        if os.environ.get("RANK", "0") == "0":
            print("ductwork: interrupted; nothing is lost, run the same command again to go on", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
