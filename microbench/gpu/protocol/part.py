"""Declares a part of a GPU (its graphs, links or compute) as a table with one line per operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

Subject = TypeVar("Subject")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Part(Generic[Subject]):
    """A part of a GPU. Its operations work on one subject: a case of the real GPU, or the simulated machine."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def subject(self) -> Subject:
        """The first argument of each operation."""
        return self._subject


def built(
    make: Callable[Concatenate[Subject, Arguments], Result],
) -> Callable[Concatenate[Part[Subject], Arguments], Result]:
    """A method that calls ``make``, a class or a function, with the subject in front of the caller's arguments.

    ``chain = built(CudaChain)`` equals ``def chain(self, kind, count): return CudaChain(self.subject(), kind, count)``,
    and mypy checks it against the protocol in the same way.
    """

    def operation(part: Part[Subject], /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return make(part.subject(), *args, **kwargs)

    return operation
