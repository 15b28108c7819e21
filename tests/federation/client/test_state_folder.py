import os

import pytest
import torch

from orchestra_flwr.config import KEPT_ROUNDS
from orchestra_flwr.federation.client.state_folder import ClientStateFolder
from orchestra_flwr.merging import ClientState


def own(value):
    return ClientState({"a": torch.full((2,), float(value))}, {"lambda": value / 3})


def number(kept):
    return None if kept is None else kept.tensors["a"][0].item()


def test_a_client_finds_what_it_kept_after_its_last_round_before(tmp_path):
    folder = ClientStateFolder(tmp_path / "7", "run")
    assert folder.before(1) is None
    folder.save(1, own(1))
    folder.save(4, own(4))
    assert [number(folder.before(r)) for r in (1, 2, 4, 5, 9)] == [None, 1, 1, 4, 4]
    assert folder.before(9).values == {"lambda": 4 / 3}  # to the last bit


def test_a_round_that_is_repeated_starts_from_before_it(tmp_path):
    folder = ClientStateFolder(tmp_path, "run")
    for round_ in (1, 2, 3):
        folder.save(round_, own(round_))
    assert number(folder.before(3)) == 2
    folder.save(3, own(33))
    assert number(folder.before(3)) == 2
    assert number(folder.before(4)) == 33


def on_disk(folder):
    return sorted(path.stem for path in (folder / "run").iterdir())


def test_the_last_three_rounds_stay_on_the_disk_and_what_was_before_them(tmp_path):
    folder = ClientStateFolder(tmp_path, "run")
    for round_, rounds in ((1, "1"), (2, "12"), (3, "123"), (4, "1234"), (5, "2345"), (9, "59")):
        folder.save(round_, own(round_))
        assert on_disk(tmp_path) == [*rounds]


def test_what_a_run_went_back_behind_goes_with_the_next_state(tmp_path):
    folder = ClientStateFolder(tmp_path, "run")
    for round_ in range(1, 6):
        folder.save(round_, own(round_))
    assert number(folder.before(3)) == 2  # the oldest round that can be asked for again
    folder.save(3, own(33))
    assert on_disk(tmp_path) == ["2", "3"] and number(folder.before(6)) == 33


def test_another_run_starts_without(tmp_path):
    ClientStateFolder(tmp_path, "old").save(3, own(3))
    (tmp_path / ".DS_Store").touch()  # a file manager's
    new = ClientStateFolder(tmp_path, "new")
    assert new.before(9) is None
    new.save(1, own(1))
    assert sorted(p.name for p in tmp_path.iterdir()) == [".DS_Store", "new"]


def test_a_damaged_file_is_told_by_name(tmp_path):
    folder = ClientStateFolder(tmp_path, "run")
    folder.save(1, own(1))
    (tmp_path / "run" / "1.safetensors").write_bytes(b"half a fi")
    with pytest.raises(ValueError, match=r"run/1.safetensors: this client's state is damaged"):
        folder.before(2)


def test_no_flipped_bit_is_loaded(tmp_path):
    folder = ClientStateFolder(tmp_path, "run")
    folder.save(1, own(1))
    file = tmp_path / "run" / "1.safetensors"
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="is damaged.*put back a copy of it, or remove it"):
            folder.before(2)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_state_is_for_its_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        ClientStateFolder(tmp_path / "7", "run").save(1, own(1))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"7": 0o700, "run": 0o700, "1.safetensors": 0o600}


def test_a_full_disk_leaves_the_old_state(tmp_path, monkeypatch):
    folder = ClientStateFolder(tmp_path, "run")
    folder.save(1, own(1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        folder.save(2, own(2))
    monkeypatch.undo()
    assert number(folder.before(9)) == 1
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["1.safetensors"]


@pytest.mark.parametrize("run", ["..", "../../home", "/etc", "a/b", "", "x" * 65])
def test_a_run_cannot_lead_out_of_the_clients_folder(tmp_path, run):
    with pytest.raises(ValueError, match="must be a name"):
        ClientStateFolder(tmp_path, run)


def test_a_later_stage_of_a_round_starts_from_the_one_before(tmp_path):
    folder = ClientStateFolder(tmp_path, "run")
    folder.save(1, own(10))
    folder.save(2, own(20))
    folder.save(2, own(22), 2)
    assert [number(folder.before(2, stage)) for stage in (0, 1, 2, 3)] == [10, 20, 20, 22]
    assert number(folder.before(3)) == 22
    folder.save(3, own(30))
    folder.save(5, own(50))
    assert on_disk(tmp_path) == ["2-2", "3", "5"]


@pytest.mark.parametrize(
    "number_of", [lambda n: (-n, 0), lambda n: (2, n), lambda n: (2, -n), lambda n: (n, n)]
)
def test_no_number_that_a_server_sends_fills_the_disk(number_of, tmp_path):
    folder = ClientStateFolder(tmp_path, "run")
    for count in range(1, 30):
        round_, stage = number_of(count)
        folder.save(round_, own(count), stage, from_before=2)
        assert number(folder.before(round_, stage + 1)) == count
        assert len(on_disk(tmp_path)) <= KEPT_ROUNDS + 3


def test_a_round_of_stages_that_is_repeated_starts_from_before_it(tmp_path):
    folder = ClientStateFolder(tmp_path, "run")
    folder.save(1, own(10))
    for stage in (0, 1, 2):
        folder.save(2, own(20 + stage), stage)
    assert number(folder.before(2)) == 10
    folder.save(2, own(30))  # what later stages kept in the first attempt is gone
    assert number(folder.before(2, 2)) == number(folder.before(3)) == 30
