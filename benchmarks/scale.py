"""What DUCT with many domains of many classes takes: what its state weighs, and what a transport between blocks costs.

    python benchmarks/scale.py --domains 1000 --classes 10000

Time is measured at sizes that fit here and grows with the square of the number of classes, which the measurements show.
"""

from __future__ import annotations

import argparse
import time

import torch

from ductwork import functional as F

MEASURED = (500, 1000, 2000)  # classes


def seconds(classes: int, width: int) -> dict[str, float]:
    """Processor time of each step of carrying one old block along; its centres differ by half of their spread."""
    torch.manual_seed(0)
    old = torch.randn(classes, width)
    new, rows = old + 0.5 * torch.randn(classes, width), torch.randn(2, classes, width)
    start = time.process_time()
    cost = F.transport_cost(new, old)
    costed = time.process_time()
    plan = F.transport_plan(cost, reg=0.1)
    planned = time.process_time()
    F.transport_head(rows[0], rows[1], plan.plan, 0.5, scale="norm")
    return {"cost": costed - start, "plan": planned - costed, "rows": time.process_time() - planned}


def main() -> None:
    parser = argparse.ArgumentParser(description="What many domains of many classes take.")
    parser.add_argument("--domains", type=int, default=1000)
    parser.add_argument("--classes", type=int, default=10_000, help="classes of each domain")
    parser.add_argument("--width", type=int, default=768, help="features of an image")
    parser.add_argument("--parameters", type=float, default=86e6, help="parameters of the backbone")
    given = parser.parse_args()
    rows = given.domains * given.classes
    print(f"rows                     {rows:,}")
    print(f"rows, and centres        {rows * given.width * 4 / 1e9:.1f} GB each")
    print(f"scores of 256 images     {rows * 256 * 4 / 1e9:.1f} GB")
    print(f"backbones                {2 * given.parameters * 4 / 1e9:.2f} GB")
    print(f"sketches                 {given.domains * 8192 * 4 / 1e9:.3f} GB")
    print(f"one plan                 {given.classes**2 * 8 / 1e9:.2f} GB")
    print(f"state written in all     {given.domains**2 / 2 * given.classes * given.width * 8 / 1e12:.1f} TB")
    torch.set_num_threads(1)
    seconds(100, given.width)  # the first call loads libraries
    for classes in MEASURED:
        found = seconds(classes, given.width)
        print(f"transport, {classes:5} classes", *(f"{name} {value:.3f} s" for name, value in found.items()), sep="  ")
    one = sum(found.values()) * (given.classes / MEASURED[-1]) ** 2
    blocks = given.domains - 1
    print(f"transport of one block   {one:.0f} s on one thread, extrapolated")
    print(f"of the last stage        {one * blocks / 3600:.0f} h")
    print(f"of all stages            {one * blocks * given.domains / 2 / 3600 / 24 / 365:.1f} years")


if __name__ == "__main__":
    main()
