"""What the server begins with: its models, and their frozen weights."""

from orchestra_flwr.config import Config
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.exchanges import Exchange
from orchestra_flwr.federation.messages.frozen_weights import FrozenStore, FrozenWeights
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.checkpoint import has_checkpoint
from orchestra_flwr.federation.server.members import Members
from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.methods import Role
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.training import starting_learner


def starting_models(
    config: Config, exchange: Exchange, members: Members, folder: RunFolder
) -> Models:
    """The models of a new run, or of a resumed one before its checkpoint is read.

    Args:
        exchange: says which models there are, and from which seeds they begin.
        folder: of the run; models that wait may be on its disk.
    """
    begun = has_checkpoint(folder.checkpoint)
    learner = starting_learner(config, config.data.channels, begun=begun)
    names = exchange.models(members.names)
    on_disk = folder.path if exchange.on_disk else None
    models = Models(config, learner, Schemas.of(learner, config), names, on_disk)
    for name in names:
        if (seed := exchange.seed_of(name, config.seed)) != config.seed:
            other = config.model_copy(update={"seed": seed})
            models.begin(name, starting_learner(other, config.data.channels, begun=begun))
    return models


def frozen_weights(models: Models, members: Members, folder: RunFolder) -> FrozenWeights | None:
    """The frozen weights, written once; a resumed run begins with those that it finds.

    Args:
        members: the clients, to which their digest is announced.

    Raises:
        FederationError: they are missing or damaged.
    """
    schema = models.schemas.frozen
    if not schema.size:
        return None
    store, state = FrozenStore(folder.frozen), models.learner.state(Role.FROZEN)
    begun = has_checkpoint(folder.checkpoint)
    digest = store.digest if begun else store.save(schema.pack(state))
    values = store.load(digest) if digest else None
    if values is None:
        raise FederationError(f"cannot resume: {folder.frozen} has no frozen weights")
    schema.unpack(values, state)
    members.announce(digest)
    shared = folder.frozen if members.is_simulated else None
    return FrozenWeights(values, digest, shared, members.holders)
