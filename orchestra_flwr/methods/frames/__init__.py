"""What methods have in common: backbone and projector, one comparison, a target that follows."""

from orchestra_flwr.methods.frames.joint_embedding import JointEmbedding
from orchestra_flwr.methods.frames.moving_target import MovingTarget
from orchestra_flwr.methods.frames.projecting import Projecting
from orchestra_flwr.methods.frames.prototypes import Prototypes

__all__ = ["JointEmbedding", "MovingTarget", "Projecting", "Prototypes"]
