"""Handlers inside of a training run: torch.profiler's, Lightning's and transformers', with the real packages if they
are installed."""

from __future__ import annotations

import copy
import pickle
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest
from make_trace import kineto
from test_counts import program

import microbench as mb
from microbench.core.errors import UsageError
from microbench.library import recordings


class Profiler:
    """Writes a trace as torch.profiler does."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_bytes(self.data)


class Recorded:
    """In place of a Recording: says when it began and ended, and leaves a trace."""

    said: ClassVar[list[str]] = []
    fails = ""

    def __init__(self, path: object) -> None:
        self.path = Path(str(path))

    def __enter__(self) -> Recorded:
        if self.fails:
            raise UsageError(self.fails, "go on")
        self.said.append("begin")
        return self

    def __exit__(self, *_: object) -> None:
        self.said.append("end")
        self.path.write_bytes(kineto(program()))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(recordings, "Recording", Recorded)
    monkeypatch.setattr(Recorded, "said", [])
    monkeypatch.setattr(Recorded, "fails", "")
    return Recorded.said


def test_each_trace_of_a_profiler_is_kept_and_diagnosed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handle = mb.trace_handler(tmp_path / "new" / "traces")
    for _ in range(2):
        handle(Profiler(kineto(program())))
    assert len(list((tmp_path / "new" / "traces").glob("trace-*-[12].json"))) == 2
    shown = capsys.readouterr().err
    assert shown.count("verdict") == 2
    assert shown.count("recorded: ") == 2
    handle(Profiler(b"{"))
    assert "error" in capsys.readouterr().err.lower()


@pytest.mark.parametrize(("steps", "after", "expected"), [
    (2, 1, ["1", "begin", "2", "3", "end", "4", "5"]), (1, 0, ["begin", "1", "end", "2", "3", "4", "5"]),
    (9, 2, ["1", "2", "begin", "3", "4", "5", "end"]), (3, 5, ["1", "2", "3", "4", "5"]),
])  # fmt: skip
def test_a_window_of_steps_is_recorded(
    said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int, after: int, expected: list[str]
) -> None:
    window = recordings.Window(steps, after, tmp_path / "x.rows")
    for step in range(1, 6):
        window.begin_step()
        said.append(str(step))
        window.end_step()
    window.end()
    window.end()
    assert said == expected
    assert capsys.readouterr().err.count("verdict") == int("end" in expected)


def test_what_cannot_be_recorded_does_not_end_the_run(said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Recorded.fails = "no libcupti"
    window = recordings.Window(2, 0, None)
    for _ in range(3):
        window.begin_step()
        window.end_step()
    window.end()
    assert (said, capsys.readouterr().err.count("no libcupti")) == ([], 1)


@pytest.mark.parametrize(("steps", "after"), [(0, 0), (1, -1)])
def test_windows_without_steps_are_refused(steps: int, after: int) -> None:
    with pytest.raises(UsageError):
        recordings.Window(steps, after, None)


def test_without_the_package_the_next_step_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    for make in (mb.lightning_callback, mb.trainer_callback):
        with pytest.raises(UsageError, match="is not installed"):
            make()


@pytest.mark.parametrize(("package", "base", "make"), [
    ("pytorch_lightning", "Callback", mb.lightning_callback), ("transformers", "TrainerCallback", mb.trainer_callback),
])  # fmt: skip
def test_handlers_and_callbacks_can_be_sent_to_another_process(
    package: str, base: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As strategies that spawn processes do."""
    for name in ("lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, types.SimpleNamespace(**{base: type(base, (), {})}))
    for sent in (pickle.loads(pickle.dumps(make(steps=3, after=2))), copy.deepcopy(make(steps=3, after=2))):
        assert type(sent).__name__ == "Microbench"
        assert isinstance(sent, getattr(sys.modules[package], base))
    handler = pickle.loads(pickle.dumps(mb.trace_handler("traces", step="1ms")))
    assert handler.args == (Path("traces"), "1ms")


# With the real packages


@pytest.mark.filterwarnings("default")  # PyTorch's profiler warns, and crashes where that is an error
def test_the_handler_of_a_real_profiler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], on_trace_ready=mb.trace_handler(tmp_path),
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2),
    ) as profiler:  # fmt: skip
        for _ in range(8):
            torch.ones(3).sum()
            profiler.step()
    assert len(list(tmp_path.iterdir())) == 2
    assert capsys.readouterr().err.count("no work of an NVIDIA GPU") == 2


def test_a_real_trainer_of_lightning(said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lightning = pytest.importorskip("pytorch_lightning")
    import torch

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            said.append(str(number))
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = lightning.Trainer(
        max_steps=5, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        default_root_dir=tmp_path, callbacks=[mb.lightning_callback(steps=2, after=1, path=tmp_path / "x.rows")],
    )  # fmt: skip
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(8, 2)))
    assert said == ["0", "begin", "1", "2", "end", "3", "4"]


def test_a_real_trainer_of_transformers(said: list[str], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x: Any, labels: Any = None) -> Any:
            said.append("step")
            return {"loss": self.layer(x).sum()}

    options = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=1, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    data = [{"x": torch.ones(2), "labels": torch.ones(1)} for _ in range(8)]
    callback = mb.trainer_callback(steps=2, after=1, path=tmp_path / "x.rows")
    transformers.Trainer(Model(), options, train_dataset=data, callbacks=[callback]).train()
    assert said == ["step", "begin", "step", "step", "end", "step"]
