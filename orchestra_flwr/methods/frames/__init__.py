"""What methods have in common: backbone and projector, one comparison, a target, some labels."""

from orchestra_flwr.methods.frames.classifying import Classifying
from orchestra_flwr.methods.frames.joint_embedding import JointEmbedding
from orchestra_flwr.methods.frames.moving_target import MovingTarget
from orchestra_flwr.methods.frames.projecting import Projecting
from orchestra_flwr.methods.frames.prototypes import Prototypes
from orchestra_flwr.methods.frames.some_labels import SomeLabels

__all__ = [
    "Classifying",
    "JointEmbedding",
    "MovingTarget",
    "Projecting",
    "Prototypes",
    "SomeLabels",
]
