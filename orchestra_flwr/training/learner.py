"""The learner, which a client trains: a method, terms added to its loss, roles of tensors."""

from collections.abc import Callable, Mapping
from typing import Any, Self, cast

from torch import Tensor, nn

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.methods import (
    Batch,
    KeepsState,
    Method,
    Received,
    Role,
    StartsRounds,
    build_method,
)
from orchestra_flwr.models import Backbone, BatchNormPolicy
from orchestra_flwr.models.adaptations import Adaptation
from orchestra_flwr.seeding import derive, seeded
from orchestra_flwr.terms import Term

BACKBONE = "method.backbone"  # the trained one
TERMS = "terms."  # prefix of the names of terms' tensors

RoleOverride = Callable[[str, Role], Role]


class Learner(nn.Module):
    """A method with its terms. Server and client each have one, with the same tensors.

    Tensors of the method have their names in it, those of a term are "terms.<term>.<tensor>".

    Args:
        method: what is learned.
        terms: by name, each with its weight.
    """

    def __init__(
        self, method: Method, terms: Mapping[str, tuple[Term, float]] | None = None
    ) -> None:
        super().__init__()
        terms = terms or {}
        self.method = method
        self.terms = nn.ModuleDict({name: term for name, (term, _) in terms.items()})
        self._weights = {name: weight for name, (_, weight) in terms.items()}
        self._overrides: list[RoleOverride] = []
        self._roles: dict[str, Role] = {}  # as far as they were asked for
        self._adaptation: Adaptation | None = None
        self._adapted: list[str] = []  # full names of what it trains in the trained backbone
        self._resting: set[str] = set()  # those of them without gradients in this round
        self._shared_with: dict[str, str] = {}

    def override_roles(self, override: RoleOverride | None) -> None:
        """Adds a function that changes roles by full name, after earlier ones; None: no change."""
        if override is not None:
            self._overrides.append(override)
            self._roles.clear()

    def adapt(self, adaptation: Adaptation, seed: int) -> None:
        """Freezes what an adaptation does not train, in all backbones, and adds what it does.

        Other backbones, such as targets, share the trained one's frozen tensors from now on: the
        state holds these once, under its name.

        Raises:
            ConfigError: the adaptation does not fit the backbone, or clients share nothing that it
                leaves to train.
        """
        self._adaptation = adaptation
        frozen: set[str] = set()
        for path, backbone in [*self.named_modules()]:
            if isinstance(backbone, Backbone):
                is_trained = any(p.requires_grad for p in backbone.parameters())
                with seeded(seed):
                    adaptation.prepare(backbone)
                if not is_trained:
                    backbone.requires_grad_(False)  # what was added as well
                names = adaptation.freeze(backbone)
                frozen |= {full_name(f"{path}.{name}") for name in names}
                if path == BACKBONE:
                    own = {name for name, _ in backbone.named_parameters()} - names
                    self._adapted = [full_name(f"{path}.{name}") for name in sorted(own)]
                else:
                    self._shared_with |= {f"{path}.{n}": f"{BACKBONE}.{n}" for n in names}
        if not frozen:
            return
        self._share()
        self.override_roles(lambda name, role: Role.FROZEN if name in frozen else role)
        if not any(self.role(name) is Role.SHARED for name in self.trained()):
            raise ConfigError(
                "adaptation: nothing is left to train that clients share: the method has no head, "
                "or each client has its own"
            )

    def role(self, name: str) -> Role:
        """The role of a tensor by its full name.

        Raises:
            ValueError: the tensor has no role.
        """
        if name in self._roles:  # each role is looked up several times in a round
            return self._roles[name]
        if name.startswith(TERMS):
            term, _, own_name = name.removeprefix(TERMS).partition(".")
            role: Role = self.terms.get_submodule(term).role(own_name)  # type: ignore[operator]
        else:
            role = self.method.role(name)
        for override in self._overrides:
            role = override(name, role)
        self._roles[name] = role
        return role

    def state(self, role: Role) -> dict[str, Tensor]:
        """The floating-point tensors of a role by name, in a fixed order, sharing memory.

        BatchNorm's batch counters, integers that nothing reads, are left out.
        """
        state: dict[str, Tensor] = self.state_dict(keep_vars=True)
        tensors = {full_name(n): t for n, t in state.items() if n not in self._shared_with}
        return {
            name: tensor.detach()
            for name, tensor in tensors.items()
            if tensor.is_floating_point() and self.role(name) is role
        }

    def trained(self) -> dict[str, Tensor]:
        """Parameters with gradients by full name, sharing memory."""
        return {
            full_name(name): p.detach() for name, p in self.named_parameters() if p.requires_grad
        }

    @property
    def capacity(self) -> int | None:
        """Maximum number of clients of a run; None: any number."""
        return min(self._capacities, default=(None, ""))[0]

    @property
    def capacity_key(self) -> str:
        """The option that sets :attr:`capacity`, "" where nothing does."""
        return min(self._capacities, default=(0, ""))[1]

    @property
    def _capacities(self) -> list[tuple[int, str]]:
        return [
            (term.capacity, f"terms.{name}.capacity")
            for name, term in zip(self.terms, self._terms(), strict=True)
            if term.capacity is not None
        ]

    @property
    def needs_received(self) -> bool:
        """Whether a round needs the state as the server sent it."""
        return any(term.needs_received for term in self._terms())

    def start_round(self, received: Received, *, with_terms: bool = True) -> None:
        """Called before a client's first step of a round: for the method, then for every term."""
        self._set_resting(self.resting(received.round))
        if isinstance(self.method, StartsRounds):
            self.method.start_round(received)
        for term in self._terms() if with_terms else ():
            term.start_round(self.method, received)

    def resting(self, round_: int) -> set[str]:
        """Full names of the parameters that clients train in other rounds than this one."""
        if self._adaptation is None:
            return set()
        return {name for name in self._adapted if self._adaptation.rests(name, round_)}

    def _set_resting(self, names: set[str]) -> None:
        """Takes the gradients from these parameters, and gives them back to all others."""
        for name in names ^ self._resting:
            self.get_parameter(f"method.{name}").requires_grad_(name not in names)
        self._resting = names

    def loss(
        self, batch: Batch, *, measured: bool = False
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Named scalar parts, whose sum is minimised, and if `measured` the measures to record.

        Each term's part is weighted and has the term's name.

        Raises:
            ValueError: a term has the name of a part of the method's loss.
        """
        step = self.method.loss(batch)
        losses = dict(step.losses)
        measures = dict(step.measures()) if measured else {}
        for name, term in zip(self.terms, self._terms(), strict=True):
            if name in losses:
                raise ValueError(f"terms.{name}: a part of the method's loss has this name")
            loss = term.loss(self.method, batch, step)
            losses[name] = self._weights[name] * loss
            if measured:
                measures |= term.measures(self.method, step, loss)
        return losses, measures

    def end_round(self) -> None:
        """Called after a client's last step; calls :meth:`Term.end_round` of every term."""
        for term in self._terms():
            term.end_round()

    def _terms(self) -> list[Term]:
        return cast(list[Term], [*self.terms.values()])

    def _share(self) -> None:
        """Puts tensors of the trained backbone in place of other backbones' equal ones."""
        for name, source in self._shared_with.items():
            (path, _, own), (of, _, its) = name.rpartition("."), source.rpartition(".")
            module, shared = self.get_submodule(path), getattr(self.get_submodule(of), its)
            (module._parameters if own in module._parameters else module._buffers)[own] = shared

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Moves it to another device, where tensors are shared as before."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._share()
        return self


def full_name(name: str) -> str:
    """The full name of a tensor, given its name in :meth:`Learner.named_parameters`."""
    return name.removeprefix("method.")


def build_learner(
    config: Config, channels: int, load: Callable[[Method], None] = lambda method: None
) -> Learner:
    """What the configuration's clients train, freshly initialised from the run's seed.

    Terms draw their initial values from seeds of their own: a method begins with the same bits
    with and without them.

    Args:
        load: puts other weights into the method, before anything is frozen or added.

    Raises:
        ConfigError: the method cannot be built for these images.
    """
    method = build_method(config, channels)
    merging = config.merging.plugin
    if merging.remembers and isinstance(method, KeepsState):
        method.keep_locally()
    load(method)
    terms: dict[str, tuple[Term, float]] = {}
    for chosen in config.active_terms:
        with seeded(derive(config.seed, "init", "terms", chosen.name)):
            terms[chosen.name] = (chosen.build(config, method), chosen.weight)
    learner = Learner(method, terms)
    learner.override_roles(merging.override_roles(learner))
    learner.override_roles(_by_batch_norm(BatchNormPolicy.of(config), learner))
    learner.adapt(config.adaptation.build(), derive(config.seed, "init", "adaptation"))
    return learner


def _by_batch_norm(policy: BatchNormPolicy, learner: Learner) -> RoleOverride:
    """The roles of BatchNorm's shared tensors; refuses to keep BatchNorm where there is none."""
    changed = {full_name(name): Role.LOCAL for name in policy.kept_by_clients(learner)}
    changed |= {full_name(name): Role.SERVER for name in policy.only_sent_down(learner)}
    return lambda name, role: changed.get(name, role) if role is Role.SHARED else role
