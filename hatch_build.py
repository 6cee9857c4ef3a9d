"""The wheel contains the library of kernels and the manual page, made when it is built: `rawlog.kernels.build`, `rawlog.cli.manual`."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

INSIDE = "rawlog/kernels/library.abi3.so"
GLIBC = "manylinux_2_17"
"""The library asks for no version of the C library at all; pip wants one to be named."""


class KernelsHook(BuildHookInterface):
    """Builds the library for a wheel; an editable installation leaves that to `make`."""

    def dependencies(self) -> list[str]:
        """What the manual page needs; a C compiler, if this machine has none: the ziglang wheel brings one."""
        return ["click>=8.4"] if not _built_here() or _has_compiler() else ["click>=8.4", "ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the manual page and the library, and name the platform in the wheel. RuntimeError if that cannot be done."""
        if version == "editable":
            return
        self._scratch = tempfile.TemporaryDirectory()
        manual = Path(self._scratch.name) / "rawlog.1"
        # pip makes its build environment by PYTHONPATH, which would be lost: `pip install CLONE` did not find click.
        path = os.pathsep.join([str(Path(self.root) / "src"), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONPATH": path}
        if subprocess.run(
            [sys.executable, "-m", "rawlog.cli.manual", str(manual)], env=environment, check=False
        ).returncode:
            raise RuntimeError("the manual page could not be made; see above")
        build_data["shared_data"][str(manual)] = "share/man/man1/rawlog.1"
        if not _built_here():
            return
        target = Path(self._scratch.name) / Path(INSIDE).name
        there = Path(self.root) / "src" / INSIDE
        if there.is_file():  # used again if it is of these sources
            target.write_bytes(there.read_bytes())
        command = [sys.executable, "-m", "rawlog.kernels.build", "--target", str(target)]
        done = subprocess.run(command, env=environment, check=False)
        if done.returncode or not target.is_file():
            raise RuntimeError("the library of kernels could not be built; see above")
        build_data["force_include"][str(target)] = INSIDE
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{GLIBC}_{platform.machine()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was made."""
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()


def _built_here() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


def _has_compiler() -> bool:
    from shutil import which

    return any(which(name) for name in ("cc", "gcc", "clang"))
