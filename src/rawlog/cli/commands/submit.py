"""`rawlog submit`: a verb on a cluster, through Spark's own spark-submit, and rawlog's code is sent with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import click

from rawlog.cli.errors import UNREADABLE
from rawlog.cli.options import examples
from rawlog.core.errors import AccessError, OptionError

# What runs on the driver. With the archive on its path, it needs rawlog installed nowhere.
# spark-submit sends all that it says to stdout, messages too: these go where ours go.
DRIVER = """\
import os
from contextlib import suppress

with suppress(KeyError, OSError):
    os.dup2(os.open(os.environ["RAWLOG_STDERR"], os.O_WRONLY | os.O_APPEND), 2)

from rawlog.cli import main

main()
"""
VERBS = ("query", "sql", "ingest", "verify", "convert", "compact", "rebuild", "repair", "restore", "diff", "report")


@click.command(
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
    pyarrow, NumPy and the codecs: installed there, or sent with --archives. The exit code is the verb's in client mode.
    """
    if verb not in VERBS:
        raise OptionError(f"{verb}: no job for a cluster; these are: {', '.join(VERBS)}")
    if "--master" in arguments:
        raise OptionError("--master goes before the verb")
    from rawlog.io.output import scratch
    from rawlog.spark.session import LOGGING
    from rawlog.spark.shipping import build

    with scratch("submit-") as folder:
        driver, archive = Path(folder, "rawlog_job.py"), Path(folder, "rawlog.zip")
        options = ["--py-files", str(archive), "--deploy-mode", deploy_mode, "--name", f"rawlog {verb}"]
        for name, value in (("--master", master or os.environ.get("SPARK_MASTER")), ("--archives", archives)):
            options += [name, value] if value else []
        if deploy_mode == "client":  # the driver's log is this terminal
            options += ["--driver-java-options", f"-Dlog4j2.configurationFile={folder}/log4j2.properties"]
        for setting in conf:
            options += ["--conf", setting]
        line = [_spark_submit(), *options, str(driver), verb, *arguments]
        build(archive)
        driver.write_text(DRIVER)
        Path(folder, "log4j2.properties").write_text(LOGGING)
        try:
            done = subprocess.run(line, env=_environment(), check=False)
        except OSError as error:
            raise AccessError(f"{line[0]}: {error.strerror or error}") from error
    ctx.exit(done.returncode if done.returncode >= 0 else UNREADABLE)


def _spark_submit() -> str:
    """The spark-submit of $SPARK_HOME, else of the installed PySpark. AccessError if there is none."""
    home = os.environ.get("SPARK_HOME")
    if home is None:
        from importlib.util import find_spec

        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise AccessError('Spark is not installed: `pip install "rawlog[spark]"`, or set SPARK_HOME')
        home = str(Path(spec.origin).parent)
    return str(Path(home, "bin", "spark-submit"))


def _environment() -> dict[str, str]:
    from rawlog.spark.java import facade, find_java

    return {**os.environ, "JAVA_HOME": str(facade(find_java())), "RAWLOG_STDERR": f"/proc/{os.getpid()}/fd/2"}
