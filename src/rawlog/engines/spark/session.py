"""A Spark session that is ready for rawlog: embedded by default, on a cluster or a Connect server if asked; and its errors as rawlog's.

Chooses settings and starts the JVM. The data source is registered by `source.py`, through `rawlog.spark.register`.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import logging
import os
import re
import shlex
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rawlog import registry
from rawlog.engines.spark.java import cache_directory, facade, find_java
from rawlog.engines.spark.java import java_options as archive_options
from rawlog.io.output import hold_scratch
from rawlog.model import errors
from rawlog.model.errors import AccessError, DataError, OptionError, RawlogError, missing, unknown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DEFAULT_MASTER = "local[*]"
#: The ports of Connect servers and standalone masters, where an address names none.
PORTS = {"sc": 15002, "spark": 7077}
#: What spark-submit sets for the driver that it starts.
SUBMITTED = "PYSPARK_GATEWAY_PORT"
#: Seconds that jobs may wait for the first executor before it is said, and between two looks.
PATIENCE, LOOK = 12.0, 1.0

log = logging.getLogger("rawlog.spark")

# No bounds check at each Arrow value on the JVM side: 8 to 13 % of a scan's work.
ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

# Only the quick compiler.
QUICK = " -XX:TieredStopAtLevel=1"

# What fails in a task reaches the caller as an exception; the same again in a log is noise on the user's terminal.
LOGGING = """\
rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
""" + "".join(
    f"logger.quiet{number}.name = {name}\nlogger.quiet{number}.level = off\n"
    for number, name in enumerate(
        (
            "org.apache.spark.executor.Executor",
            "org.apache.spark.scheduler.TaskSetManager",
            "org.apache.spark.sql.execution.datasources.v2",
            "org.apache.spark.api.python.PythonRunner",
            "org.apache.spark.util.Utils",
        )
    )
)

# Not by `spark.python.daemon.module`: the workers that plan a read do not take it, and it would have to be importable wherever tasks run.
PYTHON = """\
#!/bin/sh
# Written by rawlog: the Python below, with rawlog's daemon in place of Spark's.
if [ "$1" = -m ] && [ "$2" = pyspark.daemon ] && [ -f {daemon} ]; then shift 2; set -- {daemon} "$@"; fi
exec {python} "$@"
"""
DAEMON = Path(__file__).with_name("daemon.py")

# Settings that a session may take at any time, on any kind of master.
RUNTIME = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxBytesPerBatch": "4MB",
}


def session(
    master: str | None = None, conf: Mapping[str, str] | None = None, app_name: str = "rawlog", *, brief: bool = False
) -> SparkSession:
    """The active Spark session, or a new one on `master`: `local[*]`, `spark://host:port`, or `sc://host:port` for Spark Connect.

    Without `master`, $SPARK_REMOTE and $SPARK_MASTER are asked, then it is embedded in this process's machine with all its cores.
    `conf` goes over spark-submit's settings and spark-defaults.conf, and these go over rawlog's defaults. A `brief` session is for little
    work: an embedded JVM then does not optimise its code, which costs more than it gains in the first ten seconds. Raises AccessError if
    Spark or Java is missing or does not start, OptionError if a session with another master, or a setting that cannot change any more, is
    already there.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        otherwise = "--engine local without --master and --conf"
        raise missing("Spark", "spark", otherwise=otherwise) from error
    wanted = {key: str(value) for key, value in (conf or {}).items()}
    active = _active()
    if active is not None:
        return _reuse(active, master, wanted)
    target, remote = _target(master)
    place = target
    try:
        preset = _preset(target)
        place = target or preset.get("spark.master", "")
        refuse_silence(place)
        with _environment(target, remote), warnings.catch_warnings():
            # A Connect client sends its settings twice: to the server it starts, then to the session, which may no longer take them.
            warnings.filterwarnings("ignore", "Failed to set spark", UserWarning)
            builder = SparkSession.builder
            builder = builder.remote(target) if remote else builder.master(target) if target else builder
            for key, value in _settings(target, remote, wanted, preset, brief, app_name).items():
                builder = builder.config(key, value)
            spark = builder.getOrCreate()
    except AccessError:
        raise
    except Exception as error:
        raise AccessError(f"Spark did not start on {place or 'this cluster'}: {reason(error)}") from error
    _quiet_query_errors()
    if not is_connect(spark) and not is_local(place):
        threading.Thread(target=_watch_executors, args=(spark, place), name="rawlog-executors", daemon=True).start()
    return spark


def _active() -> SparkSession | None:
    """The session of this process, if there is one that was not stopped; the active one of the thread, if several."""
    module = sys.modules.get("pyspark.sql")
    if module is None:
        return None
    active: SparkSession | None = module.SparkSession.getActiveSession()
    if active is None:
        other = getattr(module.SparkSession, "_instantiatedSession", None)
        active = other if other is not None and other._sc._jsc is not None else None
    return active


def check_endpoint(spark: SparkSession, paths: Iterable[str]) -> None:
    """Warn once if paths are in an object store whose address only this machine knows: tasks would look for them at Amazon's, and give up
    after minutes with an error that does not name the reason.
    """
    names = [name for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") if os.environ.get(name)]
    if not names or is_connect(spark) or runs_here(spark) or not any(path.startswith("s3://") for path in paths):
        return
    context, name = spark.sparkContext, names[0]
    if getattr(spark, "_rawlog_endpoint", False) or context.getConf().contains(f"spark.executorEnv.{name}"):
        return
    vars(spark)["_rawlog_endpoint"] = True
    if not any(context.parallelize([names], 1).map(lambda wanted: any(map(os.environ.get, wanted))).collect()):
        setting = f"spark.executorEnv.{name}={re.sub(r'//[^/]*@', '//', os.environ[name])}"
        log.warning("%s is set here, but not for the executors, which will look elsewhere: --conf %s", name, setting)


def is_local(master: str) -> bool:
    """Whether a master means this machine only, executors and all."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def is_embedded(master: str | None = None) -> bool:
    """Whether `session(master)` runs in one JVM on this machine, which reads the same files as this process."""
    if (active := _active()) is not None:
        return runs_here(active)
    target, remote = _target(master)
    return not remote and (target == "local" or target.startswith("local["))


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a client of Spark Connect."""
    return ".connect." in type(spark).__module__


def runs_here(spark: SparkSession) -> bool:
    """Whether a session, tasks and all, runs in one JVM on this machine."""
    master = "" if is_connect(spark) else str(spark.conf.get("spark.master", ""))
    return master == "local" or master.startswith("local[")


def memory_size() -> int:
    """The bytes of memory this process may use: the machine's, or its container's if that is less."""
    sizes = [2 << 30]
    with suppress(AttributeError, OSError, ValueError):
        sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            sizes.append(int(Path(limit).read_text()))
    return min(sizes)


def _target(master: str | None) -> tuple[str, bool]:
    """Where to run and whether over Connect; an empty target leaves the choice to the spark-submit that started us."""
    if master:
        return master, master.startswith("sc://")
    if remote := os.environ.get("SPARK_REMOTE"):
        return remote, True
    if SUBMITTED in os.environ:
        return "", False
    return os.environ.get("SPARK_MASTER") or DEFAULT_MASTER, False


def refuse_silence(url: str) -> None:
    """AccessError if nothing listens at the address of a Connect server or a standalone master: Spark would go on asking for minutes."""
    scheme, _, rest = url.partition("://")
    if scheme not in PORTS:
        return
    error: Exception | None = None
    for address in rest.split(","):  # of masters there may be several, of which one is alive
        try:
            where = urlsplit(f"//{address}")
            socket.create_connection((where.hostname or "localhost", where.port or PORTS[scheme]), timeout=5).close()
            return
        except (OSError, ValueError) as problem:
            error = problem
    what = "Spark Connect server" if scheme == "sc" else "Spark master"
    shown = url.partition(";")[0]  # what follows in a Connect server's may be a token
    raise AccessError(f"no {what} answers at {shown}: {error}; is it running, and is the address right?") from error


def _watch_executors(spark: SparkSession, master: str) -> None:
    """Say it once if jobs wait and no executor starts: Spark itself waits for ever, and says so only in its log."""
    waited = 0.0
    with suppress(Exception):  # the session has ended
        context: Any = spark.sparkContext
        conf, tracker = context.getConf(), context._jsc.sc().statusTracker()
        while waited < PATIENCE:
            time.sleep(LOOK)
            if len(tracker.getExecutorInfos()) > 1:  # the driver is one
                return
            waited += LOOK if len(tracker.getActiveStageIds()) else 0
        cores = conf.get("spark.executor.cores")
        needs = f"{conf.get('spark.executor.memory', '1g')} of memory" + (f" and {cores} cores" if cores else "")
        log.warning(
            "no executor has started in %.0f s: each needs %s, and no worker of %s has that free, or workers cannot reach this machine. "
            "Ask for less with --conf spark.executor.memory=… and spark.executor.cores=…, or look at the cluster's page. Waiting …",
            waited, needs, master,
        )  # fmt: skip


def _preset(target: str) -> dict[str, str]:
    """The settings that the user made outside of rawlog: those of spark-submit, or else of spark-defaults.conf and $PYSPARK_SUBMIT_ARGS."""
    if target.startswith("sc://"):
        return {}
    if SUBMITTED in os.environ:
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    pairs = [word.partition("=") for option, word in pairwise(words) if option in ("--conf", "-c")]
    files = [word for option, word in pairwise(words) if option == "--properties-file"]
    return read_defaults(*files) | {key: value for key, _, value in pairs}


def read_defaults(file: str | None = None) -> dict[str, str]:
    """The settings of a properties file of Spark's, by default spark-defaults.conf; none if there is no such file."""
    home = os.environ.get("SPARK_HOME") or os.path.dirname(importlib.import_module("pyspark").__file__ or "")
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(home, "conf")
    settings = {}
    with suppress(OSError, UnicodeDecodeError):
        for line in Path(file or os.path.join(folder, "spark-defaults.conf")).read_text("utf-8").splitlines():
            match = re.fullmatch(r"\s*(spark\.[^\s=:]+)\s*[\s=:]\s*(.*?)\s*", line)
            if match is not None:
                settings[match[1]] = match[2]
    return settings


def _reuse(active: SparkSession, master: str | None, wanted: Mapping[str, str]) -> SparkSession:
    current = active.conf.get("spark.remote", None) or active.conf.get("spark.master", None)
    if master and current and master != current:
        raise OptionError(f"a Spark session on {current} is active: stop it before asking for one on {master}")
    for key, value in wanted.items():
        if active.conf.get(key, None) == value:
            continue
        if not active.conf.isModifiable(key):
            raise OptionError(f"{key} cannot change while a Spark session is active: stop it first")
        active.conf.set(key, value)
    return active


def _settings(
    target: str,
    remote: bool,
    wanted: Mapping[str, str],
    preset: Mapping[str, str] | None = None,
    brief: bool = False,
    app_name: str = "rawlog",
) -> dict[str, str]:
    """The settings to start with: what the user wants, and rawlog's defaults for what the user did not set anywhere."""
    name, preset = {"spark.app.name": app_name}, preset or {}
    if remote and target.startswith("sc://"):  # the server made its own choices
        return name | RUNTIME | dict(wanted)
    settings = (
        name
        | RUNTIME
        | {
            "spark.driver.extraJavaOptions": f'{ARROW} -XX:+UseParallelGC "-Dlog4j2.configurationFile={_logging_file()}"',
            "spark.executor.extraJavaOptions": ARROW,
            "spark.python.unix.domain.socket.enabled": str(os.name == "posix").lower(),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.warehouse.dir": (scratch() / "warehouse").as_uri(),
        }
    )
    if is_local(target):
        settings["spark.driver.extraJavaOptions"] += f" {archive_options(find_java())}{QUICK if brief else ''}"
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": f"{min(max(memory_size() // 4, 1 << 30), 8 << 30) >> 20}m",
            "spark.sql.shuffle.partitions": str(max(8, 4 * (os.cpu_count() or 1))),
        }
        if "SPARK_LOCAL_DIRS" not in os.environ:
            settings["spark.local.dir"] = tempfile.gettempdir()
    if families := os.environ.get(registry.VARIABLE):
        settings[f"spark.executorEnv.{registry.VARIABLE}"] = families
    for key in settings.keys() & preset.keys():
        if not key.endswith(".extraJavaOptions"):
            del settings[key]
    if not target:  # the driver's JVM runs already
        del settings["spark.driver.extraJavaOptions"]
    for key, value in {**preset, **wanted}.items():
        if key.endswith(".extraJavaOptions") and key in settings:
            settings[key] = java_options(settings[key], value)
        elif key in wanted:
            settings[key] = value
    return settings


def java_options(ours: str, theirs: str) -> str:
    """Options of a JVM, ours and the user's. Of two the last one counts, but a JVM does not start with two garbage collectors."""
    if re.search(r"-XX:\+Use\w+GC\b", theirs):
        ours = re.sub(r"-XX:\+Use\w+GC\b ?", "", ours)
    return f"{ours} {theirs}".strip()


@contextmanager
def _environment(target: str, remote: bool) -> Iterator[None]:
    """What the JVM inherits. Only the interpreter stays set: later workers ask for it."""
    os.environ.setdefault("PYSPARK_PYTHON", driver_python() if is_local(target) and not remote else sys.executable)
    changes: dict[str, str | None] = {}
    if not remote:
        changes["SPARK_REMOTE"] = None  # PySpark refuses a master next to it
    if not target.startswith("sc://") and SUBMITTED not in os.environ:
        changes["JAVA_HOME"] = str(facade(find_java()))
        # The launcher is a JVM of its own that lives for half a second.
        changes["SPARK_LAUNCHER_OPTS"] = os.environ.get(
            "SPARK_LAUNCHER_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        )
        # For what the JVM itself starts here, such as the look for sources; tasks elsewhere run $PYSPARK_PYTHON.
        changes["PYSPARK_DRIVER_PYTHON"] = os.environ.get("PYSPARK_DRIVER_PYTHON", driver_python())
        if is_local(target):
            changes["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
            if paths := _family_paths():
                changes["PYTHONPATH"] = os.pathsep.join((*paths, os.environ.get("PYTHONPATH", ""))).rstrip(os.pathsep)
    before = {name: os.environ.get(name) for name in changes}
    _put(changes)
    try:
        yield
    finally:
        _put(before)


def _family_paths() -> list[str]:
    """The directories from which this process imports families that the environment adds: workers on this machine need them too."""
    folders: dict[str, None] = {}
    for name in os.environ.get(registry.VARIABLE, "").split(","):
        package = name.strip().partition(".")[0]
        spec = importlib.util.find_spec(package) if package else None
        if spec is not None:
            places = spec.submodule_search_locations or ([spec.origin] if spec.origin else [])
            folders |= {os.path.dirname(os.path.abspath(place)): None for place in places}
    return list(folders)


def _quiet_query_errors() -> None:
    """Stop PySpark from printing the JSON twin of an exception that it raises anyway."""
    with suppress(ImportError):
        from pyspark.logger import PySparkLogger

        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            PySparkLogger.getLogger(name).disabled = True


def _put(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def driver_python() -> str:
    """The interpreter for workers on this machine: this one, started by a script, if there is a place for one."""
    script = PYTHON.format(daemon=shlex.quote(str(DAEMON)), python=shlex.quote(sys.executable))
    path = cache_directory() / "python" / f"python-{hashlib.blake2b(script.encode(), digest_size=6).hexdigest()}"
    if os.name != "posix":
        return sys.executable
    try:
        if not path.is_file() or path.read_text() != script or not os.access(path, os.X_OK):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = path.with_name(f"{path.name}.{os.getpid()}")
            draft.write_text(script)
            draft.chmod(0o755)
            draft.replace(path)
    except OSError:
        return sys.executable
    return str(path)


@cache
def scratch() -> Path:
    """A directory for what Spark would otherwise leave in the working directory; gone when Python ends."""
    held = hold_scratch("spark-")
    atexit.register(held.close)
    return Path(held.path)


def _logging_file() -> str:
    path = scratch() / "log4j2.properties"
    path.write_text(LOGGING)
    return re.sub(r'["\\]', r"\\\g<0>", str(path))


# Spark's errors as rawlog's ------------------------------------------------------------------------------------------------------

#: Spark's errors about what was asked: syntax and access rules, data that an expression cannot take.
_ASKED = re.compile(r"SQLSTATE: (?:42|22|0A|21|2B|54)")
_RAISED = re.compile(r"^rawlog\.errors\.(\w+): (.*)", re.MULTILINE)
_CONDITION = re.compile(r"\[([A-Z][A-Z_0-9]+(?:\.[A-Z_0-9]+)?)\] ")
_FRAME = re.compile(r"^\s+at |^Caused by|^\s*\.\.\. \d+ more", re.MULTILINE)

_TRACEBACK = "Traceback (most recent call last)"
_CLASS = re.compile(r"^(?:[\w$]+\.)+[\w$]+(?:Exception|Error): ")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")

Names = Callable[[], Collection[str]]


class translated:  # noqa: N801
    """A block in which Spark's errors become rawlog's. `tables`, `columns` and `functions` are asked for the names that there are."""

    def __init__(self, tables: Names = list, columns: Names = list, functions: Names = list) -> None:
        self.names = {"table": tables, "column": columns, "function": functions}

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, RawlogError):
            raise self.of(error) from error

    def of(self, error: Exception) -> RawlogError:
        """The error of ours that an error of Spark carries."""
        text = str(error)
        if (raised := _raised_error(text)) is not None:
            return raised
        if _TRACEBACK in text:
            return AccessError(f"Spark failed: {reason(error)}")
        condition = error.getCondition() if hasattr(error, "getCondition") else None
        if condition is None and (match := _CONDITION.search(text)):  # inside a stack trace
            condition, text = match[1], text[match.start() :]
            text = text[: frame.start()] if (frame := _FRAME.search(text)) else text
        line = re.sub(r"^\[[\w.]+\] ", "", text.strip().partition("\n")[0])
        line = re.sub(r"\s*SQLSTATE: \w+.*", "", line).strip().removesuffix(".")
        where = re.search(r"\(?line (\d+),? pos(?:ition)? (\d+)\)?", text)
        place = f" (line {where[1]}, column {int(where[2]) + ('pos ' in where[0])})" if where else ""
        if (named := self._unknown_name(condition or "", line)) is not None:
            return OptionError(f"{named}{place}")
        if _ASKED.search(text) or (condition or "").startswith("PARSE"):
            return OptionError(f"Spark cannot answer this: {line}{place}")
        return AccessError(f"Spark failed: {line or type(error).__name__}")

    def _unknown_name(self, condition: str, line: str) -> OptionError | None:
        """The complaint about a name that is not there, with the nearest of those that are."""
        kinds = {"TABLE_OR_VIEW_NOT_FOUND": "table", "UNRESOLVED_ROUTINE": "function", "UNRESOLVED_COLUMN": "column"}
        kind = kinds.get(condition.partition(".")[0])
        quoted = re.search(r"(?:`[^`]+`\.?)+", line)
        if kind is None or quoted is None:
            return None
        name, names = quoted[0].replace("`", ""), self.names[kind]()
        if kind == "column" and "." in name and name not in names:
            name = name.rpartition(".")[2]
        return unknown(kind, name, names) if names else None


def reason(error: BaseException) -> str:
    """Why Spark failed: the error of a Python traceback inside, else the message of the Java exception; and what to do, if known."""
    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return "its JVM has ended"
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip(": \t")]
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception")) and ": " in line]
    inner = [line for line in errors if not line.startswith(("py4j.", "org.", "java.", "Caused by"))]
    line = (inner or errors or lines or [type(error).__name__])[0]
    if (missing := _NO_MODULE.match(line)) is not None:
        return (
            f"the Python that Spark starts ({os.environ.get('PYSPARK_PYTHON', 'python3')}) has no module {missing[1]}: install what rawlog "
            f"needs there, or send an environment with --archives (docs/spark-clusters.md)"
        )
    return _CLASS.sub("", line)


def _raised_error(text: str) -> RawlogError | None:
    """The error that our own code raised inside a Python worker of Spark's, from the traceback."""
    matches = list(_RAISED.finditer(text))
    if not matches:
        return None
    match = matches[-1]
    kind = getattr(errors, match[1], None)
    if not (isinstance(kind, type) and issubclass(kind, RawlogError)):
        return None
    if issubclass(kind, DataError):
        context = list(_hex_lines(text[match.end() :].lstrip("\n").split("\n")))
        return kind(match[2], context="\n".join(context) or None)
    return kind(match[2])


def _hex_lines(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if not re.match(r"\s+[\d,]+  [0-9a-f]{2} ", line):
            return
        yield line
