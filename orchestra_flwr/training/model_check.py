"""Refuses a run's model, as far as possible, before images are read.

Parts from a user's package are tried on random images. Otherwise a mistake in one would fail every
client in the first round, mostly at a line of this package.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods import (
    Batch,
    ChecksClients,
    Method,
    Received,
    Role,
    Step,
    build_method,
    release_of,
)
from orchestra_flwr.models import Backbone
from orchestra_flwr.models.batch_norm import COUNTER
from orchestra_flwr.models.precision import passes_in
from orchestra_flwr.plugins import describe
from orchestra_flwr.privacy.release import Release
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.terms import Term
from orchestra_flwr.training.learner import Learner, full_name
from orchestra_flwr.training.local_round import observe_round
from orchestra_flwr.training.needed_memory import check_memory
from orchestra_flwr.training.schedules import try_schedule
from orchestra_flwr.training.step import BatchMaker
from orchestra_flwr.training.warm_start import first_weights, starting_learner

IMAGES = 4
MOST_IMAGES = 256
OUTLIVING = (Role.SHARED, Role.SERVER, Role.LOCAL)  # roles of tensors that are there after a round


class _BrokenContractError(Exception):
    """A plug-in does something that its base class does not allow."""


def check_model(config: Config, channels: int, *, begun: bool = False) -> None:
    """Refuses a model that memory cannot hold, that cannot be built, or that breaks its contract.

    So it does a schedule of its learning rate.

    Raises:
        ConfigError: says why in one line.
    """
    try_schedule(config)
    choices = (config.method, config.model, config.clustering, *config.active_terms)
    users = [choice for choice in choices if choice.is_users]
    if not users:
        check_memory(config, channels)
        _starting(config, channels, begun)
        return
    with _named(" ".join(choice.written(choice.name) for choice in users)):
        _check_parts(build_method(config, channels))
        check_memory(config, channels)
        learner = _starting(config, channels, begun)
        _check_types(learner)
        _check_step_of(learner, config, channels)


@contextmanager
def _named(choices: str) -> Iterator[None]:
    """Turns errors of users' code into one line that names their choices on a command line."""
    try:
        yield
    except ConfigError:
        raise
    except _BrokenContractError as error:
        raise ConfigError(f"{choices}: {error}") from None
    except Exception as error:  # their code may raise anything
        raise ConfigError(f"{choices}: {describe(error)}") from error


def _starting(config: Config, channels: int, begun: bool) -> Learner:
    learner = starting_learner(config, channels, begun=begun)
    _check_view_size(learner, config, channels)
    if not begun and (source := first_weights(config)):
        _check_first_weights(learner, source, config.data.image_size, channels)
    return learner


def _check_first_weights(learner: Learner, source: str, size: int, channels: int) -> None:
    """Refuses weights of which the network makes no finite features, such as some of 1e20."""
    images = torch.linspace(-1, 1, IMAGES * channels * size**2).view(-1, channels, size, size)
    with torch.no_grad():
        for backbone in learner.eval().method.backbones().values():
            if not backbone(images).isfinite().all():
                raise ConfigError(
                    f"{source}: its features of an image are not finite: some of "
                    "its weights are too large, or not finite"
                )


def _check_view_size(learner: Learner, config: Config, channels: int) -> None:
    """Refuses a network that takes no images of the views' size, if that is not the images' own."""
    size = config.data.view_size
    if size == config.data.image_size:
        return
    views = torch.zeros(IMAGES, channels, size, size)
    try:
        with torch.no_grad():
            for backbone in learner.eval().method.backbones().values():
                backbone(views)
    except Exception as error:  # of networks of any library
        raise ConfigError(
            f"data.augmentation.view_size={size}: the network takes no images of this size "
            f"({describe(error)}); data.augmentation.view_size=null trains on views of full size"
        ) from error


def _check_parts(method: Method) -> None:
    for name in method.state_dict():
        role = method.role(name)
        _require(isinstance(role, Role), f"role({name!r}) must return a Role", role)
    _check_sequence(method.recipes(), Recipe, "recipes()")
    backbones = method.backbones()
    _require(isinstance(backbones, Mapping), "backbones() must return a dictionary", backbones)
    _check_sequence([*backbones.values()], Backbone, "the values of backbones()")


def _check_types(learner: Learner) -> None:
    """Refuses tensors that would stay where they are, whatever their role: no floating point.

    Whole numbers in this package's backbones, which may be timm's networks, are constants.
    """
    constant = tuple(
        f"{path}."
        for path, module in learner.named_modules()
        if isinstance(module, Backbone) and type(module).__module__.startswith("orchestra_flwr.")
    )
    for path, tensor in learner.state_dict().items():
        name = full_name(path)
        is_counter = name.rpartition(".")[2] == COUNTER  # BatchNorm's, which nothing reads
        if tensor.is_floating_point() or is_counter or path.startswith(constant):
            continue
        if (role := learner.role(name)) in OUTLIVING:
            raise _BrokenContractError(
                f"{name} is {_dtype(tensor)} and has Role.{role.name}: only floating-point tensors "
                "are sent, averaged or kept; use one, Role.TRANSIENT, or for a constant "
                "register_buffer(..., persistent=False)"
            )


def _check_step_of(learner: Learner, config: Config, channels: int) -> None:
    """Takes a step on random images, and checks what backbones, loss and terms return.

    A method is not tried if it needs a file of each client's own. If its loss needs a state that a
    server makes from clients' contributions, the first contribution is tried.
    """
    method, release = learner.method, release_of(config)
    if isinstance(method, ChecksClients):
        return
    if release is not None and not release.first_round:
        _try_contribution(learner, config, channels, release)
        return
    batch = _random_batch(learner, config, channels)
    before = torch.get_rng_state()
    with passes_in(config.training.precision, "cpu"):
        for name, backbone in method.backbones().items():
            _check_features(name, backbone(batch.views[0]), backbone.dim)
        step = method.loss(batch)
        _check_step(step)
        losses = dict(step.losses)
        for name, term in learner.terms.items():
            losses[f"terms.{name}"] = loss = cast(Term, term).loss(method, batch, step)
            _check_losses({name: loss})
    if not torch.equal(torch.get_rng_state(), before):
        raise _BrokenContractError(
            "it draws from torch's global random numbers (torch.rand without a generator, or "
            "dropout): draw from batch.generator, or the same seed does not give the same bits"
        )
    _check_gradients(losses.values(), learner)


def _try_contribution(learner: Learner, config: Config, channels: int, release: Release) -> None:
    """Round 0 of a client that has images enough for all rows; not tried if that takes too many."""
    rows = max((rows for rows, _ in release.rows.values()), default=1)
    count = rows * (release.min_images or 1)
    if count <= MOST_IMAGES:  # with fewer its rows could be refused, though clients have enough
        images, labels = _random_images(config, channels, count)
        observe_round(learner, images, config, ClientSeed(0, 0, "0"), labels=labels)


def _random_images(config: Config, channels: int, count: int) -> tuple[Tensor, Tensor]:
    """Images of noise, and a label for each."""
    size = config.data.image_size
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, channels, size, size), generator=generator).byte()
    return images, torch.zeros(count, dtype=torch.int64)


def _random_batch(learner: Learner, config: Config, channels: int) -> Batch:
    images, labels = _random_images(config, channels, IMAGES)
    state = {name: t.clone() for role in Role for name, t in learner.state(role).items()}
    learner.train()
    learner.start_round(Received("0", 0, 1, images, state, labels=labels))
    make = BatchMaker(learner.method, images, labels, config, ClientSeed(0, 1, "0"))
    return make(torch.arange(IMAGES))


def _check_features(name: str, features: Any, dim: int) -> None:
    _require(isinstance(features, Tensor), f"the backbone {name} must return a tensor", features)
    _require(
        features.shape[1:] == (dim,),
        f"the backbone {name} has dim={dim} and must return (B, {dim}) features",
        features,
    )


def _check_step(step: Any) -> None:
    _require(isinstance(step, Step), "loss(batch) must return a Step", step)
    losses = step.losses
    _require(isinstance(losses, Mapping), "Step(losses) must be a dictionary", losses)
    _check_sequence([*losses.values()], Tensor, "the losses of a Step")
    _check_losses(losses)
    if not any(loss.requires_grad for loss in losses.values()):
        raise _BrokenContractError("no loss has a gradient: something is detached or frozen")
    for name, features in step.features.items():
        _check_sequence(features, Tensor, f"Step(features): {name}")


def _check_gradients(losses: Iterable[Tensor], learner: Learner) -> None:
    parameters = [p for p in learner.parameters() if p.requires_grad]
    total = torch.stack([loss.float() for loss in losses]).sum()
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    pairs = zip(learner.trained(), gradients, strict=True)
    if missing := [name for name, gradient in pairs if gradient is None]:
        names = ", ".join(missing[:3]) + (" and others" if missing[3:] else "")
        raise _BrokenContractError(
            f"no gradient reaches {names}: use them in the loss, or requires_grad_(False)"
        )


def _check_losses(losses: Mapping[str, Any]) -> None:
    for name, loss in losses.items():
        is_number = isinstance(loss, Tensor) and not loss.dim()
        _require(is_number, f"the loss {name} must be a tensor of a single number", loss)
        if not math.isfinite(value := float(loss.detach())):
            raise _BrokenContractError(f"the loss {name} of random images is {value}")


def _check_sequence(values: Any, kind: type, what: str) -> None:
    """Requires a sequence of one or more objects of a kind; a tensor is no sequence of tensors."""
    is_sequence = isinstance(values, Sequence) and len(values) > 0
    _require(is_sequence, f"{what} must be a sequence of {kind.__name__} objects", values)
    for value in values:
        _require(isinstance(value, kind), f"{what} must be {kind.__name__} objects", value)


def _require(condition: bool, rule: str, value: Any) -> None:
    if not condition:
        raise _BrokenContractError(f"{rule}, and this is {_kind(value)}")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping | Sequence) and not value:
        return f"an empty {type(value).__name__}"
    return "None" if value is None else f"a {type(value).__name__}"
