"""The engine's bench for one domain: what a method's phases are handed as ``Stage``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ductwork.data.domain import ConcatSource, Domain, ImageSet, Reference
from ductwork.data.draws import derive_seeds
from ductwork.data.loading import Batch, Loader, Transform
from ductwork.data.slices import bounds
from ductwork.engine.evaluate import evaluate
from ductwork.engine.features import FeatureStore, sharable
from ductwork.engine.loop import EpochLog, Snapshot, train
from ductwork.engine.reading import image_loader
from ductwork.engine.seeding import derive, seed_everything
from ductwork.engine.session import Session
from ductwork.engine.whole import whole_batch
from ductwork.errors import DataError
from ductwork.functional import CenterAccumulator
from ductwork.methods.base import Batches, Group, Loss, Method, Phase, TrainingConfig

SaveEpoch = Callable[[int, EpochLog, Callable[[], Snapshot]], None]


class Bench:
    """Implements ``methods.base.Stage`` on a session. Counts every image, names every seed."""

    def __init__(
        self,
        session: Session,
        method: Method,
        domain: Domain,
        number: int,
        *,
        seed: int,
        train_transform: Transform,
        test_transform: Transform,
        tests: Mapping[str, ImageSet],
        records: dict[str, Any],
        library: Mapping[str, ImageSet],
        title: str,
        save_epoch: SaveEpoch,
        remaining: int = 0,
    ) -> None:
        self.session, self.method, self.domain, self.number = session, method, domain, number
        self.device, self.remaining = session.device, remaining
        self.records = records
        self._seed, self._title, self._tests = derive(seed, "stage", number), title, tests
        self._library = library
        self._train_transform, self._test_transform = train_transform, test_transform
        self._save_epoch = save_epoch
        self._phase, self._calls = "", 0
        self._resume: tuple[int, Snapshot] | None = None
        self._loaders: list[Loader] = []

    def run(self, phase: Phase, resume: tuple[int, Snapshot] | None = None) -> None:
        """Run one phase; ``resume`` is the training call in it that was interrupted, and how far it was."""
        self._phase, self._calls, self._resume = phase.name, 0, resume
        seed_everything(derive(self._seed, phase.name))
        self.method.eval()
        try:
            phase.run(self)
        finally:
            for loader in self._loaders:
                self.session.work.add(decoded=loader.decoded)
                loader.close()
            self._loaders = []
            self.session.progress.end()

    # what methods ask for

    def augmented(
        self,
        batch_size: int,
        *,
        images: ImageSet | None = None,
        targets: npt.NDArray[np.int64] | None = None,
        drop_last: bool = False,
    ) -> Batches:
        images, targets = self._images(images, targets)
        return self._loader(images, self._train_transform, batch_size, targets, shuffle=True, drop_last=drop_last)

    def cached(self, inputs: Tensor, batch_size: int) -> Batches:
        session = self.session
        seed = derive(self._seed, self._phase, "order")
        return TensorBatches(inputs, self.domain.targets, batch_size, seed, session.rank, session.world)

    def train(
        self,
        model: nn.Module,
        batches: Batches,
        groups: Sequence[Group],
        config: TrainingConfig,
        *,
        loss: Loss | None = None,
        epochs: int | None = None,
        freeze_batch_norm: bool = False,
    ) -> None:
        call, self._calls = self._calls, self._calls + 1
        resume = self._resume[1] if self._resume is not None and self._resume[0] == call else None
        epochs = config.epochs if epochs is None else epochs
        on_images = isinstance(batches, Loader)
        size = batches.size if isinstance(batches, (Loader, TensorBatches)) else 0
        done = resume.epoch if resume else 0
        self._begin(f"{self._phase}, epoch {min(done + 1, epochs)}/{epochs}", size * (epochs - done))

        if resume and isinstance(batches, Loader) and self.session.rank == 0:
            # epochs that an interrupted try has done belong to the work of this stage
            self.session.work.add(train=size * resume.epoch, decoded=batches.decodes * resume.epoch)

        def on_epoch(log: EpochLog, snapshot: Callable[[], Snapshot]) -> None:
            self._save_epoch(call, log, snapshot)
            self.session.progress.rename(self._label(f"{self._phase}, epoch {min(log.epoch + 1, epochs)}/{epochs}"))

        def on_batch(mine: int, total: int) -> None:
            self.session.progress.advance(total)
            if on_images:
                self.session.work.add(train=mine)

        train(
            self.session,
            model,
            batches,
            groups,
            config,
            loss=loss or _cross_entropy,
            epochs=epochs,
            seed=derive(self._seed, self._phase, call),
            freeze_batch_norm=freeze_batch_norm,
            resume=resume,
            on_epoch=on_epoch,
            on_batch=on_batch,
        )
        self.method.eval()

    def centers(self, model: Callable[[Tensor], Tensor]) -> Tensor:
        accumulator: CenterAccumulator | None = None
        images, targets = self.domain.train, self.domain.targets
        shared = self._shared(model, images)
        passed = (
            self._pass(model, images, self._test_transform, targets)
            if shared is None
            else self._replay(shared, targets)
        )
        for batch, features in passed:
            accumulator = accumulator or CenterAccumulator(len(self.domain.classes), features.shape[1])
            accumulator.update(features, batch.targets)
        assert accumulator is not None  # a domain has at least one training image
        accumulator.sums = self.session.sum(accumulator.sums)
        accumulator.counts = self.session.sum(accumulator.counts)
        return accumulator.centers().to(self.device)

    def features(
        self, model: Callable[[Tensor], Tensor], *, views: int | None = None, images: ImageSet | None = None
    ) -> Tensor:
        images = self.domain.train if images is None else images
        if not views:
            plain = self._shared(model, images)
            plain = self._gather(model, images, self._test_transform, epoch=0) if plain is None else plain
            return plain if views is None else plain[None]
        return torch.stack([self._gather(model, images, self._train_transform, epoch=view) for view in range(views)])

    def inputs(self) -> Iterator[Tensor]:
        # What a method measures on a batch it shall measure on the same batch however many ranks there are.
        for batch, _ in self._pass(lambda inputs: inputs[:, :0], self.domain.train, self._test_transform):
            yield self.session.ranks.whole(batch.inputs, batch.total)

    def references(self, positions: Sequence[int]) -> list[Reference]:
        images, name = self.domain.train, self.domain.name
        return [Reference(name, images.name(i), images.label_name(i), images.checksum(i)) for i in positions]

    def recall(self, references: Sequence[Reference]) -> ImageSet:
        places: dict[str, dict[str, int]] = {}
        found = []
        for ref in references:
            images = self._library.get(ref.domain)
            if images is None:
                raise DataError(f"the method kept images of domain {ref.domain!r}, which is not at hand any more")
            if ref.domain not in places:
                places[ref.domain] = {images.name(i): i for i in range(len(images))}
            at = places[ref.domain].get(ref.name)
            if at is None or images.checksum(at) != ref.checksum:
                state = "is gone" if at is None else "has changed"
                raise DataError(f"the kept image {ref.name!r} of domain {ref.domain!r} {state}")
            found.append(images.subset([at]))
        if not found:
            raise DataError("no reference to recall")
        if self.session.rank == 0:  # every rank has all references, but the sum over ranks counts them once
            self.session.work.add(decoded=len(found))
        return _joined(found)

    def earlier(self, domain: str, fingerprint: str) -> ImageSet:
        images = self._library.get(domain)
        if images is None or images.fingerprint != fingerprint:
            state = "are not at hand any more" if images is None else "have changed"
            raise DataError(f"the training images of domain {domain!r} {state}")
        return images

    def probe(self, name: str, score: Callable[[Tensor], Tensor]) -> None:
        if self.session.settings.evaluate_phases and self._tests:
            found = evaluate(
                self.session, self.method, self._tests, self._test_transform, lambda x: {"final": score(x)}
            )
            self.records.setdefault("after", {})[name] = found.A_b

    def warn(self, message: str) -> None:
        known = self.records.setdefault("warnings", [])
        if message not in known:
            known.append(message)
        self.session.progress.say(f"warning: {message}")

    # how it is done

    def _images(
        self, images: ImageSet | None, targets: npt.NDArray[np.int64] | None
    ) -> tuple[ImageSet, npt.NDArray[np.int64]]:
        if images is None:
            return self.domain.train, self.domain.targets if targets is None else targets
        if targets is None:
            raise DataError("images that are not the domain's own need targets")
        return images, targets

    def _loader(
        self,
        images: ImageSet,
        transform: Transform,
        batch_size: int,
        targets: npt.NDArray[np.int64] | None = None,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
    ) -> Loader:
        loader = image_loader(
            self.session,
            images,
            transform,
            title=self._title,
            batch_size=batch_size,
            targets=targets,
            seed=derive(self._seed, self._phase, "images", len(self._loaders)),
            shuffle=shuffle,
            drop_last=drop_last,
        )
        self._loaders.append(loader)
        return loader

    def _pass(
        self,
        model: Callable[[Tensor], Tensor],
        images: ImageSet,
        transform: Transform,
        targets: npt.NDArray[np.int64] | None = None,
        epoch: int = 0,
    ) -> Iterator[tuple[Batch, Tensor]]:
        """One pass without gradients; features come as float32."""
        loader = self._loader(images, transform, self.session.settings.eval_batch_size, targets)
        self._begin(self._phase, len(images))
        for batch in loader.epoch(epoch):
            batch = batch.to(self.device, non_blocking=True)
            with self.session.frozen(), whole_batch(self.session.ranks, batch.inputs, batch.total) as inputs:
                features = model(inputs)[: len(batch)].float()
            self.session.work.add(frozen=len(batch))
            self.session.progress.advance(batch.total)
            yield batch, features

    def _gather(self, model: Callable[[Tensor], Tensor], images: ImageSet, transform: Transform, epoch: int) -> Tensor:
        """Features of all images on every rank, on the CPU, in the order of the images: ``[n, d]``."""
        result: Tensor | None = None
        for batch, features in self._pass(model, images, transform, epoch=epoch):
            if result is None:
                result = torch.zeros(len(images), features.shape[1])
            result[batch.index.cpu()] = features.cpu()
        assert result is not None
        return self.session.sum(result)

    def _shared(self, model: Callable[[Tensor], Tensor], images: ImageSet) -> Tensor | None:
        """Features of the test view ``[n, d]`` that runs compute once for all of them; None for any other model."""
        settings, key = self.session.settings, sharable(self.session, model, images, self._test_transform)
        if not settings.shared or key is None:
            return None
        store = FeatureStore(settings.shared / "features")
        features, reused = store.get(key, lambda: self._gather(model, images, self._test_transform, epoch=0))
        if reused:
            self.session.work.add(reused=len(images))
        return features

    def _replay(self, features: Tensor, targets: npt.NDArray[np.int64]) -> Iterator[tuple[Batch, Tensor]]:
        """What ``_pass`` gave when the features were computed, in the same batches."""
        size = self.session.settings.eval_batch_size
        for index in torch.split(torch.arange(len(features)), size):
            some = features[index].to(self.device)
            yield Batch(some, torch.from_numpy(targets)[index].to(self.device), index, len(index)), some

    def _begin(self, work: str, images: int) -> None:
        self.session.progress.begin(self._label(work), images)

    def _label(self, work: str) -> str:
        return f"{self._title} {work}"


class TensorBatches:
    """Shuffled batches of features that were computed once; epoch ``e`` sees view ``e mod V`` of ``[V, n, d]``."""

    def __init__(
        self, inputs: Tensor, targets: npt.NDArray[np.int64], batch_size: int, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        self._inputs, self._targets = inputs, torch.from_numpy(targets)
        self._batch_size, self._seed, self._rank, self._world = batch_size, seed, rank, world
        self.size = len(targets)

    def __len__(self) -> int:
        return -(-self.size // self._batch_size)

    def epoch(self, number: int) -> Iterator[Batch]:
        view = self._inputs[number % len(self._inputs)]
        order = np.argsort(derive_seeds(self._seed, number, np.arange(self.size)), kind="stable")
        for at in range(0, self.size, self._batch_size):
            whole = order[at : at + self._batch_size]
            start, size = bounds(len(whole), self._rank, self._world)
            mine = torch.from_numpy(whole[start : start + size])
            yield Batch(view[mine], self._targets[mine], mine, len(whole))


def _joined(parts: Sequence[ImageSet]) -> ImageSet:
    """One set of many small ones, in their order; images of one source stay one part of the result."""
    sources = {id(part.source): part.source for part in parts}
    starts = dict(zip(sources, np.cumsum([0] + [len(source) for source in sources.values()]).tolist(), strict=False))
    classes = tuple(sorted({name for part in parts for name in part.present()}))
    labels = np.concatenate([part.relabel(classes).labels for part in parts])
    indices = np.concatenate([part.indices + starts[id(part.source)] for part in parts])
    return ImageSet(ConcatSource(tuple(sources.values())), labels, classes, indices)


def _cross_entropy(outputs: Tensor, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(outputs, batch.targets)
