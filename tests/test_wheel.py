"""The wheel as people get it: it contains the library of kernels and the manual, and works without numba, on every Python."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from rawlog import kernels
from tests.services import pythons

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


pytestmark = pytest.mark.skipif(
    kernels.MODE != "library" and not os.environ.get("CI"), reason=f"no library of kernels: {kernels.WHY_NOT}"
)


def test_one_wheel_serves_every_python_from_3_11_on(wheel: Path) -> None:
    assert wheel.name.endswith("-cp311-abi3-manylinux_2_17_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert f"rawlog/kernels/{kernels.LIBRARY}" in archive.namelist()
        manual = next(name for name in archive.namelist() if name.endswith(".data/data/share/man/man1/rawlog.1"))
        assert archive.read(manual).startswith(b".TH RAWLOG 1")
        text = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
    required = [line for line in text.splitlines() if line.startswith("Requires-Dist: numba")]
    assert required
    assert all("extra ==" in line or "platform_machine" in line for line in required)


def test_the_same_sources_give_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """In another directory, with other times and modes of files."""
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src", tmp_path / "src", copy_function=shutil.copyfile)
    for path in (tmp_path / "src").rglob("*.py"):
        path.chmod(0o600)
        os.utime(path, (1, 1_700_000_001))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "again"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()


def test_it_runs_where_numba_is_not_installed(wheel: Path, tmp_path: Path) -> None:
    """An environment that has only what the wheel names: the packages of this one, less numba, are found by a path file."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    place = next((tmp_path / "env" / "lib").glob("python3*")) / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    ours = Path(kernels.__file__).parents[1]
    for path in {Path(one) for one in sys.path if one.endswith("site-packages")}:
        for entry in path.iterdir():
            hidden = entry.name.partition("-")[0].lower() in ("numba", "llvmlite", "rawlog") or entry.suffix == ".pth"
            if not hidden and not (place / entry.name).exists():
                (place / entry.name).symlink_to(entry)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAWLOG_KERNELS")}
    program = (
        "import rawlog, sys; from rawlog import kernels; assert kernels.MODE == 'library', kernels.WHY_NOT\n"
        f"assert not rawlog.__file__.startswith({str(ours)!r})\n"
        "print(rawlog.count('samples/kafka'), 'numba' in sys.modules)"
    )
    done = subprocess.run(
        [python, "-W", "error", "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    number, loaded = done.stdout.split()
    assert int(number) > 100
    assert loaded == "False"


#: What a newcomer does first: look, check, repair, query, and whatever else needs no Java.
FIRST = (
    "doctor",
    "query 'SELECT count(*) AS n FROM records WHERE offset > 3' samples/kafka --engine duckdb",
    "cat samples/ambry --limit 2",
    "explain samples/kafka/codec-zstd-0 --offset 5",
    "verify samples/rocketmq",
    "repair samples/kafka/codec-gzip-0 {out}/repaired/codec-gzip-0",
    "convert samples/kafka {out}/rows.parquet --to parquet --topic codec-lz4",
    "restore samples/kafka {out}/restored --topic codec-none",
)


def requirements(wheel: Path) -> list[str]:
    """What the wheel asks for, with DuckDB."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
    lines = [line.removeprefix("Requires-Dist: ") for line in text.splitlines() if line.startswith("Requires-Dist: ")]
    return [line for line in lines if "extra ==" not in line] + [
        line.partition(";")[0] for line in lines if line.endswith("extra == 'duckdb'")
    ]


@pytest.mark.parametrize("resolution", ["highest", "lowest-direct"])
@pytest.mark.parametrize("version", pythons.VERSIONS)
def test_look_check_and_repair_in_an_empty_environment(
    version: str, resolution: str, wheel: Path, tmp_path: Path
) -> None:
    """Only what the wheel asks for is installed, and there is no Java. `make pythons` fetches the interpreters that are not here.

    With the oldest versions, nothing ran: the bounds promised click 8.1, pyarrow 19, sqlglot 26 and DuckDB 1.2, and nobody had tried.
    """
    if resolution != "highest" and version != "3.11" and not os.environ.get("RAWLOG_PYTHONS"):
        pytest.skip("`make pythons` tries the oldest requirements on each Python")
    python = pythons.interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine; `make pythons` fetches one")
    environment = {
        "PATH": str(tmp_path),
        "HOME": str(tmp_path),
        "PYTHONPATH": str(tmp_path / "env"),
        **python.environment,
    }
    install = [
        shutil.which("uv", path=str(Path(sys.executable).parent)),
        "pip",
        "install",
        "--quiet",
        "--python",
        python.path,
        "--only-binary",
        ":all:",
        "--resolution",
        resolution,
    ]
    subprocess.run(
        [*install, "--target", tmp_path / "env", wheel, *requirements(wheel)],
        env={**os.environ, **python.environment},
        check=True,
    )
    for command in FIRST:
        words = [word.format(out=tmp_path) for word in shlex.split(command)]
        done = subprocess.run(
            [python.path, "-W", "error", "-m", "rawlog", *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    assert not list((tmp_path / "env").glob("numba*"))


@pytest.mark.skipif(not os.environ.get("RAWLOG_PYTHONS"), reason="packs all golden data; `make pythons` runs it")
def test_the_source_archive_has_what_a_build_needs(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "Dockerfile", "docs/pictures/tour.svg"} <= names
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py")}
    assert sources <= names


def test_the_dockerfile_passes_hadolint() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None and not os.environ.get("CI"):
        pytest.skip("hadolint is not installed")
    done = subprocess.run([str(hadolint), "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
