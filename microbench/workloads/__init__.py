"""Steps of work described in a file, by a shipped example's name or by options: ``read`` and ``described``."""

from __future__ import annotations

from microbench.workloads.changed import TypedChanges, changes
from microbench.workloads.described import Options, described
from microbench.workloads.named import examples, read

__all__ = ["Options", "TypedChanges", "changes", "described", "examples", "read"]
