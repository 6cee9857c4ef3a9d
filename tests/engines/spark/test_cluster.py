"""Executors that are processes of their own: code and data must reach them by themselves."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rawlog
from rawlog.engines.spark.java import facade, find_java
from rawlog.lakes.lake import Lake
from rawlog.model.table import RECORDS
from tests.data.golden import golden_path
from tests.data.recordings import ingest, stored
from tests.data.spark_standalone import Gate, Standalone

if TYPE_CHECKING:
    from tests.services.s3 import S3Server

SEGMENTS = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")
SOURCE = Path(rawlog.__file__).parent.parent

JOB = """
import json, sys
sys.path.insert(0, sys.argv[3])  # for the driver alone: no process that Spark starts sees it
from rawlog.spark import register, session

spark = register(session("local-cluster[2,1,1024]"))
from pyspark.sql.functions import col, udf

def where(_):
    import os
    import rawlog
    return f"{os.getppid()} {rawlog.__file__}"

frame = spark.read.format("rawlog").option("splitSize", "4k").option("columns", "offset,key").load(sys.argv[1])
offsets = sorted(row.offset for row in frame.collect())
places = sorted({row[0] for row in frame.select(udf(where)(col("offset"))).distinct().collect()})
hashes = sorted(row[0] for row in frame.selectExpr("kafka_partition(cast(offset AS string), 9)").collect())
damaged = spark.read.format("rawlog").load(sys.argv[2])
try:
    damaged.count()
    error = ""
except Exception as problem:
    error = str(problem)
result = {"offsets": offsets, "tasks": frame.rdd.getNumPartitions(), "places": places, "error": error, "hashes": hashes}
print("RESULT " + json.dumps(result))
spark.stop()
"""

# Hides every rawlog that is installed from each Python that reads this.
HIDING = """
import os, sys
sys.path[:] = [entry for entry in sys.path if not os.path.isdir(os.path.join(entry, "rawlog"))]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", str(finder))]
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which Python finds no rawlog, by chance or otherwise."""
    folder = tmp_path_factory.mktemp("bare")
    hiding = folder / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(HIDING)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {"PYTHONPATH": str(hiding), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    there = subprocess.run(
        [sys.executable, "-c", "import rawlog"], env=environment, cwd=folder, capture_output=True, check=False
    )
    assert b"No module named 'rawlog'" in there.stderr
    return environment


@pytest.mark.slow
def test_code_and_data_reach_real_executors(tmp_path: Path, bare: dict[str, str]) -> None:
    """The driver finds rawlog where it is; the executors have only what was sent to them."""
    import pyspark

    script = tmp_path / "job.py"
    script.write_text(JOB)
    work = Path(pyspark.__file__).parent / "work"
    existed = work.exists()
    damaged = golden_path("replay", "damaged", "v2-hole.log")
    try:
        done = subprocess.run(
            [sys.executable, str(script), str(SEGMENTS), str(damaged), str(SOURCE)],
            env=bare,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    finally:
        if not existed:
            shutil.rmtree(work, ignore_errors=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    result = json.loads(lines[0].removeprefix("RESULT "))
    assert result["offsets"] == rawlog.read(SEGMENTS)["offset"].to_pylist()
    assert result["tasks"] > 4
    assert len(result["places"]) >= 2, "both executors took part"
    assert all("rawlog.zip" in place for place in result["places"]), "by the archive, not by an installed package"
    assert "v2-hole.log: byte 237: invalid key size" in result["error"]
    assert len(result["hashes"]) == len(result["offsets"])
    assert set(result["hashes"]) <= set(range(9))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, bare: dict[str, str]) -> Iterator[Standalone]:
    """A standalone master with two workers."""
    environment = {**bare, "JAVA_HOME": str(facade(find_java()))}
    with Standalone(tmp_path_factory.mktemp("cluster"), environment) as running:
        yield running


# Everything that can run on Spark, with paths relative to the driver's directory, which no executor has.
RELATIVE = """
import json, os, sys
sys.path.insert(0, sys.argv[2])
import rawlog
from rawlog.model.errors import AccessError
from rawlog.spark import session, sql

spark = session(sys.argv[1], {"spark.executor.memory": "768m"})
where = {"engine": "spark", "master": sys.argv[1]}
source = "data/segments-by-size-0"
done = {
    "query": [row["n"] for row in rawlog.query("SELECT count(*) AS n FROM records", "data", **where)],
    "verify": rawlog.verify(source, **where).verdict,
    "diff": rawlog.diff(source, "other/segments-by-size-0", **where).is_same,
    "ingest": rawlog.ingest("data", "lake", **where).is_whole,
    "lake": rawlog.lake("lake", compact=True, older_than="0s", **where).is_whole,
    "convert": rawlog.convert("data", "rows.parquet", to="parquet", **where).is_whole,
    "erase": rawlog.erase(source, "erased", key="seg0-0", **where).is_whole,
    "restore": rawlog.restore("data", "restored", **where).is_whole,
    "rescue": rawlog.rescue(["data", "other"], to="rescued", **where).is_whole,
    "report": rawlog.report(source, "report.html", **where) is not None,
}
for verb in ("repair", "rebuild", "compact"):
    done[verb] = getattr(rawlog, verb)(source, verb, **where).is_whole
done["sql"] = sql("SELECT max(offset) AS last FROM records", "data", spark).collect()[0].last
frame = spark.read.format("rawlog").option("columns", "offset").load("data")
done["source"] = [len(frame.limit(3).collect()), frame.count()]
stream = spark.readStream.format("rawlog").load(source)
writing = stream.writeStream.format("rawlog").option("to", "kafka").option("checkpointLocation", os.path.abspath("kept"))
query = writing.trigger(availableNow=True).start("streamed")
query.awaitTermination()
done["stream"] = rawlog.count("streamed")
spark.sparkContext.pythonExec = sys.argv[3]  # a Python that has nothing installed
try:
    list(rawlog.query("SELECT count(*) FROM records", "other", **where))
except AccessError as error:
    done["bare"] = str(error)
print("RESULT " + json.dumps(done))
spark.stop()
"""


@pytest.mark.slow
def test_every_verb_takes_relative_paths_on_a_cluster(
    tmp_path: Path, bare: dict[str, str], cluster: Standalone
) -> None:
    """`verify` with a relative path called all files damaged, because no executor found them; `readStream` failed where workers have no
    rawlog; a BrokenPipeError followed each query; and what a Python without pyarrow lacks was "Traceback (most recent call last):".
    """
    cluster.complete()
    for name in ("data", "other"):
        shutil.copytree(SEGMENTS, tmp_path / name / SEGMENTS.name)
    (tmp_path / "job.py").write_text(RELATIVE)
    empty = tmp_path / "python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    empty.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "job.py", cluster.url, str(SOURCE), str(empty)],
        env=bare, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    result = json.loads(lines[0].removeprefix("RESULT "))
    count = rawlog.count(SEGMENTS)
    assert "has no module" in result["bare"]
    assert "--archives" in result.pop("bare")
    assert result.pop("query") == [count]
    assert result.pop("verify") == "clean"
    assert result.pop("sql") == rawlog.read(SEGMENTS)["offset"].to_pylist()[-1]
    assert result.pop("source") == [3, count]
    assert result.pop("stream") == count
    assert all(result.values()), result
    assert rawlog.count(tmp_path / "rescued") == pq.read_metadata(tmp_path / "rows.parquet").num_rows == count
    assert "Traceback" not in done.stderr, done.stderr[-3000:]


@pytest.mark.slow
def test_what_a_cluster_lacks_is_said_while_spark_waits(
    tmp_path: Path, bare: dict[str, str], cluster: Standalone, s3: S3Server
) -> None:
    """Executors that cannot be placed, and an object store that only the driver finds, gave no message at all, or none with the reason."""
    cluster.complete()
    s3.filesystem().create_dir("waiting")
    with s3.filesystem().open_output_stream("waiting/t-0/00000000000000000000.log") as out:
        out.write((SEGMENTS / "00000000000000000000.log").read_bytes())
    others = {name: value for name, value in s3.environment.items() if name != "AWS_ENDPOINT_URL"}
    conf = [f"spark.executorEnv.{name}={value}" for name, value in others.items()]
    for path, more, words in (
        (str(SEGMENTS), ["spark.executor.memory=900g"], "no executor has started"),
        (
            "s3://waiting/t-0",
            ["spark.executor.memory=768m", *conf],
            "--conf spark.executorEnv.AWS_ENDPOINT_URL=http://127",
        ),
    ):
        script = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from rawlog.cli import main; main()"
        settings = [word for setting in more for word in ("--conf", setting)]
        running = subprocess.Popen(
            [sys.executable, "-c", script, "verify", path, "--master", cluster.url, *settings],
            env={**bare, **s3.environment}, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert running.stderr is not None
            lines: list[str] = []
            for line in running.stderr:
                lines.append(line)
                if words in line:
                    break
            assert words in lines[-1], lines
        finally:
            running.kill()
            running.communicate()


@pytest.mark.slow
def test_a_verb_is_submitted_to_a_standalone_cluster(tmp_path: Path, bare: dict[str, str], cluster: Standalone) -> None:
    """Neither driver nor executors have rawlog, but by the archive that `rawlog submit` makes. The executors' Python is in an archive, as
    the page on clusters shows it: the driver looked for it where only executors have it. And settings of `--conf` were overridden.
    """
    cluster.complete()
    (tmp_path / "env" / "bin").mkdir(parents=True)
    python = tmp_path / "env" / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "$PWD" >> {tmp_path}/ran\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "env" / "bin", "bin")
    shutil.rmtree(tmp_path / "env")
    shutil.copytree(SEGMENTS, tmp_path / "data" / SEGMENTS.name)
    bare = {**bare, "PYSPARK_PYTHON": "./env/bin/python"}
    conf = ["--conf", "spark.executor.memory=768m", "--conf", "spark.sql.session.timeZone=Asia/Tokyo"]
    script = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from rawlog.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "submit", "--master", cluster.url, *conf, "--archives", "env.tar.gz#env", "query",
         "--json", "SELECT count(*) AS n, sum(java_hash(topic)) AS h, current_timezone() AS z FROM records", "data"],
        env=bare, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:3000]
    assert (tmp_path / "ran").read_text().splitlines(), "the executors' Python is that of the archive"
    assert all(str(cluster.folder) in place for place in (tmp_path / "ran").read_text().splitlines())
    bare["PYSPARK_PYTHON"] = sys.executable
    missing = subprocess.run(
        [sys.executable, "-c", script, "submit", "--master", cluster.url, *conf, "verify", str(tmp_path / "nowhere")],
        env=bare, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:3000]
    assert "INFO" not in done.stderr
    topic = "segments-by-size"
    hash = 0
    for letter in topic.encode():
        hash = (hash * 31 + letter) & 0xFFFFFFFF
    count = len(rawlog.read(SEGMENTS))
    expected = {"n": count, "h": count * (hash - (1 << 32) * (hash >= 1 << 31)), "z": "Asia/Tokyo"}
    assert json.loads(done.stdout) == expected
    assert missing.returncode == 3
    assert "nowhere: no such file or directory" in missing.stderr


class Shop:
    """Logs in a bucket, and a lake to be filled from them by way of a gate.

    The first partition fills more than a row group, so a task has begun to write its data file when it asks for the log of the second one.
    That request waits at the gate: then a task is writing for as long as a test likes.
    """

    LATER = re.compile(rb"GET /shop/[^ ]*/orders-1/[0-9]{20}\.log ")

    def __init__(self, folder: Path, s3: S3Server, name: str) -> None:
        self.s3, self.url, self.lake = s3, f"s3://shop/{name}", folder / "lake"
        source = folder / "source"
        for partition, (count, repeats, codec) in enumerate(((700, 12_000, "zstd"), (50, 10, "none"))):
            rows = {
                "value": pa.array([b"%08d" % number * repeats for number in range(count)]),
                "timestamp": pa.array(range(0, count * 1000, 1000), RECORDS.schema.field("timestamp").type),
            }
            rawlog.write(source, pa.table(rows), format="kafka", topic="orders", partition=partition, codec=codec)
        store = s3.filesystem()
        store.create_dir("shop")
        for file in sorted(source.rglob("*")):
            if file.is_file():
                with store.open_output_stream(f"shop/{name}/{file.relative_to(source)}") as out:
                    out.write(file.read_bytes())

    def gate(self, attempts: int | None = None) -> Gate:
        """A gate for the log of the second partition; it opens by itself once so many attempts have begun to write."""

        def is_held(request: bytes) -> bool:
            begun = len(self.begun) if self.LATER.match(request) else 0
            if begun == attempts:
                gate.opened.set()
            return begun > 0

        gate = Gate(self.s3.port, is_held)
        return gate

    @property
    def begun(self) -> list[Path]:
        """The data files of `records` that exist, complete or not, in the lake or not."""
        return sorted((self.lake / "rawlog" / "records" / "data").rglob("*.parquet"))

    def ingest(self, port: int, environment: dict[str, str], *more: str) -> subprocess.Popen[str]:
        own = {**environment, **self.s3.environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        settings = {f"spark.executorEnv.{key}": value for key, value in own.items() if key.startswith("AWS_")}
        settings |= {"spark.executor.memory": "768m", "spark.driver.memory": "1g"}
        conf = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        script = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from rawlog.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", script, "ingest", self.url, "--to", str(self.lake), "--json", *conf, *more],
            env=own, cwd=self.lake.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def check(self, fresh: Path) -> None:
        """The lake has the rows of a lake that was filled undisturbed."""
        ingest(fresh, self.url)
        names = Lake(str(fresh)).tables()
        assert Lake(str(self.lake)).tables() == names
        assert {"rawlog.records", "kafka.records", "kafka.batches", "rawlog.files", "rawlog.findings"} <= set(names)
        for name in names:
            if name != "rawlog.jobs":
                assert stored(self.lake, name) == stored(fresh, name), name
        assert len(stored(self.lake, "rawlog.records")) == 750

    def unlisted(self) -> list[Path]:
        """Data files that no snapshot lists."""
        lake = Lake(str(self.lake))
        listed = {url.removeprefix("file://") for name in lake.tables() for url in lake.named(lake.load(name))}
        return sorted(path for path in self.lake.glob("*/*/data/**/*") if path.is_file() and str(path) not in listed)


def _finish(running: subprocess.Popen[str]) -> None:
    output, errors = running.communicate(timeout=300)
    assert running.returncode == 0, errors[-3000:]
    assert json.loads(output)["tables"]["rawlog.records"] == 750


@pytest.mark.slow
def test_a_task_that_runs_twice_at_once_is_in_the_lake_once(
    tmp_path: Path, bare: dict[str, str], cluster: Standalone, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With speculation, Spark starts a copy of a task that is slow, and both write. The one that loses may end after the run has, so that
    only `lake --remove-orphans` finds what it wrote.
    """
    cluster.complete()
    shop = Shop(tmp_path, s3, "twice")
    events = tmp_path / "events"
    events.mkdir()
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    conf = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    with shop.gate(attempts=2) as gate:
        running = shop.ingest(gate.port, bare, "--master", cluster.url, *conf)
        try:
            assert gate.opened.wait(300), "two attempts at one split have begun to write"
            _finish(running)
        finally:
            running.kill()
    events_seen = [json.loads(line) for file in events.rglob("events_*") for line in file.read_text().splitlines()]
    started = [one["Task Info"] for one in events_seen if one["Event"] == "SparkListenerTaskStart"]
    assert any(one["Speculative"] for one in started)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    rawlog.lake(shop.lake, remove_orphans=True, older_than="0s")
    assert shop.unlisted() == []
    shop.check(tmp_path / "fresh")


@pytest.mark.slow
def test_a_worker_that_is_killed_while_its_task_writes_changes_nothing(
    tmp_path: Path, bare: dict[str, str], cluster: Standalone, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its half of a data file is not part of the lake, another worker does the split again, and the end of the run removes the half.

    `rawlog ingest --master spark://…` once failed with "No module named 'rawlog'": only `submit` and queries sent the code.
    """
    cluster.complete()
    shop = Shop(tmp_path, s3, "killed")
    with shop.gate() as gate:
        running = shop.ingest(gate.port, bare, "--master", cluster.url)
        try:
            assert gate.arrived.wait(300), "a task waits for the second log"
            [half] = shop.begun
            with pytest.raises(pa.ArrowInvalid, match=r"[Pp]arquet"):
                pq.read_metadata(half)
            cluster.kill(_writer_of(half, cluster))
            gate.opened.set()
            _finish(running)
        finally:
            running.kill()
    assert not half.exists()
    assert shop.unlisted() == []
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    shop.check(tmp_path / "fresh")


def _writer_of(path: Path, cluster: Standalone) -> int:
    """The process below a worker that has a file open."""
    below = [one for worker in cluster.workers.values() for one in psutil.Process(worker.pid).children(recursive=True)]
    [found] = [one.pid for one in below if one.is_running() and str(path) in {file.path for file in one.open_files()}]
    return found


def test_what_cannot_be_submitted_is_said() -> None:
    from click.testing import CliRunner

    from rawlog.cli import cli

    ran = CliRunner().invoke(cli, ["submit", "cat", "x"])
    assert (ran.exit_code, "no job for a cluster" in ran.stderr) == (2, True)
    ran = CliRunner().invoke(cli, ["submit", "verify", "x", "--master", "yarn"])
    assert (ran.exit_code, "goes before the verb" in ran.stderr) == (2, True)
    ran = CliRunner().invoke(cli, ["submit", "--conf", "nonsense", "verify", "x"])
    assert (ran.exit_code, "K=V expected" in ran.stderr) == (2, True)
    ran = CliRunner().invoke(cli, ["submit", "--master", "nonsense", "verify", "x"])
    assert (ran.exit_code, "spark://" in ran.stderr) == (2, True)
    ran = CliRunner().invoke(cli, ["submit", "--master", "spark://h:1", "--deploy-mode", "cluster", "verify", "x"])
    assert (ran.exit_code, "always on this machine" in ran.stderr) == (2, True)


@pytest.mark.parametrize(("script", "code"), [("exit 1", 3), ("echo 1 > $RAWLOG_EXIT; exit 1", 1), ("kill -9 $$", 3)])
def test_a_verb_that_did_not_run_has_found_no_damage(
    script: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`submit` ended with 1, which means damage, also if spark-submit never came to run the verb: schedulers did not try again."""
    from click.testing import CliRunner

    from rawlog.cli import cli

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin" / "spark-submit").chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    ran = CliRunner().invoke(cli, ["submit", "--master", "local[1]", "verify", "x"])
    assert (ran.exit_code, "the verb did not run" in ran.stderr) == (code, code == 3)


def test_a_master_that_does_not_answer_is_named_at_once(tmp_path: Path, bare: dict[str, str]) -> None:
    """It took 74 seconds and ended with a line of py4j's."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"spark://127.0.0.1:{taken.getsockname()[1]}"
    script = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from rawlog.cli import main; main()"
    for words in (["verify", str(SEGMENTS), "--master", url], ["submit", "--master", url, "verify", str(SEGMENTS)]):
        done = subprocess.run(
            [sys.executable, "-c", script, *words], env=bare, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 3
        assert f"no Spark master answers at {url}" in done.stderr
