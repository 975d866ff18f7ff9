"""A method of one's own: the class whose centre is nearest, by Euclidean distance, in the frozen backbone."""

import torch

from ductwork.methods.base import Method, MethodConfig, Phase, Recipe


class NearestMean(Method):
    name = "nearest-mean"
    summary = "class centres of the frozen backbone, compared by distance instead of angle"
    reference = "Mensink et al., Distance-Based Image Classification, TPAMI 2013"
    Config = MethodConfig
    recipes = {"default": Recipe("nothing to set")}

    def __init__(self, config, backbone):
        super().__init__(config, backbone)
        self.backbone.requires_grad_(False)
        self.register_buffer("centers", torch.empty(0, backbone.num_features))

    def phases(self):
        return [Phase("centers", self.learn_centers)]

    def learn_centers(self, stage):
        self.rows.add(stage.domain.name, stage.domain.classes)
        self.centers = torch.cat([self.centers, stage.centers(self.backbone)])

    def forward(self, images):
        return -torch.cdist(self.backbone(images), self.centers)

    def parts(self):
        return {"backbone": self.backbone.state_dict(), "head": {"centers": self.centers}}

    def load_parts(self, parts):
        self.backbone.load_state_dict(parts["backbone"])
        self.centers = parts["head"]["centers"]
