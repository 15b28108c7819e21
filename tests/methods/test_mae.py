import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import augment
from orchestra_flwr.methods import Batch, Role
from orchestra_flwr.methods.mae import AS_IT_IS, masked_error, random_order, rows_at
from orchestra_flwr.models import normalise
from orchestra_flwr.models.transformer import patches_of
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, train_round

SMALL = (
    "method=mae",
    "model=vit_tiny",
    "model.width=24",
    "model.depth=1",
    "method.decoder_depth=1",
)
PAPER = ("method=mae", "model=vit_tiny", "model.width=192", "data=image_folder", "data.root=.")


def batch_of(images, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Batch(torch.arange(len(images)), (images,), (None,), generator)


def test_the_published_sizes(tiny):
    config = tiny(*PAPER)
    learner = build_learner(config, 3)
    sizes = {
        name: sum(p.numel() for p in child.parameters())
        for name, child in learner.method.named_children()
    }
    assert sizes == {"backbone": 5_383_680, "decoder": 1_829_004}
    state = learner.state(Role.SHARED)
    assert sum(t.numel() for t in state.values()) == 5_383_680 + 1_829_004  # 28.9 MB, no buffers
    assert not any(learner.state(role) for role in Role if role is not Role.SHARED)


def test_a_quarter_of_the_patches_is_seen(tiny):
    """64 tokens and the class token in the encoder; all 256 and it in the decoder."""
    method = build_learner(tiny(*PAPER, "model.depth=1", "method.decoder_depth=1"), 3).method
    seen = {}
    for name in ("backbone", "decoder"):
        module = getattr(method, name).blocks
        module.register_forward_hook(
            lambda module, inputs, output, name=name: seen.update({name: inputs[0].shape})
        )
    method.loss(batch_of(torch.randn(2, 3, 32, 32)))
    assert seen == {"backbone": (2, 65, 192), "decoder": (2, 257, 192)}


def test_patches_are_cut_row_by_row():
    image = torch.arange(2 * 4 * 6.0).view(1, 2, 4, 6)
    patches = patches_of(image, 2)
    assert patches.shape == (1, 6, 8)
    for index, (row, column) in enumerate((r, c) for r in (0, 2) for c in (0, 2, 4)):
        expected = image[0, :, row : row + 2, column : column + 2].flatten()
        assert torch.equal(patches[0, index], expected)


def test_the_order_is_undone(generator):
    order, places = random_order(3, 16, generator)
    tokens = torch.randn(3, 16, 5)
    assert torch.equal(rows_at(rows_at(tokens, order), places), tokens)
    assert all(row.sort().values.tolist() == list(range(16)) for row in order)
    assert len({tuple(row.tolist()) for row in order}) == 3  # each image its own


def test_the_loss_by_hand():
    """Two images of three patches of two pixels; the second and the first patch are masked."""
    patches = torch.zeros(2, 3, 2)
    drawn = torch.tensor([[[9.0, 9], [1, 3], [9, 9]], [[2, 0], [9, 9], [9, 9]]])
    masked = torch.tensor([[False, True, False], [True, False, False]])
    assert masked_error(drawn, patches, masked).item() == pytest.approx(((1 + 9) / 2 + 4 / 2) / 2)


def test_what_is_visible_is_not_drawn_but_what_is_masked_is(tiny):
    """Visible pixels are no part of the error; and masked ones do not reach the encoder."""
    config = tiny(*SMALL)
    method = build_learner(config, 1).method
    images = torch.randn(3, 1, 8, 8)
    loss = method.loss(batch_of(images)).losses["reconstruction"]
    _, places = random_order(3, 16, torch.Generator().manual_seed(0))
    masked = (places >= 4)[..., None]
    patches = patches_of(images, 2)
    order = places.argsort(dim=1)
    encoded = method.backbone.encode(rows_at(method.backbone.tokens(patches), order[:, :4]))
    drawn = method.decoder(encoded, places)
    slow = sum(
        (drawn[i, j] - patches[i, j]).square().mean()
        for i in range(3)
        for j in range(16)
        if masked[i, j]
    ) / (3 * 12)
    torch.testing.assert_close(loss, slow)
    other = torch.where(masked, torch.randn(3, 16, 4), patches)  # of the masked ones alone
    again = method.backbone.encode(rows_at(method.backbone.tokens(other), order[:, :4]))
    assert torch.equal(again, encoded)
    changed = torch.where(masked, patches, torch.randn(3, 16, 4))  # the visible ones, afterwards
    assert masked_error(drawn, changed, masked[..., 0]) == masked_error(
        drawn, patches, masked[..., 0]
    )


def test_masks_come_from_the_batchs_generator(tiny):
    method = build_learner(tiny(*SMALL), 1).method
    images = torch.randn(3, 1, 8, 8)
    losses = [method.loss(batch_of(images, seed)).losses["reconstruction"] for seed in (0, 0, 1)]
    assert torch.equal(losses[0], losses[1]) and not torch.equal(losses[0], losses[2])


def test_images_are_seen_as_they_are(generator):
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    view = augment(images, [AS_IT_IS], generator).images[0]
    torch.testing.assert_close(view, images / 255, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_it_learns_to_draw_one_image(tiny):
    """A ramp, always the same: what is masked follows from what is seen."""
    config = tiny(*SMALL, "optimizer=adamw", "training.lr=0.003", "training.local_epochs=40")
    ramp = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8).mul(3).expand(32, -1, -1, -1)
    short = tiny(*SMALL, "optimizer=adamw", "training.lr=0.003")
    first, last = (
        train_round(build_learner(c, 1), ramp.contiguous(), c, ClientSeed(0, 1, "0")).losses
        for c in (short, config)
    )
    spread = normalise(ramp[:1] / 255, "half").var(correction=0).item()
    assert last["reconstruction"] < 0.5 * first["reconstruction"]
    assert first["reconstruction"] > 0.5 * spread


@pytest.mark.parametrize(("overrides", "says"), [
    (["model=convnet"], "model=convnet: must be vit_tiny with method=mae"),
    (["method.views=plain"], "method.views=plain: must be default with method=mae"),
    (["method.mask_ratio=0.99"], "method.mask_ratio=0.99: must leave some of the 16 patches"),
])  # fmt: skip
def test_what_cannot_be_masked_is_refused(tiny, overrides, says):
    with pytest.raises(ConfigError, match=says):
        tiny("method=mae", "model=vit_tiny", "model.width=24", *overrides)
