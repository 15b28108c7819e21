"""Base classes of methods: one backbone, with a projector, with a target, with labels."""

from orchestra_flwr.methods.families.classifying import Classifying, PseudoLabelling, SomeLabels
from orchestra_flwr.methods.families.momentum_encoder import MomentumEncoder
from orchestra_flwr.methods.families.one_backbone import JointEmbedding, OneBackbone, Projecting
from orchestra_flwr.methods.families.prototypes import Prototypes

__all__ = [
    "Classifying",
    "JointEmbedding",
    "MomentumEncoder",
    "OneBackbone",
    "Projecting",
    "Prototypes",
    "PseudoLabelling",
    "SomeLabels",
]
