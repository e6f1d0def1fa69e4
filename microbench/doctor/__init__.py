"""What this machine can and cannot measure, and the next step: ``examine(environment)`` answers checks as data."""

from __future__ import annotations

from microbench.doctor.checks import examine
from microbench.doctor.report import Check, DoctorReport, State

__all__ = ["Check", "DoctorReport", "State", "examine"]
