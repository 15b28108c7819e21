"""The published recipe's local steps, written from their description: the baseline of ours.

Augmentation of one image at a time with PIL in a DataLoader without workers, SGD one parameter
after the other, all in float32. Orchestra has three online forward passes (the result of the first
is never used), one of the target and its moving average; SimCLR two passes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import MethodType
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from orchestra_flwr.config import Config
from orchestra_flwr.methods import Method
from orchestra_flwr.methods.orchestra import Orchestra
from orchestra_flwr.methods.simclr import SimCLR

Model = TypeVar("Model", bound=Method)


def recipe(blur_p: float = 0.5, solarize_p: float = 0.0) -> transforms.Compose:
    """One view of a PIL image: crop, flip, colours, gray, blur, solarization; to [-1, 1]."""
    size, bicubic = 32, transforms.InterpolationMode.BICUBIC
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size, scale=(0.5, 1.0), interpolation=bicubic),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.RandomApply([transforms.GaussianBlur(3, (0.1, 2.0))], p=blur_p),
            transforms.RandomSolarize(128, p=solarize_p),
            transforms.ToTensor(),
            transforms.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )


class ThreeViews(Dataset[tuple[Tensor, Tensor, Tensor, int]]):
    """The target's view, the online encoder's and a rotated one of each image."""

    def __init__(self, images: Tensor) -> None:
        self.images = images.permute(0, 2, 3, 1).numpy()
        self.target, self.online = recipe(), recipe(blur_p=0.1, solarize_p=0.2)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor, int]:
        image = Image.fromarray(self.images[index])
        turns = int(np.random.randint(4))
        rotated = torch.rot90(self.target(image), turns, dims=(1, 2))
        return self.target(image), self.online(image), rotated, turns


class TwoViews(Dataset[tuple[Tensor, Tensor]]):
    """Two views of each image by the same recipe."""

    def __init__(self, images: Tensor) -> None:
        self.images = images.permute(0, 2, 3, 1).numpy()
        self.view = recipe()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = Image.fromarray(self.images[index])
        return self.view(image), self.view(image)


class _Client(ABC, Generic[Model]):
    """Steps through a client's images as the published code does.

    Args:
        model: as ours; trained in place.
        views: of the client's images.
        config: batch size, learning rate and SGD's options.
    """

    def __init__(self, model: Model, views: Dataset[Any], config: Config) -> None:
        # The published code knows no other layout than the plain one, and torch's convolutions.
        self.model = model.to(memory_format=torch.contiguous_format)
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d):
                layer.__dict__["forward"] = MethodType(nn.Conv2d.forward, layer)
        trained = [p for p in model.parameters() if p.requires_grad]
        self.device = trained[0].device
        self.loader = DataLoader(
            views, batch_size=config.training.batch_size, shuffle=True, drop_last=True
        )
        self.batches = self._endless()
        sgd = config.optimizer.settings
        self.optimizer = torch.optim.SGD(
            trained, config.training.lr, sgd.momentum, weight_decay=sgd.weight_decay, foreach=False
        )

    def _endless(self) -> Iterator[list[Tensor]]:
        while True:
            yield from self.loader

    def batch(self) -> list[Tensor]:
        """The next images' views, and what else the data set has of them."""
        return [part.to(self.device) for part in next(self.batches)]

    def step(self) -> None:
        """One batch, its views included."""
        self.train_on(self.batch())

    @abstractmethod
    def train_on(self, batch: list[Tensor]) -> None:
        """Passes, losses, backward and all that follows from them."""


class PublishedSimCLR(_Client[SimCLR]):
    """SimCLR's steps; images (n, 3, 32, 32) uint8, on the host."""

    def __init__(self, model: SimCLR, images: Tensor, config: Config) -> None:
        super().__init__(model, TwoViews(images), config)
        self.temperature = model.settings.temperature

    def train_on(self, batch: list[Tensor]) -> None:
        self.optimizer.zero_grad()
        features = [self.model.projector(self.model.backbone(view)) for view in batch]
        both = F.normalize(torch.cat(features), dim=1)
        similarity = both @ both.T / self.temperature
        similarity.fill_diagonal_(-torch.inf)
        partner = torch.arange(len(both), device=self.device).roll(len(both) // 2)
        F.cross_entropy(similarity, partner).backward()
        self.optimizer.step()


class PublishedClient(_Client[Orchestra]):
    """Orchestra's steps; images (n, 3, 32, 32) uint8, on the host."""

    def __init__(self, model: Orchestra, images: Tensor, config: Config) -> None:
        super().__init__(model, ThreeViews(images), config)
        self.temperature, self.decay = model.settings.temperature, model.settings.ema
        self.memory = torch.zeros(128, model.global_centroids.shape[1], device=self.device)

    def train_on(self, batch: list[Tensor]) -> None:
        """Passes, losses, backward, SGD, moving average, memory."""
        model = self.model
        target_view, online_view, rotated, turns = batch
        self.optimizer.zero_grad()
        model.projector(model.backbone(target_view))  # nobody uses it
        online = F.normalize(model.projector(model.backbone(online_view)), dim=1)
        self._move_target()
        with torch.no_grad():
            target = model.target_projector(model.target_backbone(target_view))
            target = F.normalize(target, dim=1)
        centroids = model.global_centroids
        wanted = F.softmax(target @ centroids.T / self.temperature, dim=1)
        predicted = F.softmax(online @ centroids.T / self.temperature, dim=1)
        cluster = -(wanted * predicted.log()).sum(1).mean()
        turned = model.rotation_head(model.projector(model.backbone(rotated)))
        (cluster + F.cross_entropy(turned, turns)).backward()
        self.optimizer.step()
        self.memory = torch.cat([self.memory[len(target) :], target])

    @torch.no_grad()
    def _move_target(self) -> None:
        model = self.model
        pairs = ((model.target_backbone, model.backbone), (model.target_projector, model.projector))
        for target, online in pairs:
            for old, new in zip(target.parameters(), online.parameters(), strict=True):
                old.data = self.decay * old.data + (1 - self.decay) * new.data


def client_images(config: Config, count: int = 500) -> Tensor:
    """Images of one client: smooth random ones, since colours decide no operation's cost."""
    coarse = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(config.seed))
    fine = F.interpolate(coarse, config.data.image_size, mode="bicubic").clamp(0, 1)
    return (fine * 255).to(torch.uint8)
