"""Interpreters to try the wheel with: those of this machine, and with RAWLOG_PYTHONS set those that are fetched.

CPython for Linux is on Maven Central, as a part of JavaCPP.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

from tests.services import jars

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
INSIDE = "org/bytedeco/cpython/linux-x86_64/"


class Interpreter(NamedTuple):
    """A program, and what its environment must have."""

    path: str
    environment: dict[str, str]


def interpreter(version: str) -> Interpreter | None:
    """A Python of a version; None if there is none here and none is to be fetched."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        bare = os.path.join(
            sys.base_prefix, "bin", f"python{version}"
        )  # not that of the virtual environment, which is not empty
        return Interpreter(bare if os.path.exists(bare) else sys.executable, {})
    here = shutil.which(f"python{version}")
    if here is not None:
        # A version manager's shim is a shell script: the test's empty PATH has no shell, so the program behind it is used.
        answer = subprocess.run(
            [here, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=False
        )
        if answer.returncode == 0 and answer.stdout.strip():
            return Interpreter(answer.stdout.strip(), {})
    if not os.environ.get("RAWLOG_PYTHONS"):
        return None
    jar = Path(jars.class_path(f"cpython-{version}"))
    folder = jars.cache_directory() / "pythons" / jar.stem
    if not folder.is_dir():
        stage = folder.with_name(f"{folder.name}.{os.getpid()}")
        with zipfile.ZipFile(jar) as archive:
            archive.extractall(stage, [name for name in archive.namelist() if name.startswith(INSIDE)])
        stage.rename(folder)
    program = folder / INSIDE / "bin" / f"python{version}"
    program.chmod(0o755)
    return Interpreter(str(program), {"LD_LIBRARY_PATH": str(folder / INSIDE)})
