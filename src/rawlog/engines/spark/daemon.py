"""Spark's worker daemon for embedded sessions: the same, with what kernels need imported before it forks.

Spark forks every Python worker from one daemon. What the daemon has imported costs a worker nothing: NumPy, and half a second for Numba
where kernels are not compiled ahead of time, each time a `limit` or an idle minute ended the last one. PyArrow must stay out: it starts
threads, which do not survive a fork.
Run as a script by the JVM, in place of `-m pyspark.daemon`; needs nothing of rawlog's.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from contextlib import suppress
from types import SimpleNamespace


def quiet_print_exc() -> None:
    """`traceback.print_exc`, but a reader that has seen enough is no error."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        traceback.print_exc()


def hush() -> None:
    """In a worker that Spark's own daemon forked, as on a cluster: print nothing about a reader that has seen enough.

    Spark closes the connection to a worker that planned a read before the worker has ended, so that each question left a traceback.
    """
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == "pyspark.daemon":
        vars(main)["traceback"] = SimpleNamespace(print_exc=quiet_print_exc, format_exc=traceback.format_exc)


def main() -> None:
    """Import what does not start threads, then be Spark's daemon."""
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        sys.path[0] = os.getcwd()  # as with -m: the modules next to this script are not to be found by their bare names
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.argv[1:] == ["pyspark.worker"]:  # not for those that only plan
        library = os.path.join(
            os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "kernels", "library.abi3.so"
        )
        with suppress(ImportError):
            import numpy  # noqa: F401

            if not os.path.exists(library):
                import numba  # noqa: F401
    from pyspark import daemon

    vars(daemon)["traceback"] = SimpleNamespace(print_exc=quiet_print_exc, format_exc=traceback.format_exc)
    gc.freeze()  # the collection after each task then looks only at what the task left
    daemon.manager()


if __name__ == "__main__":
    main()
