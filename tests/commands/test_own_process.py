import shutil
import subprocess
import sys
from pathlib import Path

import orchestra_flwr
from orchestra_flwr.commands.own_process import own_process


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_it_gets_the_arguments_and_returns_the_exit_code():
    done = run(own_process("orchestra_flwr.cli:main", "--version"))
    assert done.returncode == 0 and done.stdout.startswith("orchestra-flwr "), done.stderr
    assert run(own_process("orchestra_flwr.cli:main", "--nonsense")).returncode == 2


def test_files_of_the_working_folder_are_not_imported(tmp_path):
    """Commands are called in folders of somebody's scripts, and of other versions."""
    for name in ("random", "signal", "json", "torch", "orchestra_flwr"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    done = run(own_process("orchestra_flwr.cli:main", "--version"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_it_runs_the_files_of_its_parent_where_another_version_is_installed(tmp_path):
    """As `python run_server.py` in a checkout; what lies beside it comes after Python's own."""
    checkout, installed = tmp_path / "checkout", tmp_path / "installed" / "orchestra_flwr"
    package = Path(orchestra_flwr.__file__).parent
    shutil.copytree(package, checkout / "orchestra_flwr", ignore=shutil.ignore_patterns("__py*"))
    (checkout / "orchestra_flwr" / "shown.py").write_text(
        "import sys, wave, beside\ndef show(): print(sys.argv[0])\n"
    )
    (checkout / "beside.py").touch()
    (checkout / "wave.py").write_text("raise SystemExit('the wrong one')")
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("raise SystemExit('the installed one')")
    program = f"""
import sys; sys.path.insert(0, {str(checkout)!r})
import orchestra_flwr.commands.own_process as own, subprocess
sys.exit(subprocess.call(own.own_process('orchestra_flwr.shown:show')))
"""
    done = run([sys.executable, "-c", program], env={"PYTHONPATH": str(installed.parent)})
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{checkout / 'orchestra_flwr' / 'shown.py'}\n"
