"""CORe50: 50 objects filmed in eleven sessions (Lomonaco and Maltoni, CoRL 2017), the new-instances scenario.

Class and session are read off the paths ``s1..s11/o1..o50/*.png``; the pickled tables of the download are neither
needed nor opened. Eight sessions are learned, one a stage. The test images are those of three sessions that are never
learned, so they are test domains of their own: the accuracy matrix has a column for each of them.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

from ductwork.data.benchmarks import (
    Benchmark,
    Count,
    files_by_class,
    image_set,
    listing,
    refuse_split,
    register_benchmark,
)
from ductwork.data.domain import Domain, ImageSet, Stream
from ductwork.data.images import FileSource
from ductwork.errors import DataError

_TESTS = ("s3", "s7", "s10")


def _open(root: Path, order: tuple[str, ...], split: float | None, seed: int) -> Stream:
    refuse_split(FACTS, split)
    tests = {session: _session(root, session) for session in _TESTS}
    learned = {session: _session(root, session) for session in order}
    domains = tuple(Domain(session, images, images.subset([])) for session, images in learned.items())
    return Stream(FACTS.name, domains, tests=tests, transform="paper")


def _session(root: Path, session: str) -> ImageSet:
    if not (root / session).is_dir():
        raise DataError(f"{root}: the session {session!r} is missing; expected {FACTS.layout}")
    files = files_by_class(root, session)
    strange = next((label for label, _ in files if not _is_object(label)), None)
    if strange is not None:
        raise DataError(f"{root / session / strange}: objects are called o1 to o50; expected {FACTS.layout}")
    return image_set(files, partial(FileSource, os.path.abspath(root)))


def _is_object(name: str) -> bool:
    found = re.fullmatch(r"o([1-9]\d?)", name)
    return found is not None and int(found[1]) <= 50


def _present(root: Path) -> bool:
    sessions = [name for name in listing(root)[0] if re.fullmatch(r"s([1-9]|1[01])", name)]
    return any(_is_object(name) for session in sessions[:1] for name in listing(root / session)[0])


FACTS = register_benchmark(
    Benchmark(
        name="core50",
        title="CORe50 (128 x 128)",
        about="50 hand-held objects in eight sessions, tested on three sessions more; 164,866 images",
        home="https://vlomonaco.github.io/core50/",
        download=(
            "Get the cropped 128 x 128 images (core50_128x128.zip) from the home page; nothing else is needed.",
            "Unpack it. The folder that holds s1 to s11 is the root.",
        ),
        layout="s1..s11/o1..o50/*.png",
        orders=(
            ("s11", "s4", "s2", "s9", "s1", "s6", "s5", "s8"),
            ("s2", "s9", "s1", "s6", "s5", "s8", "s11", "s4"),
            ("s4", "s1", "s9", "s2", "s5", "s6", "s8", "s11"),
            ("s1", "s9", "s2", "s5", "s6", "s8", "s11", "s4"),
            ("s9", "s2", "s5", "s6", "s8", "s11", "s4", "s1"),
        ),
        classes=50,
        expected=(Count(None, "train", 119894), Count(None, "test", 44972)),
        present=_present,
        notes=("Tests are the sessions s3, s7 and s10 at every stage, so forgetting is not defined as elsewhere.",),
    ),
    _open,
)
