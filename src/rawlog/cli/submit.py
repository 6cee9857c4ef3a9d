"""`rawlog submit`: a verb on a cluster, through Spark's own spark-submit, and rawlog's code is sent with it."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import click

from rawlog.cli.command import examples
from rawlog.engines.choice import settings as parse_settings
from rawlog.model.errors import AccessError, OptionError, missing

# What runs on the driver. With the archive on its path, it needs rawlog installed nowhere.
# spark-submit sends all that it says to stdout, messages too: these go where ours go.
DRIVER = """\
import os
from contextlib import suppress

with suppress(KeyError, OSError):
    os.dup2(os.open(os.environ["RAWLOG_STDERR"], os.O_WRONLY | os.O_APPEND), 2)
with suppress(KeyError, OSError):
    os.chdir(os.environ["RAWLOG_DIRECTORY"])

from rawlog.cli import main

try:
    main()
except SystemExit as end:
    with suppress(KeyError, OSError), open(os.environ["RAWLOG_EXIT"], "x") as file:
        file.write(str(end.code or 0))
    raise
"""
VERBS = ("query", "sql", "ingest", "verify", "convert", "compact", "rebuild", "repair", "restore", "diff", "report")


@click.command(
    "submit",
    short_help="Run a verb on a Spark cluster; rawlog's code is sent with it.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=examples(
        "rawlog submit --master spark://host:7077 ingest s3://backup/kafka-logs --to /shared/lake",
        "rawlog submit --master yarn --deploy-mode cluster --archives env.tar.gz#env verify /shared/kafka-logs",
    ),
)
@click.option(
    "--master", metavar="URL", help="spark://…, yarn, k8s://…  [default: $SPARK_MASTER, or as Spark is configured]"
)
@click.option("--deploy-mode", type=click.Choice(["client", "cluster"]), default="client", show_default=True)
@click.option("--conf", multiple=True, metavar="K=V", help="A setting of Spark; may be given again.")
@click.option("--archives", metavar="FILES", help="A packed Python environment for the executors: env.tar.gz#env.")
@click.argument("verb", metavar="VERB")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    master: str | None,
    deploy_mode: str,
    conf: Sequence[str],
    archives: str | None,
    verb: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a VERB on a cluster by spark-submit, and send rawlog's own code with it.

    Paths and lakes must be reachable from the cluster (s3://, or a file system that all machines share). The executors' Python needs
    pyarrow, NumPy and the codecs: installed there, or sent with --archives. The exit code is the verb's in client mode, and 3 if the verb
    did not run; in cluster mode it is 0, or 3 if the application failed.
    """
    if verb not in VERBS:
        raise OptionError(f"{verb}: no job for a cluster; these are: {', '.join(VERBS)}")
    if "--master" in arguments:
        raise OptionError("--master goes before the verb")
    settings = parse_settings(conf)
    master = master or os.environ.get("SPARK_MASTER") or settings.get("spark.master")
    _check_master(master, deploy_mode)
    from rawlog.engines.spark.session import (
        LOGGING,
        java_options,
        read_defaults,
        refuse_silence,
    )
    from rawlog.engines.spark.shipping import build
    from rawlog.io.output import scratch

    spark_submit = _spark_submit()
    refuse_silence(master or "")
    with scratch("submit-") as folder:
        driver, archive, ended = Path(folder, "rawlog_job.py"), Path(folder, "rawlog.zip"), Path(folder, "exit")
        options = ["--py-files", str(archive), "--deploy-mode", deploy_mode, "--name", f"rawlog {verb}"]
        for name, value in (("--master", master), ("--archives", _whole(archives))):
            options += [name, value] if value else []
        environment, directory = _environment(), None
        if deploy_mode == "client":  # the driver is on this machine, and its log is this terminal
            quiet = f"-Dlog4j2.configurationFile={folder}/log4j2.properties"
            java = (read_defaults() | settings).get("spark.driver.extraJavaOptions", "")
            options += ["--driver-java-options", java_options(quiet, java)]
            directory = _stand_in(Path(folder), environment)
            environment |= {"RAWLOG_EXIT": str(ended), "RAWLOG_DIRECTORY": os.getcwd()}
        for setting in conf:
            options += ["--conf", setting]
        line = [spark_submit, *options, str(driver), verb, *arguments]
        build(archive)
        driver.write_text(DRIVER)
        Path(folder, "log4j2.properties").write_text(LOGGING)
        try:
            done = subprocess.run(line, env=environment, cwd=directory, check=False)
        except OSError as error:
            raise AccessError(f"{line[0]}: {error.strerror or error}") from error
        if done.returncode and not ended.exists():  # 1 would mean that the verb has found damage
            what = "the verb did not run" if deploy_mode == "client" else "the application failed; its log says why"
            raise AccessError(f"spark-submit ended with exit code {done.returncode}: {what}")
        code = int(ended.read_text()) if ended.exists() else done.returncode
    ctx.exit(code)


def _check_master(master: str | None, deploy_mode: str) -> None:
    """OptionError for a master that spark-submit does not know, or that cannot run a driver in Python."""
    if master is None:
        return
    if master != "yarn" and not master.startswith(("spark://", "k8s://", "local")):
        raise OptionError(f"--master {master}: yarn, spark://…, k8s://… or local[N] expected")
    if deploy_mode == "cluster" and master.startswith(("spark://", "local")):
        raise OptionError(f"--deploy-mode cluster: the driver of {master} is always on this machine; leave it out")


def _whole(archives: str | None) -> str | None:
    """The paths of archives made absolute: spark-submit may run in another directory."""
    if archives is None:
        return None
    return ",".join(archive if "://" in archive else os.path.abspath(archive) for archive in archives.split(","))


def _stand_in(folder: Path, environment: dict[str, str]) -> str | None:
    """Let the driver run with this Python where $PYSPARK_PYTHON is inside the archives: the directory to start it in, if not this one.

    Spark unpacks archives for executors only, and starts the processes that plan a read on this machine by the same relative path. So the
    driver runs in a directory where that path is this Python.
    """
    from rawlog.engines.spark.session import driver_python

    environment.setdefault("PYSPARK_DRIVER_PYTHON", driver_python())
    named = environment.get("PYSPARK_PYTHON", "")
    if not os.path.dirname(named) or os.path.isabs(named) or os.path.exists(named):
        return None
    script = Path(folder, "driver", named)
    if not script.resolve().is_relative_to(folder.resolve()):
        raise OptionError(f"PYSPARK_PYTHON={named}: a path inside the archives expected, such as ./env/bin/python")
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(driver_python())} "$@"\n')
    script.chmod(0o755)
    return str(folder / "driver")


def _spark_submit() -> str:
    """The spark-submit of $SPARK_HOME, else of the installed PySpark. AccessError if there is none."""
    home = os.environ.get("SPARK_HOME")
    if home is None:
        from importlib.util import find_spec

        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise missing("Spark", "spark", otherwise="set SPARK_HOME")
        home = str(Path(spec.origin).parent)
    return str(Path(home, "bin", "spark-submit"))


def _environment() -> dict[str, str]:
    from rawlog.engines.spark.java import facade, find_java

    return {**os.environ, "JAVA_HOME": str(facade(find_java())), "RAWLOG_STDERR": f"/proc/{os.getpid()}/fd/2"}
