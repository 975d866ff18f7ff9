"""RanPAC: ridge regression on a random projection of frozen features (McDonnell et al., NeurIPS 2023).

Where to find the paper: the random projection Eq. 5 ``hidden``, Gram matrix and class sums ``_project``, the choice of
the ridge parameter (appendix, Algorithm 1) ``_choose``, the optional first phase Section 4.4 ``_adapt``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ductwork import functional as F
from ductwork.backbones import tokens as T
from ductwork.backbones.base import Backbone
from ductwork.errors import ConfigError, DuctworkError
from ductwork.methods.base import Group, Method, Parts, Phase, Price, Recipe, Stage, TrainingConfig
from ductwork.methods.ease import AdaptedBackbone
from ductwork.methods.heads import BlockClassifier, CosineHead

_CHUNK = 1024  # images, or columns of the projection, that are held at a time
_MATRICES = 6  # of M x M float64 in memory at worst: the sums, the domain's sums, eigenvectors and work space of eigh
_WORTH_SAYING = 1 << 30  # bytes


class RanPACConfig(TrainingConfig):
    """Hyper-parameters of RanPAC. Those of training are for the adapters of the first phase."""

    projection: int = Field(10_000, ge=1, description="random features M; the learned sums take 8 M^2 bytes")
    ridge: float | None = Field(None, gt=0, description="lambda; unless given, chosen for each domain in 10^-8..10^8")
    scores: Literal["linear", "cosine"] = Field("linear", description="w.h as derived, or cos(w, h)")
    targets: Literal["classes", "rows"] = Field(
        "classes", description="one regression target for each class name, or for each (domain, class) row"
    )
    first_phase: bool = Field(False, description="train adapters on the first domain before anything else")
    epochs: int = Field(20, ge=0, description="passes over the first domain's training images")
    batch_size: int = Field(48, ge=1, description="images a step, over all devices")
    lr_backbone: float = Field(0.01, ge=0, description="learning rate of the adapters")
    lr_head: float = Field(0.01, ge=0, description="learning rate of the first phase's throw-away classifier")
    schedule: Literal["constant", "cosine", "step-up"] = Field("cosine", description="learning rate over time")
    bottleneck: int = Field(64, ge=1, description="width of an adapter between its two layers")


# As many random features for each feature as published: the backbone of the demo has 160 of them, a ViT-B/16 768.
_STREAMS = {"cddb-hard": {"projection": 5_000}, "demo": {"projection": 2_000}}


class RanPAC(Method):
    """Carried: the projection, ``G = H'H`` and ``Q = H'Y`` over all images so far, and ``W = (G + lambda I)^-1 Q``.

    Sums do not know in which order they were made, so nothing is forgotten. A class has one target, in whichever
    domain it comes; the score of a row is that of its class, so the fold over domains changes nothing, and which domain
    an image is from is not told.
    """

    name = "ranpac"
    summary = "ridge regression on random features; the solution on all data in any order"
    reference = "McDonnell et al., RanPAC: Random Projections and Pre-trained Models for CL, NeurIPS 2023"
    Config = RanPACConfig
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "default": Recipe(
            "the published settings without the first phase; fewer random features on the demo", streams=_STREAMS
        ),
        "phase-1": Recipe("adapters are trained on the first domain", {"first_phase": True}, _STREAMS),
        "official-pilot": Recipe(
            "as public toolboxes do: a target for each domain and class, scored by cosine",
            {"scores": "cosine", "targets": "rows"},
        ),
    }
    constant_parts = frozenset({"backbone", "adapters", "projection"})

    def __init__(self, config: RanPACConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        if config.first_phase:  # without it any backbone will do
            T.require_vit(backbone, f"{self.name} with first_phase")
        self.config = config
        self.adapters = nn.ModuleList()
        self.projection = nn.Parameter(torch.empty(0, 0))
        self.weights = nn.Parameter(torch.empty(0, 0))
        # Learning needs the sums and prediction does not: no parameters, and not on the device in between.
        self.sums = F.RidgeAccumulator(0, 0)
        self.requires_grad_(False)

    def phases(self) -> Sequence[Phase]:
        return [*([Phase("adapt", self._adapt)] if self.config.first_phase else []), Phase("project", self._project)]

    def _adapt(self, stage: Stage) -> None:
        """Train adapters and a classifier, which is thrown away, on the first domain; then nothing more."""
        config = self.config
        _check_memory(stage, config.projection)  # before the training, not after it
        block = self.rows.add(stage.domain.name, stage.domain.classes)
        if stage.number > 1:
            return
        self.adapters = self._new_adapters().to(stage.device)
        proxy = CosineHead(self.backbone.num_features).to(stage.device)
        rows = proxy.add_block(CosineHead.random_rows(len(block), proxy.width))
        groups = [
            Group("adapters", list(self.adapters.parameters()), config.lr_backbone),
            Group("head", [rows, proxy.scale], config.lr_head),
        ]
        model = BlockClassifier(AdaptedBackbone(self.backbone, self.adapters), proxy)
        stage.train(model, stage.augmented(config.batch_size), groups, config)
        self.requires_grad_(False)

    def _project(self, stage: Stage) -> None:
        """One pass over the domain's images; then add to the sums, choose lambda and solve."""
        config = self.config
        _check_memory(stage, config.projection)
        if not config.first_phase:
            self.rows.add(stage.domain.name, stage.domain.classes)
        if not self.projection.numel():
            random = torch.randn(self.backbone.num_features, config.projection)
            self.projection = nn.Parameter(random.to(stage.device), requires_grad=False)
        order = torch.randperm(len(stage.domain.train))
        columns = self._columns()
        # float64 does not exist on every accelerator
        device = stage.device if stage.device.type == "cuda" else torch.device("cpu")
        self._place_sums(device, int(columns.max()) + 1)
        targets = columns[self.rows.span(-1)][torch.from_numpy(stage.domain.targets)][order]
        features = stage.features(self._network())[order]
        if config.ridge is not None:
            self._add(self.sums, features, targets)
            ridge = config.ridge
        else:
            ridge = self._choose(features, targets)
        weights, used = self._solve(ridge)
        # contiguous, as it will be when it is loaded: the layout decides how a product is rounded
        self.weights = nn.Parameter(weights.to(stage.device, torch.float32).contiguous(), requires_grad=False)
        self._place_sums(torch.device("cpu"), weights.shape[1])
        stage.records["ridge"] = used
        if used != ridge:
            stage.warn(f"ridge {ridge:g} is below the rounding of the sums; {used:g} is used")

    def _choose(self, features: Tensor, targets: Tensor) -> float:
        """Add the domain to the sums; lambda is the best on the last fifth of the shuffled domain for the other four.

        One eigendecomposition of the smaller of two matrices: ``H'H [M, M]``, or where there are fewer images than
        random features ``HH' [n, n]``. Either predicts the same: ``H'(HH' + lambda I)^-1 = (H'H + lambda I)^-1 H'``.
        """
        cut = len(features) - max(1, len(features) // 5)
        kept, held = slice(0, max(1, cut)), slice(cut, None)  # a single image stands on both sides
        if kept.stop < self.config.projection:
            values = nn.functional.one_hot(targets, self.sums.targets.shape[1])
            kernel = self._kernel(features, kept.stop)
            found = F.select_ridge(kernel[kept], values[kept], kernel[held], targets[held])
            self._add(self.sums, features, targets)
        else:
            own = F.RidgeAccumulator(*self.sums.targets.shape, device=self.sums.gram.device)
            self._add(own, features[kept], targets[kept])
            found = F.select_ridge(own.gram, own.targets, self._exact(features[held]), targets[held])
            self._add(own, features[kept.stop :], targets[kept.stop :])
            self.sums.merge(own)
        return found.ridge

    def _kernel(self, features: Tensor, cut: int) -> Tensor:
        """``H H[:cut]'`` in float64 ``[n, cut]``, from some columns of ``H`` at a time."""
        device = self.sums.gram.device
        kernel = torch.zeros(len(features), cut, dtype=torch.float64, device=device)
        for some in torch.split(self.projection, _CHUNK, dim=1):
            hidden = self._exact(features, some)
            kernel.addmm_(hidden, hidden[:cut].T)
        return kernel

    def _add(self, sums: F.RidgeAccumulator, features: Tensor, targets: Tensor) -> None:
        for some, which in zip(torch.split(features, _CHUNK), torch.split(targets, _CHUNK), strict=True):
            sums.update(self._exact(some), which)

    def _solve(self, ridge: float) -> tuple[Tensor, float]:
        """``W`` and the lambda that was used: the smallest from ``ridge`` on that rounding lets through."""
        # Entries of H, and so of G, are not negative: the largest row sum bounds the largest eigenvalue. Below its
        # rounding a solution may still come out, but in directions that no image had it is noise divided by lambda.
        floor = torch.finfo(torch.float64).eps * float(self.sums.gram.sum(dim=1).max())
        for value in (ridge, *(larger for larger in F.RIDGE_LAMBDAS if larger > ridge)):
            if value < floor:
                continue
            try:
                return self.sums.solve(value), value
            except DuctworkError:
                continue
        raise DuctworkError("the features are not finite or too large for ridge regression; try precision=fp32")

    def _columns(self) -> Tensor:
        """For each row its regression target. Class names are numbered as they first came, so that old ones stay."""
        if self.config.targets == "rows":
            return torch.arange(len(self.rows))
        names = [name for block in self.rows.blocks for name in block.classes]
        place = {name: i for i, name in enumerate(dict.fromkeys(names))}
        return torch.tensor([place[name] for name in names])

    def _place_sums(self, device: torch.device, targets: int) -> None:
        if not self.sums.gram.numel():
            self.sums = F.RidgeAccumulator(self.config.projection, targets, device=device)
        self.sums.gram, self.sums.targets = self.sums.gram.to(device), self.sums.targets.to(device)
        self.sums.grow(targets)

    def _network(self) -> nn.Module:
        return AdaptedBackbone(self.backbone, self.adapters) if len(self.adapters) else self.backbone

    def _exact(self, features: Tensor, projection: Tensor | None = None) -> Tensor:
        """``relu(f R)`` for the sums, in float64: in float32 the size of a batch would decide how it is rounded."""
        device = self.sums.gram.device
        columns = self.projection if projection is None else projection
        return torch.relu(features.to(device, torch.float64) @ columns.to(device, torch.float64))

    def _hidden(self, features: Tensor) -> Tensor:
        """``relu(f R)``: float32 even under autocast, since a small lambda multiplies what is lost."""
        with torch.autocast(self.projection.device.type, enabled=False):
            return torch.relu(features.to(self.projection.device, torch.float32) @ self.projection)

    def _new_adapters(self) -> nn.ModuleList:
        return AdaptedBackbone.new_adapters(self.backbone, self.config.bottleneck, dropout=0.1, scale=0.1)

    def features(self, images: Tensor) -> Tensor:
        features: Tensor = self._network()(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        hidden = self._hidden(self.features(images))
        with torch.autocast(hidden.device.type, enabled=False):
            linear = self.config.scores == "linear"
            scores = hidden @ self.weights if linear else F.cosine_logits(hidden, self.weights.T)
        return scores[:, self._columns().to(scores.device)]

    def price(self) -> Price:
        # the first phase is all that is ever trained by gradients
        adapters = self._new_adapters() if self.config.first_phase else nn.ModuleList()
        return Price(super().price().parameters, sum(p.numel() for p in adapters.parameters()))

    def parts(self) -> Parts:
        parts: Parts = {"backbone": dict(self.backbone.state_dict())}
        if len(self.adapters):
            parts["adapters"] = dict(self.adapters.state_dict())
        if self.projection.numel():
            parts["projection"] = {"matrix": self.projection.detach()}
            parts["sums"] = {
                "gram": self.sums.gram,
                "targets": self.sums.targets,
                "count": torch.tensor(self.sums.count),
            }
            parts["head"] = {"weights": self.weights.detach()}
        return parts

    def load_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.backbone.load_state_dict(dict(parts["backbone"]))
        self.adapters = nn.ModuleList()
        if "adapters" in parts:
            self.adapters = self._new_adapters()
            self.adapters.load_state_dict(dict(parts["adapters"]))
        self.sums = F.RidgeAccumulator(0, 0)
        if "sums" in parts:
            sums = parts["sums"]
            self.sums.gram, self.sums.targets, self.sums.count = sums["gram"], sums["targets"], int(sums["count"])
            self.projection = nn.Parameter(parts["projection"]["matrix"].clone(), requires_grad=False)
            self.weights = nn.Parameter(parts["head"]["weights"].clone(), requires_grad=False)
        self.requires_grad_(False)


def _check_memory(stage: Stage, projection: int) -> None:
    """Say how much memory is about to be taken, and stop where the machine does not have it."""
    one = 8 * projection**2
    held_out = 2 * 8 * projection * (len(stage.domain.train) // 5)
    need, have = _MATRICES * one + held_out, _memory(stage.device)
    takes = f"a projection of {projection} makes a Gram matrix of {one / 1e9:.1f} GB"
    if have is not None and need > have:
        raise ConfigError(
            f"{takes} and needs {need / 1e9:.1f} GB to learn {stage.domain.name!r}; there are {have / 1e9:.1f} GB: "
            "set params.projection=2000"
        )
    if need > _WORTH_SAYING:
        stage.warn(f"{takes}; learning needs up to {need / 1e9:.1f} GB (params.projection=2000 needs 0.2 GB)")


def _memory(device: torch.device) -> int | None:
    """Bytes of memory where it is known. What is free is not asked: file caches would count as taken."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
