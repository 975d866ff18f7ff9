"""Tables as HTML, Markdown, CSV and LaTeX. Marks of cells become notes below the table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from html import escape

from ductwork.report.tables import Cell, Column, Table


def to_markdown(table: Table) -> str:
    """A pipe table; the best of a column in bold."""

    def line(parts: Iterable[str]) -> str:
        return "| " + " | ".join(_on_one_line(part).replace("|", "\\|") for part in parts) + " |"

    def text(one: Cell) -> str:
        shown = f"**{_plain(one)}**" if one.best else _plain(one)
        return f"{shown} [{one.mark}]" if one.mark else shown

    rules = ["---:" if column.numeric else "---" for column in table.columns]
    lines = [line(_heading(c) for c in table.columns), "|" + "|".join(rules) + "|"]
    lines += [line(text(c) for c in row) for row in table.rows]
    notes = [f"[{mark}] {_on_one_line(text)}" for mark, text in table.notes]
    return "\n".join([*lines, *(["", "  \n".join(notes)] if notes else [])]) + "\n"


def to_csv(table: Table) -> str:
    """Unrounded numbers; deviations have a column of their own, and so have notes."""
    spreads = [any(row[j].std is not None for row in table.rows) for j in range(len(table.columns))]
    notes = dict(table.notes)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head: list[str] = []
    for column, has in zip(table.columns, spreads, strict=True):
        head += [_heading(column), f"{_heading(column)} std"] if has else [_heading(column)]
    writer.writerow([*head, *(["Notes"] if notes else [])])
    for row in table.rows:
        fields: list[str] = []
        for one, has in zip(row, spreads, strict=True):
            fields.append(one.text if one.value is None else repr(one.value))
            if has:
                fields.append("" if one.std is None else repr(one.std))
        if notes:
            fields.append("; ".join(dict.fromkeys(notes[one.mark] for one in row if one.mark)))
        writer.writerow(fields)
    return out.getvalue()


def to_latex(table: Table) -> str:
    """A ``booktabs`` tabular; the best of a column in bold, notes below it."""

    def line(parts: Iterable[str]) -> str:
        return "  " + " & ".join(parts) + r" \\"

    def text(one: Cell) -> str:
        shown = rf"\textbf{{{_tex(_plain(one))}}}" if one.best else _tex(_plain(one))
        return rf"{shown}\textsuperscript{{{one.mark}}}" if one.mark else shown

    form = "".join("r" if column.numeric else "l" for column in table.columns)
    lines = [
        rf"\begin{{tabular}}{{{form}}}",
        r"  \toprule",
        line(_symbols(_tex(_heading(c))) for c in table.columns),
        r"  \midrule",
        *(line(text(c) for c in row) for row in table.rows),
        r"  \bottomrule",
        r"\end{tabular}",
    ]
    notes = [rf"\textsuperscript{{{mark}}} {_tex(_on_one_line(note))}" for mark, note in table.notes]
    return "\n".join([*lines, *([r"\par\smallskip\footnotesize", r"\par ".join(notes)] if notes else [])]) + "\n"


def to_html(table: Table) -> str:
    """A table without style, for a page of one's own; the best of a column in bold."""

    def row(kind: str, parts: Iterable[str], columns: Iterable[Column]) -> str:
        sides = (' style="text-align:right"' if column.numeric else "" for column in columns)
        return "<tr>" + "".join(f"<{kind}{s}>{p}</{kind}>" for p, s in zip(parts, sides, strict=True)) + "</tr>"

    def text(one: Cell) -> str:
        shown = f"<b>{escape(_plain(one))}</b>" if one.best else escape(_plain(one))
        return f"{shown}<sup>{one.mark}</sup>" if one.mark else shown

    columns = table.columns
    lines = ["<table>", f"<caption>{escape(table.title)}</caption>"]
    lines += ["<thead>", row("th", (escape(_heading(c)) for c in columns), columns), "</thead>", "<tbody>"]
    lines += [row("td", (text(c) for c in cells), columns) for cells in table.rows]
    lines += ["</tbody>", "</table>"]
    lines += [f"<p><sup>{mark}</sup> {escape(_on_one_line(note))}</p>" for mark, note in table.notes]
    return "\n".join(lines) + "\n"


WRITERS: Mapping[str, Callable[[Table], str]] = {
    "html": to_html,
    "csv": to_csv,
    "md": to_markdown,
    "tex": to_latex,
}


def _heading(column: Column) -> str:
    return f"{column.name} ({column.symbol})" if column.symbol else column.name


def _plain(one: Cell) -> str:
    return f"{one.text} ± {one.note}" if one.std is not None else one.text


def _on_one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def _symbols(heading: str) -> str:
    """The signs of the paper."""
    return heading.replace(r"A\_bar", r"$\bar{\mathcal{A}}$").replace(r"A\_B", r"$\mathcal{A}_B$")


_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "\u2009": r"\,",
    "\u00a0": "~",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)
