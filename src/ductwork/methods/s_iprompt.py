"""S-iPrompt: prompts and a classifier for each domain that never see another one (Wang et al., NeurIPS 2022).

Where to find the paper: learning of a domain's prompts Section 3.2 ``_prompt``, K-Means for each domain and the choice
of the nearest one Section 3.3 ``_cluster`` and ``choose``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ductwork import functional as F
from ductwork.backbones import tokens as T
from ductwork.backbones.base import Backbone
from ductwork.methods.base import Group, Method, Parts, Phase, Price, Recipe, Stage, TrainingConfig
from ductwork.methods.heads import BlockClassifier, LinearHead


class SiPromptConfig(TrainingConfig):
    """Hyper-parameters of S-iPrompt."""

    epochs: int = Field(20, ge=0, description="passes over the domain's training images")
    epochs_later: int | None = Field(None, ge=0, description="passes from the second domain on; as epochs unless given")
    lr_backbone: float = Field(0.01, ge=0, description="learning rate of the prompts")
    lr_head: float = Field(0.01, ge=0, description="learning rate of the classifier rows")
    lr_later: float | None = Field(None, ge=0, description="both learning rates from the second domain on, if given")
    weight_decay_later: float | None = Field(2e-4, ge=0, description="weight decay from the second domain on")
    schedule: Literal["constant", "cosine", "step-up"] = Field("cosine", description="learning rate over time")
    prompt_length: int = Field(10, ge=1, description="prompt tokens of a domain")
    clusters: int = Field(5, ge=1, description="centres that describe a domain; fewer where it has fewer images")
    cluster_view: Literal["train", "test"] = Field(
        "train", description="images that are clustered: one augmented view, as published, or the view that is tested"
    )
    cluster_starts: int = Field(10, ge=1, description="K-Means runs of which the best is kept")
    cluster_seed: int = Field(0, ge=0, description="random state of K-Means; the run's own seed does not move centres")


class SiPrompt(Method):
    """The backbone never changes. Carried for each domain: prompts, classifier rows with biases, and centres.

    An image belongs to the domain of the nearest centre, by L1 distance of its normalised pre-trained feature. It is
    then seen with that domain's prompts, and only that domain's rows have scores: all others are minus infinity, so a
    class that the chosen domain lacks cannot be predicted.
    """

    name = "s-iprompt"
    summary = "prompts and a classifier of its own for each domain; the nearest domain answers"
    reference = "Wang et al., S-Prompts Learning with Pre-trained Transformers: An Occam's Razor for DIL, NeurIPS 2022"
    Config = SiPromptConfig
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "default": Recipe(
            "the published settings; those of its CLIP variant where it has none of its own",
            streams={
                **{name: {"epochs": 30} for name in ("domainnet", "domainnet-cil", "domainnet-cil-shifting")},
                "cddb-hard": {"epochs": 20, "lr_backbone": 1e-3, "lr_head": 1e-3, "epochs_later": 50, "lr_later": 0.01},
            },
        ),
    }
    constant_parts = frozenset({"backbone"})

    def __init__(self, config: SiPromptConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.config = config
        self.head = LinearHead(backbone.num_features)
        self.prompts = nn.ParameterList()
        self.centers = nn.ParameterList()
        self.requires_grad_(False)

    @classmethod
    def check(cls, backbone: Backbone) -> None:
        T.require_vit(backbone, cls.name)

    def phases(self) -> Sequence[Phase]:
        return [Phase("prompt", self._prompt), Phase("cluster", self._cluster)]

    def _prompt(self, stage: Stage) -> None:
        """Train the domain's prompts and rows with cross entropy on its own classes."""
        config = self._config_of(stage.number)
        block = self.rows.add(stage.domain.name, stage.domain.classes)
        self.prompts.append(nn.Parameter(self._uniform(config.prompt_length).to(stage.device)))
        self.head.add_block(self._uniform(len(block)).to(stage.device))
        groups = [
            Group("prompts", [self.prompts[-1]], config.lr_backbone),
            Group("head", [self.head.blocks[-1], self.head.biases[-1]], config.lr_head),
        ]
        model = BlockClassifier(_Prompted(self.backbone, self.prompts[-1]), self.head)
        stage.train(model, stage.augmented(config.batch_size), groups, config)
        self.requires_grad_(False)

    def _cluster(self, stage: Stage) -> None:
        """Describe the domain by K-Means of its normalised pre-trained features."""
        if self.config.cluster_view == "train":
            features = stage.features(self.backbone, views=1)[0]
        else:
            features = stage.features(self.backbone)
        centers = _k_means(nn.functional.normalize(features, dim=1), self.config)
        self.centers.append(nn.Parameter(centers.to(stage.device), requires_grad=False))

    def _config_of(self, number: int) -> SiPromptConfig:
        """The settings of a stage: the first domain has its own."""
        config = self.config
        if number == 1:
            return config
        later = {
            "epochs": config.epochs_later,
            "lr_backbone": config.lr_later,
            "lr_head": config.lr_later,
            "weight_decay": config.weight_decay_later,
        }
        return config.model_copy(update={key: value for key, value in later.items() if value is not None})

    def _uniform(self, rows: int) -> Tensor:
        """Numbers as PyTorch draws the weights of a linear layer, for prompts and rows alike."""
        width = self.backbone.num_features
        return torch.empty(rows, width).uniform_(-(width**-0.5), width**-0.5)

    def choose(self, features: Tensor) -> Tensor:
        """The number of the nearest domain for pre-trained features ``[n, d]``: int64 ``[n]``."""
        with torch.autocast(features.device.type, enabled=False):
            distance = torch.cdist(nn.functional.normalize(features.float(), dim=1), torch.cat([*self.centers]), p=1.0)
        owner = torch.tensor([k for k, centers in enumerate(self.centers) for _ in centers])
        return F.fold(-distance, owner, len(self.centers)).argmax(1)

    def features(self, images: Tensor) -> Tensor:
        return self._encode(images)[0]

    def _encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features with the prompts of each image's own domain, all in one batch, and the number of that domain."""
        tokens = T.embed(self.backbone, images)
        chosen = self.choose(_features(self.backbone, tokens))
        prompts = torch.stack([*self.prompts])[chosen]
        return _features(self.backbone, T.insert_prompts(self.backbone, tokens, prompts)), chosen

    def forward(self, images: Tensor) -> Tensor:
        features, chosen = self._encode(images)
        scores: Tensor = self.head(features)
        stranger = self.rows.row_block().to(chosen.device) != chosen[:, None]
        return scores.masked_fill(stranger, float("-inf"))

    def price(self) -> Price:
        # every stage trains one prompt and the rows of one block
        classes = len(self.rows.blocks[-1]) if self.rows.blocks else 0
        width = self.backbone.num_features
        trainable = self.config.prompt_length * width + classes * (width + 1)
        return Price(super().price().parameters, trainable, 2.0)

    def parts(self) -> Parts:
        return {
            "backbone": dict(self.backbone.state_dict()),
            "prompts": {str(k): prompt.detach() for k, prompt in enumerate(self.prompts)},
            "head": self.head.export(),
            "centers": {str(k): centers.detach() for k, centers in enumerate(self.centers)},
        }

    def load_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.backbone.load_state_dict(dict(parts["backbone"]))
        self.head.restore(parts["head"])
        self.prompts = _parameters(parts["prompts"])
        self.centers = _parameters(parts["centers"])
        self.requires_grad_(False)


class _Prompted(nn.Module):
    """Features of a frozen backbone that sees one prompt behind the class token."""

    def __init__(self, backbone: Backbone, prompt: Tensor) -> None:
        super().__init__()
        self.backbone, self.prompt = backbone, prompt

    def train(self, mode: bool = True) -> _Prompted:
        # The published version never leaves evaluation mode: the backbone is frozen in every respect.
        super().train(False)
        return self

    def forward(self, images: Tensor) -> Tensor:
        tokens = T.embed(self.backbone, images)
        return _features(self.backbone, T.insert_prompts(self.backbone, tokens, self.prompt[None]))


def _features(backbone: Backbone, tokens: Tensor) -> Tensor:
    return T.pool(backbone, T.finish(backbone, T.run_blocks(backbone, tokens)))


def _k_means(features: Tensor, config: SiPromptConfig) -> Tensor:
    """Centres ``[k, d]`` of ``features [n, d]``, ``k = min(clusters, n)``. They are not normalised again."""
    # imported here: listing the methods shall not cost the import of scikit-learn
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    means = KMeans(
        n_clusters=min(config.clusters, len(features)), n_init=config.cluster_starts, random_state=config.cluster_seed
    )
    # One thread: several add up their shares in any order, and then two runs differ in the last bits.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # images that are equal make fewer distinct points than clusters; some centres are then equal, which is no harm
        warnings.simplefilter("ignore", ConvergenceWarning)
        means.fit(features.double().numpy())
    return torch.from_numpy(means.cluster_centers_).float()


def _parameters(tensors: Mapping[str, Tensor]) -> nn.ParameterList:
    return nn.ParameterList(nn.Parameter(tensors[str(k)].clone(), requires_grad=False) for k in range(len(tensors)))
