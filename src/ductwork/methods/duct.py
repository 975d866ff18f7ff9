"""DUCT: dual consolidation of representation and classifier (Zhou et al., CVPR 2025).

Where to find the paper: class centres Eq. 5 ``_centers``, fine-tuning Eq. 2 ``_finetune``, similarity Eq. 6
``_similarity``, merging Eq. 4 and 7 ``_merge``, retraining Eq. 8 ``_retrain``, transport Eq. 9 and 10 ``_transport``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ductwork import functional as F
from ductwork.backbones.base import Backbone
from ductwork.backbones.norm import recalibrate, running_statistics
from ductwork.methods.base import Group, Method, Parts, Phase, Recipe, Stage, TrainingConfig
from ductwork.methods.heads import BlockClassifier, CosineHead, cross_entropy_with_decay

_LARGEST_PLAN = 10_000  # entries: larger plans are described by their figures, not written out
_SKETCH = 8192  # numbers that stand for a task vector where only its direction matters


class DuctConfig(TrainingConfig):
    """Hyper-parameters of DUCT."""

    alpha_phi: float = Field(0.5, ge=0, description="weight of each task vector in the merged backbone (Eq. 7)")
    alpha_w: float = Field(0.5, ge=0, le=1, description="weight of transported rows (Eq. 10); 0 only records the plan")
    similarity: bool = Field(True, description="weigh task vectors by centre similarity (Eq. 6); off is Eq. 4")
    rows_init: Literal["random", "centers"] = Field("random", description="where new rows start, also to be retrained")
    scale_init: float = Field(1.0, gt=0, description="temperature of the cosine classifier, reset for each domain")
    learn_scale: bool = Field(True, description="train the temperature with the rows")
    retrain: Literal["train", "centers", "off"] = Field(
        "train", description="new rows after merging: retrained (Eq. 8), class centres of merged features, or kept"
    )
    retrain_epochs: int = Field(5, ge=0, description="epochs of retraining")
    retrain_views: int = Field(5, ge=0, description="augmented views whose features are computed; 0 is the test view")
    lr_retrain: float | None = Field(None, ge=0, description="learning rate of retraining; lr_head unless given")
    ot_cost_power: Literal[1, 2] = Field(1, description="Euclidean distance of class centres, or its square")
    ot_cost_scale: Literal["median"] | None = Field(None, description="divide the cost by its median")
    ot_reg: float = Field(0.1, gt=0, description="entropic regularisation, in units of the cost")
    ot_solver: Literal["log", "plain", "emd", "off"] = Field(
        "log", description="log-domain Sinkhorn, plain, exact, or no transport at all"
    )
    ot_scale: Literal["plan", "barycentric", "norm"] = Field(
        "plan",
        description="transported rows as printed (1/|Y| of a row), as weighted means, or with the old row's length",
    )
    decay_old_rows: bool = Field(False, description="old rows shrink under weight decay, as in the released code")
    batch_norm: Literal["frozen", "recalibrate", "merge"] = Field(
        "frozen", description="running statistics: of the pre-trained model, of a pass after merging, or merged too"
    )

    @model_validator(mode="after")
    def _rows_move_by_a_plan(self) -> Self:
        if self.alpha_w > 0 and self.ot_solver == "off":
            raise ValueError(f"alpha_w = {self.alpha_w} needs a plan, and ot_solver is off: use ot_solver=log")
        return self


DEFAULT: Mapping[str, Any] = {
    "alpha_phi": 0.25,
    "alpha_w": 0.0,  # plans are recorded; docs/duct.md has the runs that say when to let them move rows
    "rows_init": "centers",
    "scale_init": 16.0,
    "retrain_epochs": 20,
    "retrain_views": 10,
    "lr_retrain": 0.02,
    "ot_scale": "norm",
}

DOMAINNET = ("domainnet", "domainnet-cil", "domainnet-cil-shifting")
STILL: Mapping[str, Any] = {"alpha_w": 0.0, "ot_solver": "off"}  # old rows stay as they are
PAPER: Mapping[str, Any] = {"ot_cost_power": 2, "schedule": "constant"}
TABLE_2: Mapping[str, Any] = {**PAPER, **STILL}

OFFICIAL: Mapping[str, Any] = {
    "similarity": False,
    "alpha_phi": 0.25,
    "alpha_w": 0.25,
    "ot_reg": 0.02,
    "schedule": "step-up",
    "decay_old_rows": True,
    "batch_norm": "merge",
}


class Duct(Method):
    """One merged backbone and one head. What is carried: phi_0, phi^m, the rows, and phi_0's class centres."""

    name = "duct"
    summary = "merges task vectors, retrains new rows, transports old rows"
    reference = "Zhou et al., Dual Consolidation for Pre-Trained Model-Based Domain-Incremental Learning, CVPR 2025"
    Config = DuctConfig
    recipes: ClassVar[Mapping[str, Recipe]] = {
        # on the demo a small network learns from few images
        "default": Recipe("what works best in our runs", DEFAULT, {"demo": {"lr_backbone": 1e-2, "retrain_views": 20}}),
        "paper": Recipe("the text of the paper", PAPER),
        "official": Recipe(
            "the released code, whose 2024 version gave the paper's order-1 results",
            OFFICIAL,
            {
                "cddb-hard": {"alpha_phi": 0.5, "alpha_w": 0.5, "ot_reg": 0.1},
                "office-home": {"ot_reg": 0.1},
                "core50": {"ot_reg": 0.2, "lr_backbone": 1e-4, "epochs": 10},
                # its plan underflows to zero there, which scales old rows and so changes no prediction
                **{name: {**STILL, "ot_reg": 0.01} for name in DOMAINNET},
            },
        ),
        "baseline": Recipe("Table 2, Baseline", {**STILL, "alpha_phi": 0, "epochs": 0, "retrain": "centers"}),
        "variation-1": Recipe("Table 2, merging by Eq. 4", {**TABLE_2, "similarity": False, "retrain": "centers"}),
        "variation-2": Recipe("Table 2, merging by Eq. 7", {**TABLE_2, "retrain": "centers"}),
        "variation-3": Recipe("Table 2, merging and retraining", TABLE_2),
    }
    constant_parts = frozenset({"pretrained"})

    def __init__(self, config: DuctConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.config = config
        self.head = CosineHead(backbone.num_features, config.scale_init)
        self.head.scale.requires_grad_(config.learn_scale)
        self.pretrained = _on_cpu(backbone)
        self.merged = {key: value.clone() for key, value in self.pretrained.items()}
        self.centers: dict[str, Tensor] = {}
        self.sketches: dict[str, Tensor] = {}
        self.snapshots: dict[str, dict[str, Tensor]] = {}
        self.tuned = False
        skipped = frozenset() if config.batch_norm == "merge" else running_statistics(backbone)
        self.merged_keys = [k for k, v in self.pretrained.items() if v.is_floating_point() and k not in skipped]

    def phases(self) -> Sequence[Phase]:
        retrain = [Phase("retrain", self._retrain)] if self.config.retrain != "off" else []
        return [
            Phase("centers", self._centers),
            Phase("finetune", self._finetune),
            *([Phase("similarity", self._similarity)] if self.config.similarity else []),
            Phase("merge", self._merge),
            *retrain,
            *([Phase("transport", self._transport)] if self.config.ot_solver != "off" else []),
        ]

    def _centers(self, stage: Stage) -> None:
        """Class centres of the domain in the space of phi_0 (Eq. 5), and the new rows."""
        self.backbone.load_state_dict(self.pretrained)
        centers = stage.centers(self.backbone)
        block = self.rows.add(stage.domain.name, stage.domain.classes)
        self.centers[str(len(self.rows.blocks) - 1)] = centers.cpu()
        self.head.add_block(CosineHead.random_rows(len(block), self.head.width))
        self.head.scale.data.fill_(self.config.scale_init)
        if self.config.rows_init == "centers":
            self.head.begin_at(centers, self.config.scale_init)

    def _finetune(self, stage: Stage) -> None:
        """Fine-tune a copy of phi_0 and the new rows (Eq. 2)."""
        config = self.config
        self.backbone.load_state_dict(self.pretrained)
        backbone = Group("backbone", list(self.backbone.parameters()), config.lr_backbone)
        stage.train(
            BlockClassifier(self.backbone, self.head),
            stage.augmented(config.batch_size),
            [backbone, self._head_group(config.lr_head)],
            config,
            loss=cross_entropy_with_decay(self._decaying()),
            freeze_batch_norm=config.batch_norm == "frozen",
        )
        self.tuned = True
        stage.probe("finetune", self.forward)

    def _similarity(self, stage: Stage) -> None:
        """How much the class centres stayed where they were (Eq. 6)."""
        before = self.centers[str(len(self.rows.blocks) - 1)]
        stage.records["similarity"] = F.center_similarity(before, stage.centers(self.backbone).cpu())

    def _merge(self, stage: Stage) -> None:
        """Add the weighted task vector to the merged backbone (Eq. 4, Eq. 7), key by key."""
        config = self.config
        tuned = self.backbone.state_dict()
        similarity = stage.records["similarity"] if config.similarity else 1.0
        self._describe(tuned, stage)
        F.consolidate(self.merged, tuned, self.pretrained, config.alpha_phi * similarity, keys=self.merged_keys)
        self.backbone.load_state_dict(self.merged)
        self.tuned = False
        if config.batch_norm == "recalibrate" and self.backbone.has_batch_norm:
            recalibrate(self.backbone, stage.inputs())
            self.merged = _on_cpu(self.backbone)
        self.snapshots["merge"] = self.head.export()

    def _describe(self, tuned: Mapping[str, Tensor], stage: Stage) -> None:
        """Length of the task vector, and about which angle it makes with those of the earlier domains."""
        length, sketch = F.length_and_sketch(tuned, self.pretrained, _SKETCH, keys=self.merged_keys)
        earlier = zip(self.rows.blocks, self.sketches.values(), strict=False)
        stage.records["task_vector_norm"] = length
        stage.records["task_vector_cosines"] = {
            block.domain: float(nn.functional.cosine_similarity(sketch, other.double(), dim=0))
            for block, other in earlier
        }
        self.sketches[str(len(self.sketches))] = sketch.float()

    def _retrain(self, stage: Stage) -> None:
        """Fit the new rows to the merged features, which stay fixed (Eq. 8)."""
        config = self.config
        if config.retrain == "centers":
            self.head.blocks[-1].data.copy_(stage.centers(self.backbone))
        else:
            features = stage.features(self.backbone, views=config.retrain_views)
            if config.rows_init == "centers":
                classes, targets = stage.domain.classes, torch.from_numpy(stage.domain.targets)
                self.head.begin_at(F.class_centers(features.mean(0), targets, len(classes)), config.scale_init)
            lr = config.lr_head if config.lr_retrain is None else config.lr_retrain
            stage.train(
                BlockClassifier(nn.Identity(), self.head),
                stage.cached(features, config.batch_size),
                [self._head_group(lr)],
                config,
                loss=cross_entropy_with_decay(self._decaying()),
                epochs=config.retrain_epochs,
            )
        self.snapshots["retrain"] = self.head.export()

    def _transport(self, stage: Stage) -> None:
        """Carry the rows of every earlier block along by optimal transport between class centres (Eq. 9, Eq. 10)."""
        config = self.config
        assert config.ot_solver != "off"  # there is no such phase then
        last = len(self.rows.blocks) - 1
        new = self.head.blocks[-1].detach().cpu()
        records: dict[str, Any] = {}
        for k, block in enumerate(self.rows.blocks[:last]):
            cost = F.transport_cost(
                self.centers[str(last)], self.centers[str(k)], power=config.ot_cost_power, scale=config.ot_cost_scale
            )
            plan = F.transport_plan(cost, reg=config.ot_reg, solver=config.ot_solver)
            old = self.head.blocks[k]
            if config.alpha_w > 0:
                moved = F.transport_head(old.detach().cpu(), new, plan.plan, config.alpha_w, scale=config.ot_scale)
                old.data.copy_(moved)
            records[block.domain] = _plan_record(plan, self.rows.blocks[last].classes, block.classes)
        stage.records["transport"] = records

    def _head_group(self, lr: float) -> Group:
        scale = [self.head.scale] if self.config.learn_scale else []
        return Group("head", [self.head.blocks[-1], *scale, *self._decaying()], lr)

    def _decaying(self) -> list[nn.Parameter]:
        return self.head.old_blocks() if self.config.decay_old_rows else []

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.backbone(images))
        return scores

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        features = self.backbone(images)
        scores = {"final": self.head(features)}
        for name, head in self.snapshots.items():
            rows = [head[f"blocks.{k}"] for k in range(len(self.rows.blocks))]
            scores[name] = F.cosine_logits(
                features, torch.cat(rows).to(features.device), head["scale"].to(features.device)
            )
        if self.config.ot_solver != "off":
            scores["transport"] = scores["final"]
        return scores

    def parts(self) -> Parts:
        parts = {
            "pretrained": self.pretrained,
            "merged": self.merged,
            "head": self.head.export(),
            "centers": self.centers,
            "sketches": self.sketches,
        }
        if self.tuned:
            parts["fine-tuned"] = dict(self.backbone.state_dict())
        return parts | {f"after-{name}": head for name, head in self.snapshots.items()}

    def load_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.pretrained = dict(parts["pretrained"])
        self.merged = dict(parts["merged"])
        self.centers = dict(parts["centers"])
        self.sketches = dict(parts["sketches"])
        self.head.restore(parts["head"])
        self.tuned = "fine-tuned" in parts
        self.backbone.load_state_dict(dict(parts["fine-tuned"]) if self.tuned else self.merged)
        after = {name: dict(part) for name, part in parts.items() if name.startswith("after-")}
        self.snapshots = {name.removeprefix("after-"): part for name, part in after.items()}

    def end_stage(self) -> None:
        self.snapshots = {}


def _on_cpu(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.detach().cpu().clone() for key, value in module.state_dict().items()}


def _plan_record(plan: F.TransportPlan, new: Sequence[str], old: Sequence[str]) -> dict[str, Any]:
    record: dict[str, Any] = {"cost": plan.cost, "entropy": plan.entropy, "marginal_error": plan.marginal_error}
    if plan.plan.numel() <= _LARGEST_PLAN:
        record |= {"plan": plan.plan.tolist(), "from_classes": list(new), "to_classes": list(old)}
    return record
