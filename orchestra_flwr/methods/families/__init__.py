"""Families of methods: one backbone, with a projector, one comparison, a target, some labels."""

from orchestra_flwr.methods.families.classifying import Classifying
from orchestra_flwr.methods.families.joint_embedding import JointEmbedding
from orchestra_flwr.methods.families.momentum_encoder import MomentumEncoder
from orchestra_flwr.methods.families.one_backbone import OneBackbone
from orchestra_flwr.methods.families.projecting import Projecting
from orchestra_flwr.methods.families.prototypes import Prototypes
from orchestra_flwr.methods.families.pseudo_labelling import PseudoLabelling
from orchestra_flwr.methods.families.some_labels import SomeLabels

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
