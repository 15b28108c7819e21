"""Commands of this package in processes of their own."""

import os
import sys
from pathlib import Path

# With `python -m`, files of the working folder would be found before Python's own of the same
# name; and the package may lie in a checkout while another version is installed, or none.
_PROGRAM = """\
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
place, *others = sys.argv.pop(1).split({separator!r})
spec = PathFinder.find_spec("orchestra_flwr", [place])
sys.modules["orchestra_flwr"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["orchestra_flwr"])
sys.path += [folder for folder in others if folder not in sys.path]
from {module} import {name}
sys.argv[0] = sys.modules["{module}"].__file__
sys.exit({name}())
"""


def own_process(function: str, *arguments: str) -> list[str]:
    """A command that runs `package.module:name` of this package, with arguments in `sys.argv`.

    It runs the files of this package that this process runs, and finds all that this process finds,
    such as a package of plug-ins, but what is installed first. The exit code is what the function
    returns.
    """
    module, _, name = function.partition(":")
    program = _PROGRAM.format(separator=os.pathsep, module=module, name=name)
    place = str(Path(__file__).parents[2])
    folders = [place, place, *(folder or str(Path.cwd()) for folder in sys.path)]
    return [sys.executable, "-P", "-c", program, os.pathsep.join(folders), *arguments]
