"""The wheels that `python -m benchmarks.gpu` needs beside torch, for a machine without a network: python -m benchmarks.gpu.wheels FOLDER

    [--python 3.12]   the machine's Python; it need not be the one that runs this

They are downloaded in the versions of constraints.txt, and checked: each requirement of a wheel is met by another one, or comes with torch.
"""

from __future__ import annotations

import argparse
import email
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from training.runtime.provenance import CHECKOUT

NAMES: Final = (
    *("numpy", "pydantic", "pydantic-core", "annotated-types", "typing-inspection", "PyYAML", "obstore", "safetensors"),
    # `training.spec` reads time zones, which a small image lacks.
    *("tzdata", "nvidia-ml-py", "duckdb"),
    *("pytest", "pluggy", "iniconfig", "packaging", "pygments"),
)
WITH_TORCH: Final = frozenset({"typing-extensions"})
"""Of what torch itself requires, what these wheels need."""
PLATFORMS: Final = (*(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17)), "manylinux2014_x86_64")
MAX_BYTES: Final = 52 * 2**20
"""With the checkout, below 64 MiB: what a machine is sent in one go."""


def download(folder: Path, python: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    target = ["--implementation", "cp", "--python-version", python, *platforms, "--dest", str(folder)]
    subprocess.run([*command, *target, "--constraint", str(CHECKOUT / "constraints.txt"), *NAMES], check=True)


def problems_of(folder: Path, python: str) -> list[str]:
    """Return what a folder of wheels lacks: wheels, requirements of wheels, or space."""
    version = tuple(map(int, python.split(".")))
    usable = {*cpython_tags(version, platforms=PLATFORMS), *compatible_tags(version, "cp" + python.replace(".", ""), PLATFORMS)}
    wheels, found = dict[NormalizedName, tuple[Path, Version]](), list[str]()
    for path in sorted(folder.glob("*.whl")):
        name, release, _, tags = parse_wheel_filename(path.name)
        wheels[name] = (path, release)
        found += [] if tags & usable else [f"{path.name} does not fit Python {python}"]
    found += [f"{name} is missing" for name in NAMES if canonicalize_name(name) not in wheels]
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "extra": "",
    }
    for path, _ in wheels.values():
        found += unmet(path, wheels, environment)
    num_bytes = sum(path.stat().st_size for path, _ in wheels.values())
    return found + ([f"{num_bytes:,} bytes are more than {MAX_BYTES:,}"] if num_bytes > MAX_BYTES else [])


def unmet(wheel: Path, wheels: Mapping[NormalizedName, tuple[Path, Version]], environment: Mapping[str, str]) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        lines = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    found = []
    for requirement in map(Requirement, lines):
        needed = canonicalize_name(requirement.name)
        if needed in WITH_TORCH or (requirement.marker is not None and not requirement.marker.evaluate(dict(environment))):
            continue
        if needed not in wheels:
            found.append(f"{wheel.name} requires {requirement}, which is missing")
        elif wheels[needed][1] not in requirement.specifier:
            found.append(f"{wheel.name} requires {requirement}, found {wheels[needed][1]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12")
    given = parser.parse_args()
    download(given.folder, given.python)
    problems = problems_of(given.folder, given.python)
    for problem in problems:
        print(problem, file=sys.stderr)
    paths = sorted(given.folder.glob("*.whl"), key=lambda path: -path.stat().st_size)
    for path in paths:
        print(f"{path.stat().st_size / 2**20:6.2f} MiB {path.name}")
    print(f"{sum(path.stat().st_size for path in paths) / 2**20:6.2f} MiB in all")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
