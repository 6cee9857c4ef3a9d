"""A real Chromium, driven by Playwright: the one of the machine, or Debian's package, which root can install.

Playwright's own browsers come from a host of their own; Debian's package comes from where all other packages of the machine do.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tests.services import Unavailable
from tests.services.jars import cache_directory

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium", "fonts-dejavu-core")  # without a font the text of a screenshot is boxes
INSTALL_SECONDS = 280


@cache
def executable() -> str:
    """The path of Chromium: that of $RAWLOG_TESTS_CHROMIUM, one on PATH, or that of the package, which is installed if need be."""
    if named := os.environ.get("RAWLOG_TESTS_CHROMIUM"):
        return named
    if found := _on_path():
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable(
            "no Chromium on PATH; install it (Debian: apt-get install chromium), or name it by $RAWLOG_TESTS_CHROMIUM"
        )
    folder = cache_directory()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "chromium.lock").open("ab") as lock:  # of several processes one installs it
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _on_path() or _installed()


def _on_path() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def _installed() -> str:
    """Install Debian's package."""
    wait = ("-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")
    asked = ["apt-get", "install", "--yes", "--no-install-recommends", *wait, *PACKAGES]
    settings = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        # Sources that cannot be reached make it fail even where Debian's own could be read: what counts is whether the install works.
        subprocess.run(
            ["apt-get", "update", *wait], env=settings, capture_output=True, timeout=INSTALL_SECONDS, check=False
        )
        done = subprocess.run(asked, env=settings, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{' '.join(asked[:2])} did not end: {error}") from error
    found = _on_path()
    if found is None:
        raise Unavailable(f"{' '.join(asked)}: {done.stderr.strip() or done.stdout.strip()}")
    return found


class Chromium:
    """A running browser."""

    def __init__(self) -> None:
        self._driver: Playwright | None = None
        self.browser: Browser | None = None

    def __enter__(self) -> Self:
        path = executable()
        try:
            from playwright.sync_api import Error, sync_playwright
        except ImportError as error:
            raise Unavailable(f"Playwright is not installed: {error}") from error
        self._driver = sync_playwright().start()
        # No sandbox: root cannot have one, and the pages are our own. The small /dev/shm of a container would end the browser.
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        try:
            self.browser = self._driver.chromium.launch(executable_path=path, args=options)
        except Error as error:
            self._driver.stop()
            raise Unavailable(f"{path} does not start: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.browser is not None:
            self.browser.close()
        if self._driver is not None:
            self._driver.stop()
