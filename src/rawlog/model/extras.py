"""Extras: packages that only some verbs need, and the command that adds them to this installation."""

from __future__ import annotations

import json
import os
import sys

from rawlog.model.errors import AccessError


def missing(package: str, extra: str, *, otherwise: str = "") -> AccessError:
    """The error for a package that is not installed. `otherwise` is a way without it."""
    return AccessError(f"{package} is not installed").advise(
        f"{install_command(extra)}{f', or {otherwise}' if otherwise else ''}"
    )


def install_command(extra: str = "") -> str:
    """The command that installs rawlog again with an extra: by the tool that made this environment, from the same wheel or clone.

    Only an installation from an index can use the name `rawlog` alone. If the wheel or clone is gone, PLACE stands for it.
    """
    by_pipx = os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json"))
    place, option = _origin()
    return f'{"pipx install --force" if by_pipx else "pip install"} {option}"{place}{f"[{extra}]" if extra else ""}"'


def _origin() -> tuple[str, str]:
    """What was given to pip when rawlog was installed, and the option `-e ` for a clone that is used in place."""
    from importlib import metadata
    from urllib.parse import unquote, urlparse

    try:
        text = metadata.distribution("rawlog").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return "PLACE", ""
    if text is None:
        return "rawlog", ""
    origin = json.loads(text)
    url = urlparse(str(origin["url"]))
    if url.scheme != "file":
        return str(origin["url"]), ""
    path = unquote(url.path)
    option = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return (path, option) if os.path.exists(path) else ("PLACE", "")
