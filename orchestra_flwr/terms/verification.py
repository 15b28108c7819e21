"""User verification: which client is this image from?

"A Mutual Information Perspective on Federated Contrastive Learning", ICLR 2024 (arXiv 2405.02081).
By the chain rule I(z1; z2) = I(z1; z2 | s) + I(z1; s) - I(z1; s | z2), with views z1 and z2 and
the client s. A contrastive loss within a client bounds the first part. With a classifier r(s | z)
of the clients the rest is at least E log r(s | z1) + E log r(s | z2) + H(s) (Lemmas 2.1 and 2.2),
whose negative, apart from the constant H(s), is this term.

The paper's appendix does not say how the head's 128 outputs become logits of clients. Here they are
cosines to one row of weights for each client, without biases, and a client trains its own row only:
its images all have one label, and with a bias, free lengths or all rows it could lower the loss
without learning from its images.
"""

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from orchestra_flwr.config import Config, Section
from orchestra_flwr.data import UNLABELLED
from orchestra_flwr.methods import Batch, BoundsInformation, Method, Received, Role, Step, role_of
from orchestra_flwr.methods.semi_supervised import masked_mean
from orchestra_flwr.models.heads import plain_head
from orchestra_flwr.terms import Term

ROLES = {"head": Role.SHARED, "rows": Role.SHARED}


def user_verification_loss(
    features: Tensor,
    rows: Tensor,
    client: Tensor,
    temperature: float,
    population: Tensor,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """-log r(s | z), averaged over the batch: a cross-entropy of the client over all clients.

    Args:
        features: (B, D) of one view of images of one client; only their directions matter.
        rows: (S, D), one a client; only their directions matter.
        client: (1,) int64, the client's row.
        temperature: tau, by which the cosines of features and rows are divided.
        population: (1,) int64, the number of rows in use, the first ones; the others take no
            part. Greater than `client`.
        mask: (B,), the images that count; None: all of the batch.

    Returns:
        Scalar; log `population` for features that say nothing of the client, 0 without images.
    """
    logits = F.normalize(features, dim=1) @ F.normalize(rows, dim=1).T / temperature
    unused = torch.arange(len(rows), device=rows.device) >= population
    logits, targets = logits.masked_fill(unused, -torch.inf), client.expand(len(features))
    if mask is None:
        return F.cross_entropy(logits, targets)
    return masked_mean(F.cross_entropy(logits, targets, reduction="none"), mask)


class Verification(Term):
    """A head on the backbone's features, and a row for each client.

    The sum over all views that pass through the backbone with gradient: two, with methods that
    compare two. With `rows=fixed` the rows are random directions from the run's seed. They hold no
    data of clients and do not travel; the bound holds for any classifier r.
    """

    class Settings(Section):
        hidden: int = Field(2048, ge=8, le=2**17)  # units of the head's hidden layer
        dim: int = Field(128, ge=2, le=2**17)  # of its outputs and of each row
        temperature: float = Field(1.0, gt=0)
        rows: Literal["own", "fixed"] = "own"  # fixed: random ones, from the run's seed
        capacity: int | None = Field(None, ge=2, le=2**20)  # rows; None: federation.clients
        images: Literal["unlabelled", "all"] = "unlabelled"  # where labels.fraction is given

    settings: Settings
    capacity: int
    rows: Tensor
    received: Tensor
    own: Tensor
    population: Tensor

    def __init__(self, settings: Settings, config: Config, method: Method) -> None:
        super().__init__(settings, config, method)
        self._unlabelled_only = (
            config.labels.fraction is not None and settings.images == "unlabelled"
        )
        # Every method's trained backbone has this name.
        inputs: int = method.backbone.dim  # type: ignore[assignment]
        self.capacity = settings.capacity or config.federation.clients
        self.head = plain_head(inputs, settings.hidden, settings.dim)
        rows = F.normalize(torch.randn(self.capacity, settings.dim), dim=1)
        if settings.rows == "own":
            self.rows = nn.Parameter(rows)
        else:
            self.register_buffer("rows", rows, persistent=False)
        # Not part of the state: set when a round starts, and changed in place.
        self.register_buffer("received", rows.clone(), persistent=False)
        self.register_buffer("own", torch.zeros(1, dtype=torch.int64), persistent=False)
        self.register_buffer("population", torch.zeros(1, dtype=torch.int64), persistent=False)

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """Without labels.fraction there is no choice of images."""
        if config.labels.fraction is not None or config.terms["verification"].weight == 0:
            return {}
        return {"terms.verification.images": "without labels.fraction"}

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses fewer rows than clients, and rows that a secure sum would not hide."""
        term, clients = config.terms["verification"], config.federation.clients
        if term.weight > 0 and config.privacy.secure_aggregation and term.settings.rows == "own":
            raise ValueError(
                "terms.verification.rows=own: must be fixed with privacy.secure_aggregation=true, "
                "because the sum reveals a row that one client alone changes"
            )
        capacity = term.settings.capacity
        if term.weight > 0 and capacity is not None and capacity < clients:
            raise ValueError(
                f"terms.verification.capacity={capacity}: must be at least "
                f"{config.federation.clients_key}={clients}"
            )

    def role(self, name: str) -> Role:
        """Head and rows are averaged."""
        return role_of(name, ROLES)

    @torch.no_grad()
    def start_round(self, method: Method, received: Received) -> None:
        """Stores the client's row, the number of rows in use, and the received rows.

        Raises:
            ValueError: the client has no number, or there is no row for it.
        """
        if received.index is None:
            raise ValueError(
                f"client {received.client}: terms.verification needs the client's number, which "
                "the server sends"
            )
        if received.index >= self.capacity:
            raise ValueError(
                f"client {received.client} is number {received.index}, counted from 0, and "
                f"terms.verification.capacity={self.capacity}"
            )
        population = received.population or self.capacity
        self.own.fill_(received.index)
        self.population.fill_(min(max(population, received.index + 1), self.capacity))
        self.received.copy_(self.rows)

    def loss(self, method: Method, batch: Batch, step: Step) -> Tensor:
        """The sum over the views; only the client's own row gets a gradient, the others 0."""
        rows, mask = self._rows(), None
        if self._unlabelled_only:
            assert batch.labels is not None
            mask = batch.labels == UNLABELLED
        settings, population = self.settings, self.population
        views = [
            user_verification_loss(
                self.head(features), rows, self.own, settings.temperature, population, mask=mask
            )
            for features in step.features["backbone"]
        ]
        return torch.stack(views).sum()

    def measures(self, method: Method, step: Step, loss: Tensor) -> Mapping[str, Tensor]:
        """This term, and a lower bound of the information that two views share, in nats.

        The bound, "information", is that of the method's loss within the client minus this term
        plus log S, the entropy of S equally frequent clients. It needs the term on all images, and
        one r(s | z) for all clients, the received one: after a few steps a client's own head
        predicts that client for any image.
        """
        measures = {"verification": loss.detach()}
        # Where the term leaves images out, the two losses are not of the same images.
        if isinstance(method, BoundsInformation) and not self._unlabelled_only:
            entropy = self.population.log().squeeze()
            measures["information"] = method.information(step) - loss.detach() + entropy
        return measures

    @torch.no_grad()
    def end_round(self) -> None:
        """Restores the received rows of other clients, which weight decay has changed."""
        self.rows.copy_(self._rows())

    def _rows(self) -> Tensor:
        """(S, D): the client's trained row, the received rows of others."""
        if self.settings.rows == "fixed":
            return self.rows
        own = torch.arange(self.capacity, device=self.rows.device) == self.own
        return torch.where(own[:, None], self.rows, self.received)
