"""CUDA graphs of PyTorch, played on the CPU: a capture records every operation and runs none; a replay runs them all
on the same memory. What the host decides is thus frozen, as it is in a graph."""

from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_map_only  # noqa: E402


class PlayedGraph:
    def __init__(self) -> None:
        self.steps: list[tuple[Any, Any, Any, list[Any]]] = []

    def replay(self) -> None:
        with torch.inference_mode():
            for function, args, kwargs, outputs in self.steps:
                results = tensors(function(*args, **kwargs))
                for output, result in zip(outputs, results, strict=True):
                    if output.data_ptr() != result.data_ptr():
                        output.copy_(result)


class Recording(TorchDispatchMode):
    def __init__(self, graph: PlayedGraph) -> None:
        super().__init__()
        self.graph, self.before = graph, {}

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket.__name__ == "_local_scalar_dense":
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        for argument, value in zip(function._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for one in tensors(value):
                    self.before.setdefault(one.data_ptr(), (one.detach(), one.detach().clone()))
        state = torch.get_rng_state()
        result = function(*args, **(kwargs or {}))
        torch.set_rng_state(state)
        # A replay reads the memory that the capture read, whatever tensor has it then.
        args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs or {}))
        self.graph.steps.append((function, args, kwargs, [one.detach() for one in tensors(result)]))
        return result


def tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [each for one in value for each in tensors(one)] if isinstance(value, tuple | list) else []


@contextmanager
def capture(graph: PlayedGraph, **_: Any) -> Any:
    recording = Recording(graph)
    with recording, mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True):
        yield
    with torch.inference_mode():
        for one, values in reversed(recording.before.values()):  # a view may be written after what it is of
            one.copy_(values)


class Stream:
    def wait_stream(self, other: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that captures on a GPU captures on the CPU."""
    from microbench.capture import blockers

    monkeypatch.setattr(torch.cuda, "CUDAGraph", PlayedGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**9, 10**9))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True), raising=False)
    monkeypatch.setattr(blockers, "GPU", "cpu")
