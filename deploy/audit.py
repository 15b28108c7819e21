"""Looks up every installed package in a database of known vulnerabilities, by pip-audit.

Exit code 0: nothing is known against them; 1: some are vulnerable, each is named; 2: the database
could not be reached, so that nothing is known at all. pip-audit itself would call that clean.
"""

import json
import subprocess
import sys

OWN = "orchestra-flwr"  # not published: there is nothing to look up


def main() -> int:
    """Prints the verdict; returns the exit code."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"error: the packages were not looked up: {last}", file=sys.stderr)
        return 2
    return verdict(packages)


def verdict(packages: list[dict]) -> int:
    """Prints what pip-audit found.

    Args:
        packages: its list of dependencies, as it writes them in JSON.

    Returns:
        The exit code.
    """
    packages = [each for each in packages if each["name"] != OWN]
    audited = [each for each in packages if "vulns" in each]
    missing = sorted(each["name"] for each in packages if "skip_reason" in each)
    if not audited:
        print(
            f"error: none of {len(packages)} packages could be looked up: "
            "is the advisory database within reach of this machine?",
            file=sys.stderr,
        )
        return 2
    vulnerable = [each for each in audited if each["vulns"]]
    for each in vulnerable:
        for flaw in each["vulns"]:
            fixed = ", ".join(flaw["fix_versions"]) or "no version yet"
            print(f"{each['name']} {each['version']}: {flaw['id']}, mended in {fixed}")
    print(f"{len(audited)} of {len(packages)} packages looked up, {len(vulnerable)} vulnerable")
    if missing:
        print(f"unknown to the database: {', '.join(missing)}")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
