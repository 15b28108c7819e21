"""Clients train on smaller views than the images that encoders are evaluated on."""

import pytest
from torch.nn.modules.module import register_module_forward_pre_hook

from orchestra_flwr.models import load_encoder
from orchestra_flwr.models.backbones.convnet import ConvNet

IMAGE, VIEW = 16, 8


@pytest.fixture
def seen():
    """Of each pass of a backbone: whether it trained, and the height of its images."""
    passes = set()

    def look(module, inputs):
        if isinstance(module, ConvNet):
            passes.add((module.training, inputs[0].shape[-1]))

    hook = register_module_forward_pre_hook(look)
    yield passes
    hook.remove()


@pytest.mark.parametrize("method", ["orchestra", "simclr"])
def test_views_are_small_in_training_and_images_large_everywhere_else(tiny, federate, seen, method):
    small = f"data.augmentation.view_size={VIEW}"
    run = federate(tiny(f"method={method}", f"data.image_size={IMAGE}", small))
    assert {size for training, size in seen if training} == {VIEW}
    assert {size for training, size in seen if not training} == {IMAGE}
    assert load_encoder(run.folder.path).spec.image_size == IMAGE


def test_scores_without_labels_are_those_of_small_images(tiny, federate, seen):
    """They are compared with one another alone, and clients take them of all their images."""
    small = f"data.augmentation.view_size={VIEW}"
    config = tiny(f"data.image_size={IMAGE}", small, "evaluation.unsupervised=true")
    federate(config, evaluate=False)
    assert {size for training, size in seen if not training} == {VIEW}
