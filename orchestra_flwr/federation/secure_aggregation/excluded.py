"""What a run with secure aggregation cannot have, each in a line with the reason."""

from collections.abc import Iterator

from orchestra_flwr.config import Config
from orchestra_flwr.methods import release_of
from orchestra_flwr.privacy.secure_sums import MAX_CLIENTS, MIN_COHORT


def check_secure_aggregation(config: Config) -> None:
    """Refuses what would need more than the sum, or would reveal more than it.

    Raises:
        ValueError: names the key, its value, what is allowed and why.
    """
    if not config.privacy.secure_aggregation:
        return
    chosen = "with privacy.secure_aggregation=true"
    for key, allowed, why in _refused(config):
        raise ValueError(f"{key}: must be {allowed} {chosen}, {why}")


def _refused(config: Config) -> Iterator[tuple[str, str, str]]:
    """Key with value, what is allowed, and why."""
    privacy, evaluation = config.privacy, config.evaluation
    if config.exchange.name != "star":
        yield f"exchange={config.exchange.name}", "star", "a round has one sum, of all clients"
    if config.aggregation.name != "mean":
        name = f"aggregation={config.aggregation.name}"
        yield name, "mean", "the server sees no single result"
    release = release_of(config)
    if release is not None and not release.is_private:
        allowed = "one without contributions, such as simclr or byol"
        allowed += f", or {release.made_private_by} be given" * bool(release.made_private_by)
        why = f"clients send {release.label} one by one beside the sum"
        yield f"method={config.method.name}", allowed, why
    if privacy.clip is not None and privacy.noise_multiplier == 0:
        allowed = "null, or privacy.noise_multiplier be given"
        why = "without noise a bound that nobody but the client itself can check protects nobody"
        yield f"privacy.clip={privacy.clip:g}", allowed, why
    for key, on in (("drift", evaluation.drift), ("unsupervised", evaluation.unsupervised),
                    ("clients", evaluation.clients)):  # fmt: skip
        if on:
            yield f"evaluation.{key}=true", "false", "it looks at single clients"
    if evaluation.personal_labels is not None:
        name = f"evaluation.personal_labels={evaluation.personal_labels}"
        yield name, "null", "it looks at single clients"
    if config.federation.weighting != "uniform" and privacy.full_weight is None:
        yield (
            f"federation.weighting={config.federation.weighting}",
            "uniform, or privacy.full_weight=N be given (from N on a client counts in full)",
            "a sum needs a bound of the weights that no client's number gives away",
        )
    # A resumed run may wait for fewer than the number that it began with.
    number = config.federation.min_clients or config.federation.clients
    clients = config.federation.cohort_size(number)
    key = f"{config.federation.clients_key}={number}"
    if clients < MIN_COHORT:
        why = f"a sum of {clients} shows one client the other's result"
        yield key, f"so many that {MIN_COHORT} are asked", why
    if clients > MAX_CLIENTS:
        allowed = f"so many that {MAX_CLIENTS:,} are asked (federation.participation)"
        yield key, allowed, "no client takes part in a larger sum"
