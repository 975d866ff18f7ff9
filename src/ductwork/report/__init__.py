"""Tables, figures and one self-contained HTML page, from ``result.json`` and ``metrics.jsonl`` only."""

from __future__ import annotations

from ductwork.report.collect import Run, Scan, collect, scan
from ductwork.report.page import build

__all__ = ["Run", "Scan", "build", "collect", "scan"]
