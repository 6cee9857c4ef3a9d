"""What is in a directory, to compare it with another one or with what it was before."""

from __future__ import annotations

import hashlib
from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a directory, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def digests(*folders: Path) -> list[dict[str, str]]:
    """The same for several directories with a hash of each file, for many or large ones."""
    return [{name: hashlib.sha256(data).hexdigest() for name, data in contents(one).items()} for one in folders]
