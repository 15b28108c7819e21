"""What is set before Flower is imported."""

import importlib
import pwd
from pathlib import Path

from flwr.supercore.utils import get_flwr_home

from orchestra_flwr import federation


def test_flower_can_be_imported_for_a_user_without_a_home(monkeypatch):
    """As in a container with a number for a user that no file of users knows."""

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("FLWR_HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    importlib.reload(federation)
    assert get_flwr_home() == Path(".flwr")
