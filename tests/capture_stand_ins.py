"""Stand-ins of stream capture: launches go to the graph; a refused capture is broken, but it ends."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

STREAM = 0xABC0


class Code(int):
    """A CUresult."""

    name = "CUDA_ERROR_STAND_IN"


OK, BAD = Code(0), Code(700)


Launch = tuple[str, int, tuple[Any, ...]]


class Launches(list[Launch]):
    """Launches of the stand-ins: library, stream, arguments. During a capture they go to ``captured``.

    With a ``refusal`` a captured launch raises it and breaks the capture: ending it is an error as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.captured: list[Launch] | None = None
        self.broken = False
        self.refusal: Exception | None = None
        self.graphs: list[str] = []

    def add(self, library: str, stream: int, *arguments: Any) -> None:
        if self.captured is None:
            self.append((library, stream, arguments))
            return
        if self.refusal is not None:
            self.broken = True
            raise self.refusal
        self.captured.append((library, stream, arguments))

    def begin_capture(self) -> None:
        assert self.captured is None
        self.captured, self.broken = [], False

    def end_capture(self) -> list[Launch] | None:
        """What was captured, None after a broken capture, which has ended all the same."""
        captured, self.captured = self.captured, None
        return None if self.broken else captured


def driver_graph_stand_ins(launches: Launches) -> dict[str, Any]:
    """Stream capture. A graph is the list of its launches; ``launches.graphs`` records what happens to graphs."""

    def begin(stream: int, mode: str) -> tuple[Code]:
        assert (stream, mode) == (STREAM, "relaxed")
        launches.begin_capture()
        return (OK,)

    def end(stream: int) -> tuple[Code, Any]:
        assert stream == STREAM
        graph = launches.end_capture()
        return (BAD if graph is None else OK), graph

    def recording(act: str) -> Callable[..., tuple[Code]]:
        def tell(*handles: Any) -> tuple[Code]:
            launches.graphs.append(act)
            return (OK,)

        return tell

    def replay(graph: list[Launch], stream: int) -> tuple[Code]:
        assert stream == STREAM
        launches.extend(graph)
        return (OK,)

    return {
        "CUstreamCaptureMode": SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed"),
        "CUgraph": lambda address: address,
        "cuStreamBeginCapture": begin,
        "cuStreamEndCapture": end,
        "cuGraphGetNodes": lambda graph: (OK, None, len(graph)),
        "cuGraphInstantiate": lambda graph, flags: (OK, list(graph)),
        "cuGraphUpload": recording("upload"),
        "cuGraphLaunch": replay,
        "cuGraphDestroy": recording("destroy"),
        "cuGraphExecDestroy": recording("destroy executable"),
    }


class CoreError(Exception):
    """cuda.core's error, which is no RuntimeError."""


class CoreStream(int):
    """A stream of cuda.core: its handle, and builders of graphs on it."""

    def __new__(cls, handle: int, launches: Launches) -> CoreStream:
        made = super().__new__(cls, handle)
        made.launches = launches
        return made

    def create_graph_builder(self) -> CoreBuilder:
        return CoreBuilder(self)


class CoreBuilder:
    """A graph builder of cuda.core: closing it ends its capture, which is an error if the capture is broken."""

    def __init__(self, stream: CoreStream) -> None:
        self.stream, self.launches = stream, stream.launches
        self.building, self.graph = False, None
        self.graph_definition = SimpleNamespace(nodes=lambda: set(range(len(self.graph))))

    def begin_building(self) -> CoreBuilder:
        self.launches.begin_capture()
        self.building = True
        return self

    def end_building(self) -> CoreBuilder:
        self.building, self.graph = False, self.launches.end_capture()
        if self.graph is None:
            raise CoreError("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")
        return self

    def complete(self) -> SimpleNamespace:
        graph, tell, stream = list(self.graph), self.launches.graphs.append, self.stream

        def launch(where: CoreStream) -> None:
            assert where is stream
            self.launches.extend(graph)

        return SimpleNamespace(
            upload=lambda where: tell("upload"), launch=launch, close=lambda: tell("destroy executable")
        )

    def close(self) -> None:
        if self.building:
            self.end_building()
        self.launches.graphs.append("destroy")
