"""Methods with a momentum encoder: a moving average of what is trained, without gradient."""

import copy
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from orchestra_flwr.methods import KeepsState, Role
from orchestra_flwr.methods.families.one_backbone import Features, Projecting
from orchestra_flwr.models import Backbone, ema_update

TARGET = "target_"  # prefix of the target's modules and buffers


class MomentumEncoder(KeepsState, Projecting):
    """Online networks, and a target that follows them.

    The target is an average over the steps of all rounds. Like Orchestra's, it is sent with the
    online encoder and averaged by the server; clients that keep state (`merging`) keep their own.

    A subclass builds what is trained and then calls :meth:`add_target`.

    Class attributes:
        followed: modules that the target has a copy of.
    """

    followed: ClassVar[tuple[str, ...]] = ("backbone", "projector")

    _is_local = False

    def add_target(self) -> None:
        """Makes the target, equal to what it follows."""
        for name in self.followed:
            target = copy.deepcopy(self.get_submodule(name)).requires_grad_(False)
            self.add_module(TARGET + name, target)

    def update_target(self, decay: float) -> None:
        """Moves the target by 1 - `decay` of its distance to the online networks.

        Each loss calls this before it uses the target. Papers update after the optimizer's step;
        here it happens at the start of the next step, which may be in the next round.
        """
        for name in self.followed:
            ema_update(self.target(name), self.get_submodule(name), decay)

    def target(self, name: str) -> nn.Module:
        """The target's copy of a module."""
        if TARGET + name not in self._modules:
            raise AttributeError("there is no target: call add_target() at the end of __init__")
        return self.get_submodule(TARGET + name)

    @torch.no_grad()
    def target_projections(self, views: tuple[Tensor, ...]) -> Features:
        """(B, D) projections of each view by the target, without gradient."""
        backbone, projector = self.target("backbone"), self.target("projector")
        return tuple(projector(backbone(view)) for view in views)

    def keep_locally(self) -> None:
        """The target becomes each client's own and does not travel."""
        self._is_local = True

    def start_local_state(self) -> None:
        """A local target starts as the received online networks; one that travels is received."""
        if not self._is_local:
            return
        for name in self.followed:
            self.target(name).load_state_dict(self.get_submodule(name).state_dict())

    def role(self, name: str) -> Role:
        """The target has the roles of what it follows; it is local where clients keep state."""
        own, copies = name.removeprefix(TARGET), {TARGET + copied for copied in self.followed}
        role = super().role(own if name.partition(".")[0] in copies else name)
        return Role.LOCAL if self._is_local and name.startswith(TARGET) else role

    def backbones(self) -> dict[str, Backbone]:
        """The online one first: these methods keep that one. The server may have no target."""
        online = {"online": self.backbone}
        if self._is_local:
            return online
        return {**online, "target": cast(Backbone, self.target("backbone"))}
