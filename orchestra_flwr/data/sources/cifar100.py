"""CIFAR-100, downloaded on first use."""

from orchestra_flwr.data.sources.cifar10 import Cifar10


class Cifar100(Cifar10):
    """50,000 training and 10,000 test images of 32 x 32 pixels, 100 classes (Krizhevsky, 2009)."""

    classes = 100
    reader = "CIFAR100"
