"""The same batches however they are read: workers, ranks, start methods, resumption."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ductwork.data.augment import CropTransform
from ductwork.data.domain import ArraySource, ImageSet
from ductwork.data.draws import SeedArray, derive_seeds
from ductwork.data.loading import Batch, Images, Loader, PerImage, PixelTransform
from ductwork.data.transforms import TransformSpec, test_transform, train_transform
from ductwork.errors import ConfigError, DataError, DuctworkError


def image_set(n: int = 23, size: int = 8) -> ImageSet:
    pixels = np.random.default_rng(0).integers(0, 256, (n, size, size, 3), dtype=np.uint8)
    pixels[:, 0, 0, 0] = np.arange(n)
    names = tuple(f"a/{i:03d}" for i in range(n))
    return ImageSet(ArraySource(pixels, names), np.arange(n) % 3, ("x", "y", "z"))


def noisy(image: Tensor) -> Tensor:
    """Draws from all three global generators, as a transform of a user may."""
    return image.float() + torch.rand(3, 1, 1) + random.random() + float(np.random.rand())


def shift(image: Tensor) -> Tensor:
    return image.float() + torch.rand(3, 1, 1)


def plain(image: Tensor) -> Tensor:
    return image.float()


def whole(loader: Loader, epoch: int = 0, start: int = 0) -> list[Batch]:
    return list(loader.epoch(epoch, start=start))


def same(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets) and torch.equal(a.index, b.index)
        for a, b in zip(left, right, strict=True)
    )


def by_position(batches: list[Batch]) -> dict[int, Tensor]:
    return {int(i): x for batch in batches for i, x in zip(batch.index, batch.inputs, strict=True)}


def test_every_image_once_in_order_with_its_target() -> None:
    images = image_set()
    loader = Loader(images, plain, batch_size=5)
    batches = whole(loader)
    assert len(loader) == len(batches) == 5
    assert torch.cat([b.index for b in batches]).tolist() == list(range(23))
    assert torch.cat([b.targets for b in batches]).tolist() == images.labels.tolist()
    assert torch.cat([b.inputs for b in batches])[:, 0, 0, 0].tolist() == list(range(23))
    assert [b.total for b in batches] == [5, 5, 5, 5, 3] and loader.decoded == 23
    assert batches[0].inputs.dtype == torch.float32 and batches[0].targets.dtype == torch.int64


def test_targets_may_be_given() -> None:
    loader = Loader(image_set(), plain, batch_size=23, targets=np.arange(23, dtype=np.int32) + 100)
    assert whole(loader)[0].targets.tolist() == list(range(100, 123))


def test_subset_and_source_that_is_not_an_array() -> None:
    part = image_set().subset([7, 3, 5])
    both = ImageSet.concat([part, part])
    assert whole(Loader(part, plain, batch_size=9))[0].inputs[:, 0, 0, 0].tolist() == [7, 3, 5]
    assert whole(Loader(both, plain, batch_size=9))[0].inputs[:, 0, 0, 0].tolist() == [7, 3, 5, 7, 3, 5]


@pytest.mark.parametrize("transform", [noisy, PerImage(shift, torch_only=True)])
def test_augmentation_depends_on_seed_epoch_and_position_only(transform: object) -> None:
    def read(seed: int = 1, epoch: int = 0, **options: int) -> dict[int, Tensor]:
        loader = Loader(image_set(), transform, seed=seed, **{"batch_size": 5, "shuffle": True} | options)  # type: ignore[arg-type]
        return by_position(whole(loader, epoch))

    base = read()
    for other in (read(), read(batch_size=7), read(shuffle=False)):
        assert all(torch.equal(base[i], other[i]) for i in base)
    for other in (read(seed=2), read(epoch=1)):
        assert not any(torch.equal(base[i], other[i]) for i in base)
    noise = {(base[i] - image_set().read(i)).flatten()[0].item() for i in base}
    assert len(noise) == len(base)


def test_shuffle_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        batches = whole(Loader(image_set(), plain, batch_size=4, seed=seed, shuffle=True), epoch)
        return [int(i) for batch in batches for i in batch.index]

    assert order(1, 0) == order(1, 0) and sorted(order(1, 0)) == list(range(23))
    assert len({tuple(order(seed, epoch)) for seed in (0, 1, -1) for epoch in range(4)}) == 12


@pytest.mark.parametrize("workers", [0, 1])
def test_global_generators_are_left_alone(workers: int) -> None:
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = (torch.rand(1), np.random.rand(), random.random())
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    loader = Loader(image_set(), noisy, batch_size=5, workers=workers)
    whole(loader), whole(loader, 1)
    assert (torch.rand(1), np.random.rand(), random.random()) == expected


def test_workers_change_nothing_and_see_new_epochs() -> None:
    here = Loader(image_set(), noisy, batch_size=4, seed=3, shuffle=True)
    there = Loader(image_set(), noisy, batch_size=4, seed=3, shuffle=True, workers=2)
    for epoch in (0, 1, 0):
        assert same(whole(here, epoch), whole(there, epoch))
    assert same(whole(here, 2, start=3), whole(there, 2, start=3))
    assert here.decoded == there.decoded
    there.close()
    assert same(whole(here, 4), whole(there, 4))


def test_spawned_workers() -> None:
    spawned = Loader(image_set(), PerImage(noisy), batch_size=9, seed=3, shuffle=True, workers=1, start_method="spawn")
    assert same(whole(Loader(image_set(), noisy, batch_size=9, seed=3, shuffle=True)), whole(spawned))


@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_together_are_one_process(world: int) -> None:
    alone = whole(Loader(image_set(21), noisy, batch_size=10, seed=3, shuffle=True), 2)
    ranks = [
        whole(Loader(image_set(21), noisy, batch_size=10, seed=3, shuffle=True, rank=rank, world=world), 2)
        for rank in range(world)
    ]
    assert {len(batches) for batches in ranks} == {len(alone)}
    for one, *slices in zip(alone, *ranks, strict=True):
        assert torch.equal(one.inputs, torch.cat([s.inputs for s in slices]))
        assert torch.equal(one.index, torch.cat([s.index for s in slices]))
        assert {s.total for s in slices} == {len(one)}
        sizes = [len(s) for s in slices]
        assert max(sizes) - min(sizes) <= 1
    assert ranks[-1][-1].inputs.shape == (0, 3, 8, 8)


def test_resumption_inside_an_epoch_reads_nothing_before() -> None:
    loader = Loader(image_set(), noisy, batch_size=4, shuffle=True)
    full = whole(loader, 1)
    loader.decoded = 0
    assert same(full[4:], whole(loader, 1, start=4)) and loader.decoded == 7
    assert whole(loader, 1, start=6) == []


def test_drop_last_never_drops_the_only_batch() -> None:
    assert [b.total for b in whole(Loader(image_set(), plain, batch_size=10, drop_last=True))] == [10, 10]
    assert [b.total for b in whole(Loader(image_set(), plain, batch_size=24, drop_last=True))] == [23]
    assert len(Loader(image_set().subset([]), plain, batch_size=4)) == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_an_abandoned_epoch_does_not_leak_into_the_next(workers: int) -> None:
    loader = Loader(image_set(), plain, batch_size=2, workers=workers)
    abandoned = loader.epoch(0)
    next(abandoned)
    assert [int(i) for batch in loader.epoch(1) for i in batch.index] == list(range(23))
    with pytest.raises(RuntimeError, match="this epoch was ended"):
        next(abandoned)


def unlucky(image: Tensor) -> Tensor:
    if image[0, 0, 0] == 7:
        raise DataError("a/007: cannot be read")
    return image.float()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_worker_stays_one_line_and_comes_in_its_place(workers: int) -> None:
    loader = Loader(image_set(), unlucky, batch_size=3, workers=workers)
    batches = loader.epoch()
    assert [len(next(batches)), len(next(batches))] == [3, 3]
    with pytest.raises(DataError) as caught:
        next(batches)
    assert str(caught.value) == "a/007: cannot be read"
    assert len(next(loader.epoch(1))) == 3


def dying(image: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return image


def test_a_killed_worker_is_explained() -> None:
    with pytest.raises(DuctworkError, match="use fewer workers than 1"):
        whole(Loader(image_set(), dying, batch_size=3, workers=1))


def test_transform_with_ragged_results() -> None:
    with pytest.raises(ConfigError, match="shapes"):
        whole(Loader(image_set(), lambda image: image[:, : 1 + int(image[0, 0, 0])], batch_size=3))


class Doubling:
    def batch(self, images: Images, seeds: SeedArray) -> Tensor:
        assert isinstance(images, Tensor) and len(images) == len(seeds)
        return images.float() * 2


def test_batch_transform_gets_the_images_of_an_array_at_once() -> None:
    assert whole(Loader(image_set(), Doubling(), batch_size=30))[0].inputs[:, 0, 0, 0].tolist() == list(range(0, 46, 2))


SPEC = TransformSpec("paper", 16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", [CropTransform(SPEC), train_transform(SPEC), test_transform(SPEC)])
def test_memory_that_is_used_again_never_shows(transform: PixelTransform, workers: int) -> None:
    images, seeds = image_set(40, 20), derive_seeds(3, 1, np.arange(40))
    expected = transform.batch([images.read(i) for i in range(40)], seeds)
    loader = Loader(images, transform, batch_size=3, workers=workers, seed=3, shuffle=True)
    next(loader.epoch(0))  # abandoned while workers are ahead
    kept = whole(loader, 1)
    assert all(torch.equal(batch.inputs, expected[batch.index]) for batch in kept)
    views = [batch.inputs[0, 0] for batch in kept]
    del kept
    assert same(whole(loader, 1), whole(loader, 1))
    first = next(loader.epoch(1))
    assert torch.equal(views[0], first.inputs[0, 0]) and len({view.data_ptr() for view in views}) == len(views)
    places = {batch.inputs.data_ptr() for batch in loader.epoch(2)}
    assert len(places) <= 4, "memory is not used again"


@pytest.mark.parametrize("workers", [0, 1])
def test_no_images_are_no_batches(workers: int) -> None:
    loader = Loader(image_set().subset([]), CropTransform(SPEC), batch_size=4, workers=workers)
    assert whole(loader) == [] and loader.decodes == 0


def test_an_empty_slice_has_its_shape() -> None:
    loader = Loader(image_set(9), CropTransform(SPEC), batch_size=8, rank=1, world=2)
    assert [batch.inputs.shape[0] for batch in loader.epoch()] == [4, 0]
    assert whole(loader)[1].inputs.shape == (0, 3, 16, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be"),
        ({"workers": -1}, "workers must be"),
        ({"rank": 2, "world": 2}, "rank must be"),
        ({"targets": np.zeros(3)}, "23 images but targets of shape"),
    ],
)
def test_impossible_settings(options: dict[str, object], message: str) -> None:
    with pytest.raises(DuctworkError, match=message):
        Loader(image_set(), plain, **{"batch_size": 4} | options)  # type: ignore[arg-type]


def test_seeds_are_distinct_and_do_not_change_between_versions() -> None:
    positions = np.arange(1000)
    seeds = np.concatenate([derive_seeds(s, e, positions) for s in (0, 1, -1, 2**63) for e in range(5)])
    assert len(np.unique(seeds)) == len(seeds)
    assert abs((seeds.view(np.uint8).mean() / 255) - 0.5) < 0.01
    assert derive_seeds(1993, 2, positions[:2]).tolist() == [9994286282690897812, 4839037978591699757]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of process groups")
def test_ctrl_c_ends_promptly_and_quietly(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(
        textwrap.dedent("""
        import sys, time
        import numpy as np
        from ductwork.data.domain import ArraySource, ImageSet
        from ductwork.data.loading import Loader
        def slow(image):
            time.sleep(0.05)
            return image.float()
        if __name__ == "__main__":
            source = ArraySource(np.zeros((23, 8, 8, 3), np.uint8), tuple(map(str, range(23))))
            images = ImageSet(source, np.zeros(23, np.int64), ("a",))
            loader = Loader(images, slow, batch_size=2, workers=2)
            try:
                for epoch in range(1000):
                    for batch in loader.epoch(epoch):
                        print("batch", flush=True)
            except KeyboardInterrupt:
                sys.exit(130)
        """)
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == "batch\n"
    started = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130 and errors == "" and time.monotonic() - started < 10
