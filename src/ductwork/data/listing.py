"""What a folder holds, in an order and by names that no file system, platform or locale has a say in.

Names are compared in Unicode's composed form, which some file systems take apart, and sorted by code point.
"""

from __future__ import annotations

import os
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from ductwork.data.images import is_image
from ductwork.errors import DataError, suggest

#: Folders made by systems and archivers, which may hold thumbnails or second copies of images.
_NOT_OURS = frozenset({"__macosx", "@eadir", "$recycle.bin", "system volume information"})


@dataclass(frozen=True)
class Listing:
    """Sub-folders and files of a folder, sorted: composed name -> name on disk. Hidden entries are passed over."""

    folders: dict[str, str]
    images: dict[str, str]
    others: dict[str, str]
    faults: tuple[str, ...]  # entries that are no good to anybody, a line each

    def sound(self) -> Listing:
        """This listing, unless something is wrong with an entry."""
        if self.faults:
            raise DataError(self.faults[0])
        return self


def list_folder(path: Path) -> Listing:
    """What is in a folder; what is wrong with an entry is a part of the answer. DataError if it cannot be read."""
    folders: dict[str, str] = {}
    images: dict[str, str] = {}
    others: dict[str, str] = {}
    faults: list[str] = []
    try:
        with os.scandir(path) as entries:
            # sorted, so that of two names that are one to people the same one is kept on every system
            for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
                if entry.name.startswith(".") or entry.name.lower() in _NOT_OURS:
                    continue
                into = folders if entry.is_dir() else images if is_image(entry.name) else others
                fault = _fault(entry, into, wanted=into is not others)
                if fault:
                    faults.append(fault)
                elif into is folders or entry.is_file():
                    into[composed(entry.name)] = entry.name
    except OSError as error:
        raise unusable(path, error) from error
    return Listing(_sorted(folders), _sorted(images), _sorted(others), tuple(faults))


def composed(name: str) -> str:
    """A name in the form in which names are compared."""
    return unicodedata.normalize("NFC", name)


def own_name(path: str) -> str:
    """What a folder or file is called, which the root of a file system is not."""
    return composed(os.path.basename(path)) or "root"


def unusable(path: Path, error: OSError) -> DataError:
    """Why a folder cannot be listed, in one line."""
    if isinstance(error, FileNotFoundError):
        near = path.parent
        siblings = [entry.name for entry in near.iterdir() if entry.is_dir()] if near.is_dir() else []
        hint = suggest(path.name, siblings)
        return DataError(f"{path}: there is no such folder{hint if 'did you mean' in hint else ''}")
    if isinstance(error, NotADirectoryError):
        return DataError(f"{path}: this is a file, not a folder")
    if isinstance(error, PermissionError):
        return DataError(f"{path}: no permission to list this folder")
    return DataError(f"{error.filename or path}: cannot be opened ({error.strerror or error})")


def _fault(entry: os.DirEntry[str], into: dict[str, str], *, wanted: bool) -> str:
    """What is wrong with an entry; it may be anything, as long as nobody wants to use it."""
    if entry.is_symlink() and not os.path.exists(entry.path):
        return f"{entry.path}: this link leads nowhere; repair or remove it"
    if not wanted:
        return ""
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        return f"{os.fsencode(entry.path)!r}: this name is not valid Unicode; rename it"
    if composed(entry.name) in into:
        return f"{entry.path}: another name in this folder is the same but for its Unicode form; rename one"
    return ""


def _sorted(names: dict[str, str]) -> dict[str, str]:
    return dict(sorted(names.items()))
