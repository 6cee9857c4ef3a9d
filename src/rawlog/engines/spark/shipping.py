"""rawlog sent with the job: an archive of its own code, for executors that do not have it installed.

Only rawlog itself, with the library of kernels if it was built: what it needs (pyarrow, the codecs) must be in the executors' Python,
see docs/spark-clusters.md.
`python -m rawlog.engines.spark.shipping OUT.zip` writes the archive for `spark-submit --py-files`.
"""

from __future__ import annotations

import os
import sys
import zipfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rawlog.engines.spark.session import is_connect, runs_here, scratch
from rawlog.io.output import writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE = str(__package__).partition(".")[0]  # not __name__: the module is also run as `__main__`
SUFFIXES = (".py", ".c", ".json", ".typed", ".so", ".js", ".css", "LICENSE")
#: A time that zip files can hold: archives of the same code are the same bytes.
EPOCH = (1980, 1, 1, 0, 0, 0)


def build(target: str | os.PathLike[str]) -> None:
    """Write the archive. AccessError if it is there already or cannot be written."""
    with writing(os.fspath(target)) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, resources.files(PACKAGE), PACKAGE)


def _add(archive: zipfile.ZipFile, folder: Any, name: str) -> None:
    for entry in sorted(folder.iterdir(), key=lambda entry: str(entry.name)):
        if entry.is_dir():
            if entry.name != "__pycache__":
                _add(archive, entry, f"{name}/{entry.name}")
        elif entry.name.endswith(SUFFIXES):
            about = zipfile.ZipInfo(f"{name}/{entry.name}", EPOCH)
            about.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(about, entry.read_bytes())


def ship(spark: SparkSession) -> None:
    """Send rawlog to the workers of a session, classic or Connect, where these are not on this machine alone; once a session."""
    if getattr(spark, "_rawlog_shipped", False) or runs_here(spark) or not Path(__file__).is_file():
        return  # not from an archive: then it was sent already
    archive = scratch() / f"{PACKAGE}.zip"  # executors may ask for it later
    if not archive.exists():
        build(archive)
    if is_connect(spark):
        spark.addArtifacts(str(archive), pyfile=True)
    else:
        path, context = list(sys.path), spark.sparkContext
        context.addPyFile(str(archive))
        sys.path[:] = path  # the driver goes on with the rawlog it has
        # The process that plans a stream is on this machine, and is not given the files that were added.
        context.environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(archive), context.environment.get("PYTHONPATH")))
        )
    vars(spark)["_rawlog_shipped"] = True


if __name__ == "__main__":
    build(sys.argv[1])
