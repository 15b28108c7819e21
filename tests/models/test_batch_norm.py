import copy

import pytest
import torch
from torch import nn

from orchestra_flwr.config import ConfigError, ModelConfig
from orchestra_flwr.methods import Role
from orchestra_flwr.models import BatchNormPolicy, build_backbone, recalibrated
from orchestra_flwr.models.batch_norm import without_counters
from orchestra_flwr.training import build_learner, starting_learner

CLIP = ("privacy.clip=1", "federation.weighting=uniform")
WEIGHTS = "model.weights=x.safetensors"  # which nobody reads while a run is composed


def images(n, channels=1, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (n, channels, size, size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


class Pixels(nn.Module):
    """One norm over the pixels of an image; notes the batches that it sees."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, momentum=0.25)
        self.batches = []

    def forward(self, x):
        self.batches.append(len(x))
        return self.norm(x.flatten(1))


def test_statistics_are_the_means_over_batches_by_hand():
    backbone = Pixels().eval()
    nn.init.constant_(backbone.norm.weight, 3)
    nn.init.constant_(backbone.norm.running_mean, 100)
    result = recalibrated(backbone, images(10, size=2), 4, "half")
    assert result.batches == [4, 3, 3] and backbone.batches == []
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    pixels = (images(10, size=2).flatten(1).double() / 255 * 2 - 1)[order].tensor_split(3)
    mean = torch.stack([batch.mean(0) for batch in pixels]).mean(0)
    variance = torch.stack([batch.var(0) for batch in pixels]).mean(0)
    torch.testing.assert_close(result.norm.running_mean.double(), mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(result.norm.running_var.double(), variance, atol=1e-6, rtol=0)
    assert set(result.norm.weight.tolist()) == {3.0}  # weights stay
    assert result.norm.momentum == 0.25 and not result.training
    assert set(backbone.norm.running_mean.tolist()) == {100.0}  # it is a copy


def test_classes_that_come_one_after_the_other_do_not_narrow_the_variance():
    """Ten kinds of images, each of one gray: within a batch of one kind there would be none."""
    grays = torch.arange(0, 250, 25, dtype=torch.uint8).repeat_interleave(50)
    pictures = grays[:, None, None, None].expand(500, 1, 2, 2)
    norm = recalibrated(Pixels(), pictures, 50, "half").norm
    whole = float((grays.double() / 255 * 2 - 1).var())
    assert norm.running_var.tolist() == pytest.approx([whole] * 4, rel=0.05)


@pytest.mark.parametrize("name", ["convnet", "resnet18"])
def test_in_one_batch_evaluation_mode_then_sees_what_training_mode_saw(name):
    """But for the variance's n / (n - 1): with many values in each channel nearly the same."""
    torch.manual_seed(0)
    backbone = build_backbone(ModelConfig(name=name, width=8), 1)
    nn.init.normal_(backbone.get_parameter(next(n for n, _ in backbone.named_parameters())))
    pictures = images(400)
    result = recalibrated(backbone, pictures, 400, "half").eval()
    normalised = pictures.float() / 255 * 2 - 1
    with torch.no_grad():
        expected = copy.deepcopy(backbone).train()(normalised)
        torch.testing.assert_close(result(normalised), expected, rtol=0.02, atol=0.02)
        assert not torch.allclose(backbone.eval()(normalised), expected, rtol=0.1, atol=0.1)


def test_earlier_statistics_leave_no_trace_and_weights_stay():
    backbone = build_backbone(ModelConfig(name="resnet18", width=8), 1)
    other = copy.deepcopy(backbone)
    for module in other.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.num_batches_tracked.fill_(7)
    one, two = (
        recalibrated(network, images(30), 8, "half").state_dict() for network in (backbone, other)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    weights = dict(backbone.named_parameters())
    assert all(torch.equal(one[name], weight) for name, weight in weights.items())


def test_without_counters_all_is_as_with_them_but_no_batch_is_counted():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4, momentum=None))
    other, images = copy.deepcopy(plain), torch.randn(3, 6, 1, 8, 8)
    for batch in images:
        with without_counters(other):
            assert torch.equal(other(batch), plain(batch))
    for name, values in plain.state_dict().items():
        assert torch.equal(other.state_dict()[name], values) == (name != "1.num_batches_tracked")
    assert other[1].num_batches_tracked == 0


def test_modes_and_momenta_are_as_before():
    backbone = Pixels().train()
    backbone.norm.eval()
    result = recalibrated(backbone, images(5, size=2), 2, "half")
    assert result.training and not result.norm.training
    assert not any(p.grad is not None for p in result.parameters())


def test_without_batch_norm_nothing_changes():
    backbone = build_backbone(ModelConfig(name="resnet18", norm="group", width=8), 1)
    state = recalibrated(backbone, images(6), 3, "half").state_dict()
    assert all(torch.equal(state[name], t) for name, t in backbone.state_dict().items())


@pytest.mark.parametrize(("count", "size", "batches"), [(2, 1, [2]), (5, 1, [3, 2]), (3, 2, [3])])
def test_no_batch_of_one_image(count, size, batches):
    assert recalibrated(Pixels(), images(count, size=2), size, "half").batches == batches


def test_one_image_has_no_variance():
    with pytest.raises(ValueError, match="1 images: .* at least 2"):
        recalibrated(Pixels(), images(1, size=2), 4, "half")


@pytest.mark.parametrize(
    ("overrides", "name", "asked_by"),
    [
        ((), "averaged", "model.batch_norm=null"),
        (("merging=fedbn",), "local", "merging=fedbn"),
        (CLIP, "recalibrated", "privacy.clip=1"),
        ((*CLIP, "merging=fedbn"), "local", "merging=fedbn"),
        (("model.batch_norm=averaged",), "averaged", "model.batch_norm=averaged"),
        (("model.batch_norm=local",), "local", "model.batch_norm=local"),
        (("model.batch_norm=recalibrated",), "recalibrated", "model.batch_norm=recalibrated"),
        ((*CLIP, "model.batch_norm=frozen"), "frozen", "model.batch_norm=frozen"),
    ],
)
def test_the_policy_is_the_named_one_or_what_other_keys_imply(tiny, overrides, name, asked_by):
    policy = BatchNormPolicy.of(tiny(*overrides))
    assert (policy.name, policy.asked_by) == (name, asked_by)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("model.batch_norm=frozen", "merging=fedbn"), "=frozen: must be null or local with merg"),
        (("model.batch_norm=frozen", "model=cct"), "=frozen: must be null, model=cct has no Batch"),
        (("model.batch_norm=frozen", "model.norm=group"), "=frozen: must be null, model=convnet"),
        (("model.batch_norm=averaged", *CLIP), "=averaged: must not be averaged with privacy.clip"),
        (("model.batch_norm=kept",), "=kept: input should be 'averaged', 'local', 'recalibrated'"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_in_one_line(tiny, overrides, says):
    with pytest.raises(ConfigError) as error:
        tiny(*overrides)
    assert str(error.value).startswith(f"model.batch_norm{says}")


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (("model.timm=test_resnet",), None),
        (("model.timm=test_resnet", WEIGHTS), "frozen"),
        (("model.timm=test_resnet", WEIGHTS, *CLIP), "frozen"),
        (("model.timm=test_resnet", WEIGHTS, "model.batch_norm=averaged"), "averaged"),
        (("model.timm=test_resnet", WEIGHTS, "model.batch_norm=null"), None),
        (("model.timm=test_vit", WEIGHTS, "data.image_size=160"), None),
    ],
)
def test_pretrained_norms_are_frozen_unless_the_key_is_set(tiny, overrides, name):
    pytest.importorskip("timm", reason="needs the extra timm")
    assert tiny("model=timm", *overrides).model.batch_norm == name


@pytest.mark.parametrize("first", ["init=x", "model.weights=x.safetensors"])
def test_norms_of_the_clients_own_do_not_begin_with_trained_ones(tiny, first):
    model = ("model=timm", "model.timm=mobilenetv3_small_050") if "weights" in first else ()
    if model:
        pytest.importorskip("timm", reason="needs the extra timm")
    with pytest.raises(ConfigError, match=f"^{first}: must not be given with model.batch_norm=lo"):
        tiny(first, *model, "model.batch_norm=local")


def statistics(network):
    return {n: t.clone() for n, t in network.state_dict().items() if "running_" in n}


def pretrained(**options):
    """A backbone whose norms have statistics of images that are not among those here."""
    torch.manual_seed(0)
    backbone = build_backbone(ModelConfig(name="resnet18", width=8), 1)
    state = recalibrated(backbone, images(60, seed=1) // 2, 30, "half").state_dict()
    result = build_backbone(ModelConfig(name="resnet18", width=8, **options), 1)
    result.load_state_dict(state)
    return result


def test_frozen_norms_keep_their_statistics_in_every_mode_and_are_trained():
    backbone = pretrained(batch_norm="frozen")
    before, views = statistics(backbone), torch.randn(6, 1, 8, 8)
    learner = nn.Sequential(backbone, nn.BatchNorm1d(backbone.dim)).eval()
    expected = backbone(views)
    copied = copy.deepcopy(learner).train()
    for holder in (learner.train(), copied):
        assert holder[0].training and holder[1].training  # a head's norm is not frozen
        assert torch.equal(holder[0](views), expected)
        holder(views)
        holder[0](views).sum().backward()
        assert not torch.equal(holder[1].running_mean, torch.zeros(backbone.dim))
        after = statistics(holder[0])
        assert before and all(torch.equal(after[name], t) for name, t in before.items())
    norm = next(m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d))
    assert norm.weight.grad.any() and norm.bias.grad.any()
    free = pretrained().train()
    assert not torch.equal(free(views), expected)


def test_frozen_norms_are_not_recalibrated():
    result = recalibrated(pretrained(batch_norm="frozen"), images(20), 8, "half")
    expected = pretrained(batch_norm="frozen").state_dict()
    assert all(torch.equal(t, expected[name]) for name, t in result.state_dict().items())
    free = recalibrated(pretrained(), images(20), 8, "half").state_dict()
    assert not torch.equal(free["stem.1.running_mean"], expected["stem.1.running_mean"])


def test_statistics_of_no_images_are_not_frozen(tiny):
    config = tiny("model.batch_norm=frozen", "method=simclr")
    build_learner(config, 1)  # a client does not know yet what it will be sent
    with pytest.raises(ConfigError, match="^model.batch_norm=frozen: .* statistics of no images"):
        starting_learner(config, 1)


@pytest.mark.parametrize("chosen", ["recalibrated", "frozen"])
@pytest.mark.parametrize("clip", [(), CLIP])
def test_statistics_of_which_nobody_takes_the_mean_are_sent_down_only(tiny, chosen, clip):
    overrides = ("clustering=private", "privacy.epsilon=50")  # its projector has statistics, too
    if clip or chosen == "recalibrated":
        overrides = ("method=byol",)  # it must not be private then
    learner = build_learner(tiny(f"model.batch_norm={chosen}", *overrides, *clip), 1)
    names = {name for name in learner.state_dict() if "running_" in name}
    names = {name.removeprefix("method.") for name in names}
    of_heads = {name for name in names if "backbone" not in name}
    assert bool(of_heads) == ("private" in overrides[0]) and len(names) > len(of_heads)
    shared = learner.state(Role.SHARED).keys()
    assert learner.state(Role.SERVER).keys() & names == names - of_heads
    assert shared & names == of_heads


def test_nobody_asks_for_frozen_statistics_taken_anew(tiny):
    assert "evaluation.recalibrated" in tiny("model.batch_norm=frozen").unread()
    assert "evaluation.recalibrated" not in tiny("model.batch_norm=recalibrated").unread()


def test_beside_a_clip_statistics_of_heads_stay_as_well(tiny):
    network = nn.Sequential(pretrained(batch_norm="frozen"), nn.BatchNorm1d(4))
    of_head = {"1.running_mean", "1.running_var"}
    for clip in ((), CLIP):
        policy = BatchNormPolicy.of(tiny("model.batch_norm=frozen", *clip))
        assert (of_head <= policy.only_sent_down(network)) == bool(clip)
        assert {f"0.{name}" for name in statistics(network[0])} <= policy.only_sent_down(network)
    assert BatchNormPolicy.of(tiny()).only_sent_down(network[1:]) == set()


def test_local_norms_go_with_every_merging(tiny):
    """`merging=fedbn` is `model.batch_norm=local` with replace."""
    roles = [
        {name: learner.role(name) for name in learner.method.state_dict()}
        for learner in (
            build_learner(tiny("method=simclr", *chosen), 1)
            for chosen in (("merging=fedbn",), ("model.batch_norm=local",),
                           ("model.batch_norm=local", "merging=fedu"))
        )
    ]  # fmt: skip
    assert roles[0] == roles[1] == roles[2] and Role.LOCAL in roles[0].values()
