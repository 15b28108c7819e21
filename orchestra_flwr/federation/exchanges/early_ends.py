"""What a run cannot have if its rounds may end before everybody has answered."""

from collections.abc import Iterator

from orchestra_flwr.config import Config


def check_early_ends(config: Config) -> None:
    """Refuses what relies on the replies of all that were asked, or would have no effect.

    Raises:
        ValueError: names the key, its value, and what is allowed.
    """
    federation = config.federation
    if not federation.ends_early:
        return
    for why in _refused(config):
        given = {
            f"federation.enough={federation.enough:g}": federation.enough != 1,
            f"federation.oversample={federation.oversample:g}": federation.oversample > 1,
            f"federation.deadline={federation.deadline}": federation.deadline is not None,
        }
        key = next(key for key, is_given in given.items() if is_given)
        raise ValueError(f"{key}: must not be given with {why}")
    if federation.oversample > 1 and federation.participation == 1:
        raise ValueError(
            f"federation.oversample={federation.oversample:g}: must be 1 with "
            "federation.participation=1, which asks all clients already"
        )
    clients = federation.clients
    wanted, asked = federation.enough, federation.asked(clients)
    if 1 < asked < wanted and config.clock.plugin.keeps_time:
        raise ValueError(
            f"federation.enough={wanted:g}: must be at most {asked}, the clients that a round asks"
        )


def _refused(config: Config) -> Iterator[str]:
    """What such a run must not have, each with the reason."""
    privacy = config.privacy
    if not config.exchange.plugin.private:
        yield (
            f"exchange={config.exchange.name}: only rounds of one model and one stage, as those "
            "of star, can end before all have answered"
        )
    if privacy.secure_aggregation:
        yield "privacy.secure_aggregation=true: the sum is that of all clients that were asked"
    if privacy.clip is not None:
        yield (
            f"privacy.clip={privacy.clip:g}: who counts would depend on who else answers, so one "
            "client could change more than the account of privacy allows"
        )
    if config.aggregation.plugin.holds_results:
        yield (
            f"aggregation={config.aggregation.name}: it withstands a part of the whole cohort, "
            "and hostile clients may answer first"
        )
