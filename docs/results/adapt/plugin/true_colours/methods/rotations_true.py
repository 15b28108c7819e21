"""Rotations of views whose colours stay as they are."""

from dataclasses import replace

from orchestra_flwr.data import PLAIN
from orchestra_flwr.methods.rotpred import RotPred


class RotationsTrue(RotPred):
    """Views are cropped as by `method.views=plain`, flipped and turned."""

    views = (replace(PLAIN, jitter_p=0, gray_p=0, rotate=True),)
