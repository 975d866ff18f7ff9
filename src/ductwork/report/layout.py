"""Where labels go, so that none lies on another."""

from __future__ import annotations

from collections.abc import Sequence

Box = tuple[float, float, float, float]


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions as near to ``wanted`` as can be (least squares), in the same order and at least ``gap`` apart.

    They stay inside ``low..high``; when that cannot hold them all, the gap shrinks evenly.
    """
    count = len(wanted)
    if count > 1:
        gap = min(gap, (high - low) / (count - 1))
    order = sorted(range(count), key=lambda i: (wanted[i], i))
    # Subtracting the gaps turns "at least a gap apart" into "not decreasing": isotonic regression by pooling.
    pools: list[tuple[float, int]] = []
    for rank, index in enumerate(order):
        total, size = wanted[index] - rank * gap, 1
        while pools and pools[-1][0] / pools[-1][1] > total / size:
            before, members = pools.pop()
            total, size = total + before, size + members
        pools.append((total, size))
    flat = [total / size for total, size in pools for _ in range(size)]
    top = high - (count - 1) * gap
    placed = [0.0] * count
    for rank, index in enumerate(order):
        placed[index] = min(max(flat[rank], low), top) + rank * gap
    return placed


def place(
    points: Sequence[tuple[float, float]], sizes: Sequence[tuple[float, float]], frame: Box, away: float = 7.0
) -> list[tuple[float, float]]:
    """Lower left corners for labels of ``sizes`` beside ``points``: none on another, on a point or off the frame.

    The label tries the sides of its point, then rings further out; the caller draws a leader where it is far.
    """
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in points]
    placed = []
    for (x, y), (width, height) in zip(points, sizes, strict=True):
        corners = [corner for ring in range(1, 9) for corner in _around(x, y, width, height, away * ring)]
        inside = [c for c in corners if _inside((*c, c[0] + width, c[1] + height), frame)] or corners
        best, least = inside[0], float("inf")
        for corner in inside:
            hidden = sum(_overlap((*corner, corner[0] + width, corner[1] + height), box) for box in taken)
            if hidden < least:
                best, least = corner, hidden
            if not hidden:
                break
        placed.append(best)
        taken.append((*best, best[0] + width, best[1] + height))
    return placed


def _around(x: float, y: float, width: float, height: float, away: float) -> list[tuple[float, float]]:
    side = away * 0.7
    return [
        (x + away, y - height / 2),
        (x - away - width, y - height / 2),
        (x - width / 2, y + away),
        (x - width / 2, y - away - height),
        (x + side, y + side),
        (x - side - width, y + side),
        (x + side, y - side - height),
        (x - side - width, y - side - height),
    ]


def _inside(box: Box, frame: Box) -> bool:
    return box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]


def _overlap(a: Box, b: Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0
