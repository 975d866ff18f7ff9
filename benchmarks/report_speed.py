"""How long a report over many runs takes, and how large it is.

    python benchmarks/report_speed.py --runs 500

The runs are made up: four streams, twelve methods, five orders, and seeds until there are enough. Time is that of the
whole command, with its start, as a user waits for it; processor time is given beside it for busy machines.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.report.runs import write_many

SECONDS, BYTES = 10.0, 10e6


def measure(runs: int, files: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_many(root / "runs", runs)
        page = root / "report.html"
        command = [sys.executable, "-m", "ductwork.cli.main", "report", str(root / "runs"), "--out", str(page)]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command += ["--files", str(root / "files")] if files else []
        subprocess.run(command, check=True, capture_output=True)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        size, written = page.stat().st_size, sum(1 for path in (root / "files").rglob("*") if path.is_file())
    print(f"{runs} runs: {seconds:.1f} s ({processor:.1f} s of processor time), {size / 1e6:.2f} MB, {written} files")
    if runs <= 500 and not files:
        print("within" if processor < SECONDS and size < BYTES else "beyond", "10 s and 10 MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--files", action="store_true", help="also write every table and figure as a file")
    given = parser.parse_args()
    measure(given.runs, given.files)
