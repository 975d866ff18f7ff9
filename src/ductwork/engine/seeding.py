"""One seed for everything. What a piece of work draws is a function of the seed and of the work's name.

Nothing depends on how many numbers were drawn before, so a run that resumes draws what it would have drawn.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def derive(seed: int, *names: object) -> int:
    """A seed of 63 bits for the work that ``names`` describe."""
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed the global generators of torch (all devices), NumPy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
