"""Executors that are processes of their own: code and data must reach them by themselves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rawlog
from rawlog.spark.java import facade, find_java
from tests.golden_data import golden_path
from tests.services import die_with_parent, free_ports

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

# Takes the rawlog that is installed next to pytest away from every Python that sees it.
HIDING = """
import sys
sys.path[:] = [entry for entry in sys.path if entry != {source!r}]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", str(finder))]
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which Python finds no rawlog, by chance or otherwise."""
    folder = tmp_path_factory.mktemp("bare")
    hiding = folder / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(HIDING.format(source=str(SOURCE)))
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
def cluster(tmp_path_factory: pytest.TempPathFactory, bare: dict[str, str]) -> Iterator[str]:
    """A standalone master with one worker; its URL."""
    import pyspark

    folder = tmp_path_factory.mktemp("cluster")
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port, *others = free_ports(3)
    url = f"spark://127.0.0.1:{port}"
    master = [
        "org.apache.spark.deploy.master.Master",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--webui-port",
        str(others[0]),
    ]
    worker = [
        "org.apache.spark.deploy.worker.Worker",
        "--host",
        "127.0.0.1",
        "--cores",
        "2",
        "--memory",
        "1g",
        "--work-dir",
    ]
    worker += [str(folder / "work"), "--webui-port", str(others[1]), url]
    environment = {**bare, "JAVA_HOME": str(facade(find_java())), "SPARK_DAEMON_MEMORY": "256m"}
    processes = []
    try:
        for name, command in (("master", master), ("worker", worker)):
            with (folder / f"{name}.txt").open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        [spark_class, *command], env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT,
                        stdin=subprocess.DEVNULL, preexec_fn=die_with_parent,
                    )
                )  # fmt: skip
            mark, deadline = (
                {"master": "New state: ALIVE", "worker": "registered with master"}[name],
                time.monotonic() + 120,
            )
            while mark not in (text := (folder / f"{name}.txt").read_text(errors="replace")):
                assert time.monotonic() < deadline, text[-2000:]
                assert processes[-1].poll() is None, text[-2000:]
                time.sleep(0.1)
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(60)


@pytest.mark.slow
def test_a_verb_is_submitted_to_a_standalone_cluster(tmp_path: Path, bare: dict[str, str], cluster: str) -> None:
    """Neither driver nor executors have rawlog, but by the archive that `rawlog submit` makes."""
    conf = ["--conf", "spark.executor.memory=768m", "--conf", "spark.ui.enabled=false"]
    script = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from rawlog.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "submit", "--master", cluster, *conf, "query", "--json",
         "SELECT count(*) AS n, sum(java_hash(topic)) AS h FROM records", str(SEGMENTS)],
        env=bare, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    missing = subprocess.run(
        [sys.executable, "-c", script, "submit", "--master", cluster, *conf, "verify", str(tmp_path / "nowhere")],
        env=bare, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:3000]
    assert "INFO" not in done.stderr
    topic = "segments-by-size"
    hash = 0
    for letter in topic.encode():
        hash = (hash * 31 + letter) & 0xFFFFFFFF
    count = len(rawlog.read(SEGMENTS))
    assert json.loads(done.stdout) == {"n": count, "h": count * (hash - (1 << 32) * (hash >= 1 << 31))}
    assert missing.returncode == 3
    assert "nowhere: no such file or directory" in missing.stderr


@pytest.mark.slow
def test_a_job_with_a_master_brings_rawlog_to_the_cluster(tmp_path: Path, bare: dict[str, str], cluster: str) -> None:
    """`rawlog ingest --master spark://…` failed with "No module named 'rawlog'": only `submit` and queries sent the code."""
    conf = ["--conf", "spark.executor.memory=768m", "--conf", "spark.driver.memory=1g"]
    script = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from rawlog.cli import main; main()"
    lake = tmp_path / "lake"
    done = subprocess.run(
        [sys.executable, "-c", script, "ingest", str(SEGMENTS), "--to", str(lake), "--master", cluster, *conf, "--json"],
        env=bare, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    count = len(rawlog.read(SEGMENTS))
    assert json.loads(done.stdout)["tables"]["rawlog.records"] == count


def test_what_cannot_be_submitted_is_said() -> None:
    from click.testing import CliRunner

    from rawlog.cli import cli

    ran = CliRunner().invoke(cli, ["submit", "cat", "x"])
    assert (ran.exit_code, "no job for a cluster" in ran.stderr) == (2, True)
    ran = CliRunner().invoke(cli, ["submit", "verify", "x", "--master", "yarn"])
    assert (ran.exit_code, "goes before the verb" in ran.stderr) == (2, True)
