"""DINO: a student predicts a slow teacher's soft classes of other crops of the image.

Caron et al., "Emerging Properties in Self-Supervised Vision Transformers", ICCV 2021 (arXiv
2104.14294).
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from orchestra_flwr.config import Config, ModelConfig, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods import Batch, KnowsChance, Role, Step
from orchestra_flwr.methods.families import MomentumEncoder, Prototypes
from orchestra_flwr.methods.swav import swapped_prediction_loss
from orchestra_flwr.models import build_head

LARGE = 0.4, 1.0  # areas of the large crops beside local ones
ALONE = 0.14, 1.0  # without local ones, as the authors' code advises
LOCAL = Recipe(crop_scale=(0.05, 0.4))


def distillation_loss(
    student: Sequence[Tensor],
    teacher: Sequence[Tensor],
    centre: Tensor,
    student_temperature: float,
    teacher_temperature: float,
) -> Tensor:
    """Cross-entropy between the teacher's classes of a view and the student's of every other view.

    Equations 1 to 3.

    Args:
        student: for each of V views (B, K) outputs.
        teacher: for the first of these views (B, K) outputs; no gradient goes through them.
        centre: (K,), subtracted from the teacher's outputs.
        student_temperature: tau_s.
        teacher_temperature: tau_t; below tau_s it sharpens.

    Returns:
        Scalar mean over images and pairs of views.
    """
    classes = [
        ((outputs.detach() - centre) / teacher_temperature).softmax(dim=1) for outputs in teacher
    ]
    return swapped_prediction_loss(student, classes, student_temperature)


class DINO(KnowsChance, MomentumEncoder):
    """Student, and a teacher that follows it: backbone, three-layer projector and prototypes.

    The teacher sees the two large crops, the student sees all crops. The teacher's outputs are
    centred by their moving average, which has the same role as the teacher's weights. Unlike the
    paper's, local crops are resized to the size of the images and cost as much as large ones. The
    teacher's decay and temperature are constant; prototypes are trained from the first step on.
    """

    class Settings(Section):
        ema: float = Field(0.996, ge=0, lt=1)  # of the teacher, a step
        # K; the paper's 65536 would be more than all other weights.
        outputs: int = Field(256, ge=2, le=2**17)
        student_temperature: float = Field(0.05, gt=0)
        teacher_temperature: float = Field(0.02, gt=0)
        centre_ema: float = Field(0.9, ge=0, lt=1)
        local_crops: int = Field(0, ge=0, le=16)  # small crops beside the two large ones

    followed = ("backbone", "projector", "prototypes")
    roles: ClassVar = {"prototypes": Role.SHARED, "target_centre": Role.SHARED}

    settings: Settings
    target_centre: Tensor

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.prototypes = Prototypes(self.settings.outputs, config.model.projector_dim)
        self.add_target()
        self.register_buffer("target_centre", torch.zeros(self.settings.outputs))

    def build_projector(self, model: ModelConfig) -> nn.Module:
        """Three layers; the paper's hidden ones are eight times as wide as the last one."""
        hidden = 2 * model.projector_dim
        return build_head(model, self.backbone.dim, hidden, hidden, bias=True, last_norm=False)

    def recipes(self) -> Sequence[Recipe]:
        """BYOL's two augmentations for the large crops, then the small ones."""
        areas = LARGE if self.settings.local_crops else ALONE
        large = (
            Recipe(crop_scale=areas, blur_p=1.0),
            Recipe(crop_scale=areas, blur_p=0.1, solarize_p=0.2),
        )
        return (*large, *(LOCAL for _ in range(self.settings.local_crops)))

    def chance_losses(self, batch_size: int) -> dict[str, float]:
        """All outputs are equally likely."""
        return {"distillation": math.log(self.settings.outputs)}

    def loss(self, batch: Batch) -> Step:
        """The student's loss of one step (Algorithm 1)."""
        settings = self.settings
        features, projections = self.embed(batch.views)
        student = [self.prototypes(projection) for projection in projections]
        self.update_target(settings.ema)
        with torch.no_grad():
            seen = self.target_projections(batch.views[:2])
            teacher = [self.target("prototypes")(projection) for projection in seen]
        distillation = distillation_loss(
            student,
            teacher,
            self.target_centre,
            settings.student_temperature,
            settings.teacher_temperature,
        )
        mean, decay = torch.cat(teacher).mean(dim=0), settings.centre_ema
        self.target_centre.mul_(decay).add_(mean, alpha=1 - decay)
        return Step(
            {"distillation": distillation}, {"backbone": features, "projector": projections}
        )
