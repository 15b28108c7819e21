import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.experiments.planning.plan import make_plan
from orchestra_flwr.experiments.planning.transfer import check_transfer, transfer_name

DIGITS = ("data=digits", "data.image_size=16")


def test_an_evaluation_is_named_by_its_images():
    name = transfer_name(DIGITS, None)
    assert name.startswith("transfer-digits-")
    assert transfer_name((*DIGITS, "data.test_limit=20"), None) != name
    assert transfer_name((), None) is None


def test_images_that_were_moved_keep_their_name():
    named = {transfer_name(("data=stl10",), root) for root in (None, "here", "/there/stl10_binary")}
    assert len(named) == 1
    photos = {transfer_name(("data=image_folder",), root) for root in ("a/b.zip", "c/b.zip", "d")}
    assert len(photos) == 2


@pytest.mark.parametrize(
    ("images", "root", "says"),
    [
        (("data=imagenet",), None, "evaluated on: data=imagenet: must be one of"),
        (DIGITS, "x", "evaluated on: transfer_root: unknown option of data=digits"),
        ((), "x", "^transfer_root=x: the experiment evaluates its encoders on no other images"),
    ],
)
def test_images_that_cannot_be_are_refused(images, root, says):
    with pytest.raises(ConfigError, match=says):
        transfer_name(images, root)


def test_images_are_read_before_anything_is_trained(tiny, tmp_path):
    sixteen, coloured = tiny("data.image_size=16"), tiny("data=image_folder", "data.root=x")
    check_transfer(DIGITS, None, [sixteen])
    check_transfer(("data=digits",), None, [sixteen, tiny()])  # they are scaled to each encoder
    with pytest.raises(ConfigError, match="evaluated on: transfer_root must name the folder of"):
        check_transfer(("data=stl10",), None, [coloured])
    with pytest.raises(ConfigError, match="images have 3 channels, the encoder expects 1"):
        check_transfer(("data=stl10",), None, [sixteen])
    with pytest.raises(ConfigError, match="the encoder expects images of 8 x 8"):
        check_transfer(DIGITS, None, [sixteen, tiny()])
    with pytest.raises(ConfigError, match=f"evaluated on: transfer_root={tmp_path}"):
        check_transfer(("data=image_folder",), str(tmp_path), [coloured])


def test_a_plan_says_where_the_other_images_are():
    plan, _ = make_plan(
        "dec_ssl_table4", "paper", seeds=[0], only=["no pre-training"], transfer_root="my stl10"
    )
    assert "'transfer_root=my stl10'" in plan.command and plan.transfer_root == "my stl10"
