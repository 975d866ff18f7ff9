"""``ductwork data check|stats|prepare|cache``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ductwork.data.inspect import Finding
    from ductwork.data.stats import Statistics

app = typer.Typer(help="What is in a stream, what is wrong with it, how to get it.", no_args_is_help=True)

_Stream = Annotated[
    str,
    typer.Argument(help="Name of a stream, folder of domains, table (.csv, .parquet), shards (.tar) or saved dataset."),
]
_Root = Annotated[Path | None, typer.Option(help="Where the download of a named stream lies.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_SHOWN = 5  # findings of a kind that are listed unless all are asked for


@app.command()
def check(
    stream: _Stream,
    root: _Root = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that read images; default: all processors.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List every finding, not only the first of each kind.")
    ] = False,
    json: _Json = False,
) -> None:
    """Read every image and report what is wrong; exit code 1 if there are errors."""
    from ductwork.cli.terminal import watched
    from ductwork.data.inspect import check as look_through

    with watched() as progress:
        findings = look_through(
            stream, root=root, workers=workers, begin=lambda n: progress.begin("read", n), advance=progress.advance
        )
        progress.end()
    if json:
        _print_json(findings)
    else:
        _print_findings(findings, everything)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)


@app.command()
def stats(
    stream: _Stream,
    root: _Root = None,
    sheet: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also write a contact sheet.")] = None,
    json: _Json = False,
) -> None:
    """Count the images of each domain, split and class."""
    from ductwork.data.stats import contact_sheet, statistics
    from ductwork.data.streams import open_stream

    opened = open_stream(stream, root=root)
    found = statistics(opened)
    if json:
        _print_json(found)
    else:
        _print_statistics(found)
    if sheet is not None:
        written = contact_sheet(opened, sheet)
        if not json:
            print(written)


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="Name of a benchmark, see `ductwork list streams`.")],
    root: _Root = None,
) -> None:
    """Say where to download a benchmark; with --root, compare the download with the published counts and index it."""
    from ductwork.cli.terminal import table, watched
    from ductwork.data.prepare import compare, facts_of, instructions, open_download, write_index

    facts = facts_of(name)
    if root is None:
        print(instructions(facts))
        return
    opened = open_download(facts, root)
    rows = compare(facts, opened)
    words = {True: "ok", False: "differs"}
    table(
        ["domain", "part", "found", "expected", ""],
        [[r.domain, r.split, str(r.found), _or_dash(r.expected), words[r.agrees] if r.expected else ""] for r in rows],
    )
    for note in facts.notes:
        print(f"note: {note}")
    with watched() as progress:
        index = write_index(opened, root, begin=lambda n: progress.begin("index", n), advance=progress.advance)
        progress.end()
    print(f"index: {index}")
    different = sum(not row.agrees for row in rows)
    if different:
        print(f"{different} counts differ from those of a complete download ({facts.home})")
        raise typer.Exit(1)


@app.command()
def cache(
    folder: Annotated[Path | None, typer.Option(help="Where it lies, if `engine.cache_dir` says so in runs.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all images from it.")] = False,
) -> None:
    """Show what decoded images are kept on disk, which all runs share; with --clear, remove them."""
    from datetime import datetime

    from ductwork.cli.terminal import table
    from ductwork.data import shards
    from ductwork.data.prepare import cache_folder

    place = folder or cache_folder() / "images"
    if clear:
        print(f"{shards.clear(place) / 1e9:.2f} GB freed in {place}")
        return
    found = shards.holdings(place)
    rows = [
        [
            each.kind,
            str(each.images),
            f"{each.bytes / 1e9:.2f} GB",
            f"{datetime.fromtimestamp(each.used):%Y-%m-%d %H:%M}",
        ]
        for each in found
    ]
    table(["shorter side", "images", "size", "last used"], rows)
    print(f"{sum(each.bytes for each in found) / 1e9:.2f} GB in {place}")


def _print_findings(findings: Sequence[Finding], everything: bool) -> None:
    from ductwork.cli.terminal import table

    rows, more = [], 0
    for place, finding in enumerate(findings):
        if not everything and place >= _SHOWN and findings[place - _SHOWN].kind == finding.kind:
            more += 1
        else:
            rows.append([finding.severity, finding.kind, ", ".join(finding.where), finding.message])
    if rows:
        table(["severity", "kind", "where", "what"], rows)
    if more:
        print(f"{more} more of the same kinds; --all lists them")
    counts = [sum(finding.severity == severity for finding in findings) for severity in ("error", "warning", "note")]
    print("errors: {}, warnings: {}, notes: {}".format(*counts))


def _print_statistics(found: Statistics) -> None:
    from ductwork.cli.terminal import table

    table(
        ["domain", "part", "images", "classes", "smallest class", "largest class"],
        [[p.domain, p.split, *map(str, (p.images, p.classes, p.smallest, p.largest))] for p in found.parts],
    )
    print()
    domains = list(dict.fromkeys(part.domain for part in found.parts))
    rows = [
        [label, *("{}+{}".format(*counts[domain]) for domain in domains)] for label, counts in found.per_class.items()
    ]
    table(["class (train+test)", *domains], rows)


def _print_json(value: object) -> None:
    import json
    from dataclasses import asdict

    rows = [asdict(each) for each in value] if isinstance(value, list) else asdict(value)  # type: ignore[call-overload]
    print(json.dumps(rows, indent=1, ensure_ascii=False))


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
