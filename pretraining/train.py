"""Train ``glyph_vit`` on the rendered glyphs and write the weights that ship with the package.

Plain supervised learning: cross-entropy over some 430 classes of letters, marks and doodles, a cosine
head, AdamW, an exponential moving average of the weights. The head is thrown away.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from styles import cosine, plain_style, random_style
from torch import Tensor, nn
from torch.nn import functional as F

from ductwork.backbones import embedded

TEMPERATURE = 16.0


def normalise(images: Tensor) -> Tensor:
    mean, std = torch.tensor(embedded.MEAN), torch.tensor(embedded.STD)
    return (images - mean[:, None, None]) / std[:, None, None]


class Classifier(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = embedded.build()
        self.rows = nn.Parameter(torch.randn(classes, self.backbone.num_features) * 0.05)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(normalise(images))
        return TEMPERATURE * F.normalize(features, dim=1) @ F.normalize(self.rows, dim=1).T


class Sampler:
    """Draws letters and doodles in a fixed proportion, each class as often as its examples."""

    def __init__(self, letters: Tensor, doodles: Tensor, share: float, seed: int) -> None:
        self.pools, self.share = (letters, doodles), share
        self.random = torch.Generator().manual_seed(seed)

    def batch(self, size: int) -> Tensor:
        second = int(size * self.share) if len(self.pools[1]) else 0
        parts = [
            pool[torch.randint(len(pool), (n,), generator=self.random)]
            for pool, n in zip(self.pools, (size - second, second), strict=True)
            if n
        ]
        return torch.cat(parts)


@torch.no_grad()
def accuracy(model: Classifier, masks: Tensor, labels: Tensor, looks: int = 1) -> tuple[float, float]:
    """Percent right on plain and on randomly styled held-out glyphs."""
    model.eval()
    right = [0, 0]
    for look, style in enumerate((plain_style, random_style)):
        for part in range(0, len(masks), 512):
            scores = model(style(masks[part : part + 512]))
            right[look] += int((scores.argmax(1) == labels[part : part + 512]).sum())
    model.train()
    return 100 * right[0] / len(masks), 100 * right[1] / len(masks)


@torch.no_grad()
def nearest_mean(
    backbone: nn.Module, masks: Tensor, labels: Tensor, known: Tensor, test: Tensor
) -> tuple[float, float]:
    """Percent right on plain and styled glyphs by the nearest class mean of plain ``known`` ones: features alone."""

    def features(rows: Tensor, style: Callable[[Tensor], Tensor]) -> Tensor:
        parts = [backbone(normalise(style(masks[part]))) for part in rows.split(512)]
        return F.normalize(torch.cat(parts), dim=1)

    backbone.eval()
    sums = torch.zeros(int(labels.max()) + 1, embedded.build().num_features)
    sums.index_add_(0, labels[known], features(known, plain_style))
    means = F.normalize(sums, dim=1)
    plain, styled = (
        100 * float((features(test, style) @ means.T).argmax(1).eq(labels[test]).float().mean())
        for style in (plain_style, random_style)
    )
    return plain, styled


def save(backbone: nn.Module, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: value.to(torch.float16).contiguous() for name, value in backbone.state_dict().items()}
    save_file(state, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder with glyphs.npz")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--doodle-share", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path, default=embedded.weights_path())
    parser.add_argument("--check", action="store_true", help="train nothing; say how good the features of --out are")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    if args.threads:
        torch.set_num_threads(args.threads)

    data = np.load(args.work / "glyphs.npz")
    masks, labels = torch.from_numpy(data["masks"]), torch.from_numpy(data["labels"])
    aside = torch.from_numpy(data["held_out"])
    doodle = torch.from_numpy(np.char.startswith(data["names"], "doodle"))[labels]
    pools = [(~aside & kind).nonzero().squeeze(1) for kind in (~doodle, doodle)]
    tests = [(aside & kind).nonzero().squeeze(1)[:2048] for kind in (~doodle, doodle)]
    if args.check:
        backbone = embedded.build()
        backbone.load_state_dict({name: value.float() for name, value in load_file(args.out).items()})
        for name, pool, test in zip(("letters", "doodles"), pools, tests, strict=True):
            known = pool[torch.randperm(len(pool))[:20_000]]
            plain, styled = nearest_mean(backbone, masks, labels, known, test)
            print(f"nearest class mean, held-out {name}: plain {plain:.1f} styled {styled:.1f}")
        return
    sampler = Sampler(pools[0], pools[1], args.doodle_share, args.seed)

    model = Classifier(len(data["names"]))
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.998))
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: cosine(step, args.steps, 150))
    start, running = time.time(), 0.0
    for step in range(1, args.steps + 1):
        rows = sampler.batch(args.batch)
        images = random_style(masks[rows])
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(images)
        loss = F.cross_entropy(scores.float(), labels[rows], label_smoothing=0.05)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        average.update_parameters(model)
        running += loss.item()
        if step % 100 == 0:
            rate = step * args.batch / (time.time() - start)
            print(f"step {step} loss {running / 100:.3f} images/s {rate:.0f}", flush=True)
            running = 0.0
        if step % 500 == 0 or step == args.steps:
            for name, test in zip(("letters", "doodles"), tests, strict=True):
                if len(test):
                    plain_right, styled_right = accuracy(average.module, masks[test], labels[test])
                    print(f"  held-out {name}: plain {plain_right:.1f} styled {styled_right:.1f}", flush=True)
            save(average.module.backbone, args.out)
    print(f"{time.time() - start:.0f} seconds, {time.process_time():.0f} of processor time")


if __name__ == "__main__":
    main()
