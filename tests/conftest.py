"""What every test may ask for: Hypothesis profiles, and real parts that start when the first test wants them and serve the whole run."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests import groups
from tests.services import Unavailable
from tests.times import long_tests, name_of, processor_time, record

T = TypeVar("T")

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from pyspark.sql import SparkSession

    from tests.services.iceberg import RestCatalog
    from tests.services.kafka import KafkaBroker
    from tests.services.s3 import S3Server

# Without bytecode every process that a test starts compiles rawlog again (0.6 s of processor time), and pytest every test (15 s).
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Whatever rawlog writes is synced to its disk, and that takes longer than all else: in memory, if there is enough of it. Tests run programs
# that they wrote.
MEMORY, ENOUGH = Path("/dev/shm"), 6 << 30
if (
    os.access(MEMORY, os.W_OK)
    and shutil.disk_usage(MEMORY).free > ENOUGH
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

if "PYTEST_XDIST_WORKER" in os.environ:
    # The last thing a worker does. What follows, the end of the interpreter, is when DuckDB's binding reports types of its own as leaked.
    atexit.register(os._exit, 0)

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)  # the first example may compile a kernel
settings.register_profile(
    "usual", derandomize=True, deadline=None, max_examples=50, database=None, suppress_health_check=SLOW
)
settings.register_profile("few", parent=settings.get_profile("usual"), max_examples=5)  # `make quick`
settings.register_profile("deep", deadline=None, max_examples=5000, print_blob=True, suppress_health_check=SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))

# What a test needs marks it, and a test without any of these marks is `quick`.
NEEDS = {
    "broker": {"kafka", "kafka_3", "kafka_4"},
    "spark": {"spark"},
    "browser": {"browser"},
    "service": {"s3", "rest_catalog"},
}
#: Directories whose tests have one mark.
ROOMS = {"spark": "spark", "lakes": "slow", "rescue": "slow", "startup": "slow", "hostile": "slow"}
#: Files that are long wherever they are. Single tests that are long are in `long.txt`.
LONG = re.compile(r"test_(random_\w+|\w+_random|kills|wheel|\w+_brokers)\.py")
#: `make quick` takes two cases of one test, spread over all of them, and of each file of wounds more, long or not; the others are `more`.
CASES = 2
SAMPLES = {"test_one_wound_one_answer": 3}
HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make quick` does not even import what it will not run."""
    if config.option.markexpr != "quick":
        return None
    return _room(collection_path) is not None or LONG.fullmatch(collection_path.name) is not None or None


def _room(path: Path) -> str | None:
    """The directory above a file that marks its tests."""
    folders = path.relative_to(HERE).parts if path.is_relative_to(HERE) else ()
    return next((folder for folder in folders if folder in ROOMS), None)


def _mark(items: list[pytest.Item]) -> None:
    """Mark tests by what they need, and those that need nothing as `quick`."""
    tests = defaultdict(list)
    for item in items:
        marks = {mark for mark, fixtures in NEEDS.items() if fixtures.intersection(getattr(item, "fixturenames", ()))}
        if room := _room(item.path):
            marks.add(ROOMS[room])
        name = name_of(item.nodeid)
        is_long = name in long_tests() and name.rpartition("::")[2] not in SAMPLES
        if is_long or LONG.fullmatch(item.path.name):
            marks.add("slow")
        if "[spark" in item.nodeid:
            marks.add("spark")
        for mark in sorted(marks):
            item.add_marker(mark)
        if not any(item.get_closest_marker(mark) for mark in (*NEEDS, "slow")):
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        step = -(-len(cases) // SAMPLES.get(name.rpartition("::")[2], CASES))
        for number, item in enumerate(cases):
            item.add_marker("more" if number % step else "quick")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _mark(items)
    if hasattr(config, "workerinput"):
        groups.arrange(items, Path(config.workerinput["groups"]))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker is told where to write which test is in which group."""
    node.workerinput["groups"] = str(groups.file_for(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> groups.Scheduler:
    """Groups are kept together, whatever `--dist` says."""
    return groups.Scheduler(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """`make times` records what each test takes."""
    start = processor_time()
    answer = yield
    if "RAWLOG_TIMES" in os.environ:
        record(item.nodeid, processor_time() - start)
    return answer


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores Ctrl-C for what it runs in the background, and children inherit it: those that tests interrupt would run on.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def needed() -> Iterator[None]:
    """What cannot be had fails in CI, where it must be had, and is skipped with its reason elsewhere."""
    try:
        yield
    except Unavailable as reason:
        if os.environ.get("CI"):
            pytest.fail(str(reason), pytrace=False)
        pytest.skip(str(reason))


@contextmanager
def running(service: AbstractContextManager[T]) -> Iterator[T]:
    """A service that ends with the block. If it cannot be had, that is as `needed` says; what the block itself raises is not."""
    with needed():
        started = service.__enter__()
    try:
        yield started
    finally:
        service.__exit__(None, None, None)


@pytest.fixture(scope="session")
def kafka_3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A running Kafka 3.9 broker, shared: make topics of your own."""
    from tests.services.kafka import KAFKA_3

    yield from _broker(KAFKA_3, tmp_path_factory)


@pytest.fixture(scope="session")
def kafka_4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A running Kafka 4.3 broker, shared: make topics of your own."""
    from tests.services.kafka import KAFKA_4

    yield from _broker(KAFKA_4, tmp_path_factory)


@pytest.fixture(params=["3", "4"])
def kafka(request: pytest.FixtureRequest) -> KafkaBroker:
    """Each of the two brokers in turn."""
    broker: KafkaBroker = request.getfixturevalue(f"kafka_{request.param}")
    return broker


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A running S3 server, shared: make buckets of your own."""
    from tests.services.s3 import S3Server

    with running(S3Server()) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A running Chromium: open contexts of your own. Playwright has an event loop running meanwhile, so it ends with the tests of a file:
    other tests run loops of their own.
    """
    from tests.services.chromium import Chromium

    with running(Chromium()) as chromium:
        assert chromium.browser is not None
        yield chromium.browser


@pytest.fixture(scope="session")
def rest_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    """A running Iceberg REST catalog, shared: use namespaces of your own, or drop what you made."""
    from tests.services.iceberg import RestCatalog

    server = RestCatalog(tmp_path_factory.mktemp("rest-catalog"))
    with running(server):
        yield server


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of the run, with the data source `rawlog` registered."""
    from importlib.util import find_spec

    from rawlog.engines.spark.session import session
    from rawlog.spark import register

    # Brief: every question is a new one, and optimised code would be for the next one like it (40 % of the JVM's processor time).
    master = os.environ.get("RAWLOG_TESTS_MASTER", "local[2]")
    active = session(master=master, conf={"spark.driver.memory": "2g"}, brief=True)
    if find_spec("rawlog.engines.spark.source"):
        register(active)
    yield active
    active.stop()


def _broker(version: str, factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    from tests.services.kafka import KafkaBroker

    broker = KafkaBroker(version, factory.mktemp(f"kafka-{version}"))
    with running(broker):
        yield broker
