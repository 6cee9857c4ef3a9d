"""Jobs: work over many files, as plan, work and commit. Who runs them (`rawlog.engines`) is not known here."""

from __future__ import annotations

from rawlog.jobs.job import Done, Job, Outcome, Progress, Split, Stage

__all__ = ["Done", "Job", "Outcome", "Progress", "Split", "Stage"]
