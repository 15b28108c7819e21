"""Users' packages that a server asks for: none is imported that the client does not allow."""

import json
import sys

import pytest

from orchestra_flwr.federation.messages.fields import CONFIG, METRICS

METHOD = '''
    """Which client this is, as its losses show."""

    import torch

    from orchestra_flwr.methods import StartsRounds, Step
    from orchestra_flwr.methods.simclr import SimCLR

    class Mine(StartsRounds, SimCLR):
        def start_round(self, received):
            self.index = received.index

        def loss(self, batch):
            step = super().loss(batch)
            index = -1.0 if self.index is None else float(self.index)
            return Step({**step.losses, "index": torch.tensor(index)}, step.features)
'''


class Package:
    """The user's package on this machine; importing it leaves a file behind."""

    def __init__(self, write, witness):
        self._write = write
        self._witness = witness

    def install(self, version=1):
        text = f'from pathlib import Path\n\nVERSION = {version}\nPath("{self._witness}").touch()\n'
        self._write({"__init__.py": text, "methods/mine.py": METHOD})

    def forget(self):
        """From here on it is as in a process that has not imported the package."""
        self._witness.unlink(missing_ok=True)
        for name in self.modules():
            del sys.modules[name]

    def was_imported(self):
        return self._witness.exists() or bool(self.modules())

    def modules(self):
        return [name for name in sys.modules if name.partition(".")[0] == "my_package"]


@pytest.fixture
def package(user_package, tmp_path):
    package = Package(user_package, tmp_path / "imported")
    package.install()
    return package


@pytest.fixture
def mine(package, configured):
    """A server whose method is a user's."""
    return configured("plugins=[my_package]", "method=mine")


@pytest.mark.parametrize("allowed", [[], ["plugins=[another]"]], ids=["none", "another"])
@pytest.mark.parametrize("kind", ["greet", "train", "evaluate"])
def test_what_a_client_does_not_allow_is_not_imported(
    worker, mine, said, package, user_package, ask, greeting, task, kind, allowed
):
    """When greeted, and when a server asks for another thing than it said then."""
    user_package({"__init__.py": ""}, package="another")
    content = greeting(mine) if kind == "greet" else task(mine)
    one = worker(*allowed)
    package.forget()
    answer = ask(one, kind, content)
    assert (answer[CONFIG]["refusal"] if kind == "greet" else answer["failure"]) == (
        "plugins_refused"
    )
    text = ",".join(a.removeprefix("plugins=[").removesuffix("]") for a in allowed)
    says = (
        f"the server asks for plugins=[my_package], this client allows plugins=[{text}]: "
        "install the packages here and start it with that setting if you trust them"
    )
    assert not package.was_imported()
    assert said[-1] == f"{'cannot take part' if kind == 'greet' else 'failed'}: {says}"


@pytest.mark.parametrize("plugins", [None, "my_package", {"my_package": 1}, [["my_package"]], 3])
def test_no_spelling_of_the_list_gets_round_it(worker, mine, said, package, ask, greeting, plugins):
    """A server that is not ours may send anything."""
    config = {**json.loads(mine.for_clients().to_json()), "plugins": plugins}
    content = greeting(mine, config=json.dumps(config))
    one = worker()
    package.forget()
    assert ask(one, "greet", content)[CONFIG]["refusal"] in {"plugins_refused", "settings_refused"}
    assert len(said) == 1 and "\n" not in said[0]
    assert not package.was_imported()


def test_what_a_client_allows_takes_part(worker, mine, said, ask, greeting, task):
    one = worker("plugins=[my_package]")
    assert ask(one, "greet", greeting(mine))[CONFIG]["images"] == 20
    assert said == ["takes part with 20 images of 16 x 16 pixels: mine, convnet, 20 rounds"]
    metrics = ask(one, "train", task(mine, index=7))[METRICS]
    assert metrics["loss/index"] == 7 and metrics["steps"] == 3


def test_a_client_without_a_number_trains_too(worker, mine, ask, task):
    """As in a federation of an earlier server: nothing else in a task is new."""
    metrics = ask(worker("plugins=[my_package]"), "train", task(mine))[METRICS]
    assert metrics["loss/index"] == -1


def test_a_client_may_allow_more_than_a_server_asks_for(worker, server, package, ask, greeting):
    one = worker("plugins=[my_package]")
    assert "refusal" not in ask(one, "greet", greeting(server))[CONFIG]


def test_another_version_of_a_package_is_refused(worker, mine, said, package, ask, greeting):
    content = greeting(mine)
    package.install(version=2)
    package.forget()
    one = worker("plugins=[my_package]")
    assert ask(one, "greet", content)[CONFIG]["refusal"] == "other_version"
    assert f"the server's model has schema {content[CONFIG]['schema']}, this " in said[-1]
    assert said[-1].endswith(
        ": install the same version of orchestra_flwr, and of my_package, on both"
    )
    assert "\n" not in said[-1]


def test_a_version_that_was_installed_while_a_client_runs_is_not_what_it_runs(
    worker, mine, said, package, ask, greeting, configured
):
    """The files are those of the server then, and what this process imported is not."""
    one = worker("plugins=[my_package]")
    assert "refusal" not in ask(one, "greet", greeting(mine))[CONFIG]
    package.install(version=2)
    assert ask(one, "greet", greeting(mine))[CONFIG]["refusal"] == "other_version"
    assert said[-1] == (
        "cannot take part: plugins=[my_package]: its files have changed since this client "
        "imported them: start the client again"
    )
    package.forget()
    mine = configured("plugins=[my_package]", "method=mine")
    assert "refusal" not in ask(worker("plugins=[my_package]"), "greet", greeting(mine))[CONFIG]


def test_a_package_that_is_allowed_and_cannot_be_imported_is_refused(
    worker, mine, said, package, user_package, ask, greeting
):
    content, one = greeting(mine), worker("plugins=[my_package]")
    user_package({"__init__.py": "raise RuntimeError('not on\\nthis board')"})
    package.forget()
    assert ask(one, "greet", content)[CONFIG]["refusal"] == "settings_refused"
    assert "my_package cannot be imported: RuntimeError: not on this board" in said[-1]
    assert "\n" not in said[-1]
