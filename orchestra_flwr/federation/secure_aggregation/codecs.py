"""Which integers a run's updates become."""

from orchestra_flwr.config import Config
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.secure_aggregation.noisy_codec import NoisyCodec
from orchestra_flwr.federation.secure_aggregation.ring_codec import RingCodec
from orchestra_flwr.federation.secure_aggregation.sum_codec import SumCodec


def codec_of(config: Config, schemas: Schemas) -> SumCodec:
    """That of a run with secure aggregation, the same on its server and its clients."""
    privacy = config.privacy
    if privacy.clip is not None and privacy.noise_multiplier > 0:
        return NoisyCodec(schemas.shared.size, privacy.clip, privacy.noise_multiplier)
    return RingCodec(schemas, uniform=config.federation.weighting == "uniform")
