"""`microbench graph` without PyTorch: its screens, its change of a file, and what it refuses."""

import subprocess
from pathlib import Path

import pytest
from command_line import call
from snapshots import same

from microbench.capture.handover import change, change_parts, why_not_applied
from microbench.capture.making import Asked, Made, Report, Stop, Times
from microbench.core.errors import UsageError
from microbench.library import graphs
from microbench.library.graphs import make_graph, write_change


def proved() -> Report:
    return Report(
        stage="times", gpu="NVIDIA H100 80GB HBM3", proved=True, exact=True, calls=200, inputs=5, outputs=3, state=414,
        varied=["tokens", "optimizer.param_groups[0]['lr']"], left=["mask"], counts={"replays": 197},
        times=[Times("eager", 4.81e-3, 4.7e-3, 5e-3), Times("graph", 1.39e-3, 1.38e-3, 1.4e-3),
               Times("torch.compile, default", 2.1e-3, 2e-3, 2.2e-3, ratio=2.3),
               Times("torch.compile, reduce-overhead", 1.2e-3, 1.1e-3, 1.3e-3, "2 without a CUDA graph", 4.01)],
        ratio=(3.46, 3.3, 3.6), capture_s=0.0136, memory_bytes=24 << 20,
    )  # fmt: skip


def blocked() -> Report:
    stops = [
        Stop("capturable", "", "AdamW.step", "its step count is on the host", "give the optimizer capturable=True", 1),
        Stop("item", "train.py:88 in step: history.append(loss.item())", "local_scalar_dense",
             "the host waits for a value of the GPU", "keep the tensor, and read it after the loop", 3),
    ]  # fmt: skip
    rest, eager = Times("rest", 1.8e-3, 1.7e-3, 1.9e-3), Times("eager", 9.1e-3, 9e-3, 9.4e-3)
    compiled = Times("torch.compile, default", 6.2e-3, 6e-3, 6.4e-3, "graph breaks of 2 kinds", 1.47)
    return Report(stage="the rest", gpu="NVIDIA H100 80GB HBM3", blockers=stops, rest=rest, times=[eager, compiled])


def within_a_library() -> Report:
    """Calls of one file of a library are one thing to change."""
    stops = [
        Stop("sizes", "speak.py:34 in say: self.model(ids)", call, "the size of the result depends on values",
             "look in transformers for an option or a newer version without it; else keep the size fixed", times, 34,
             f"transformers/models/vits/modeling_vits.py:{line} spline")
        for call, times, line in (("index", 6, 150), ("index", 6, 151), ("nonzero", 1, 1351))
    ]  # fmt: skip
    return Report(stage="the rest", gpu="NVIDIA H200", blockers=stops)


def different() -> Report:
    why, difference = "the graph computes something else", "output from call 5 on: 1.5, then -1.39 at element 394"
    return Report(stage="proof", gpu="NVIDIA H100 80GB HBM3", why=why, difference=difference)


def hung() -> Report:
    return Report(stage="proof", error="it did not end within 600 s, at: proof; --limit gives it longer")


FILE = '''"""A model."""
import torch


class Trainer:
    @torch.no_grad()
    def step(self, x):
        return x


def step(x):
    return x
'''


STAYS = """import torch


def step(x, k=[1]):
    y = x * 2 + k[0]
    if y.sum() > 1:
        return y
    y += 1
    z = [n + y for n in k]
    return z, y
"""
PARTED = """import torch
from cuda_graph import graphed


@graphed(also=lambda: (k,))
def _step_part1(k, y):
    y += 1
    z = [n + y for n in k]
    return z, y


def step(x, k=[1]):
    y = x * 2 + k[0]
    if y.sum() > 1:
        return y
    return _step_part1(k, y)
"""


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("calls cannot be replayed: each call changes random numbers of random, and a replay would not", "draw them"),
        ("calls cannot be replayed: cache has another value in too many calls", "written in place"),
        (
            "it cannot be captured: RuntimeError: it works in another stream, which the capture does not see",
            "one stream",
        ),
        ("it cannot be captured: it uses a stream of another library beside PyTorch's", "work in PyTorch's"),
        ("calls cannot be replayed: it returns a View, of which a replay makes no copy", ""),
    ],
)
def test_what_changes_from_call_to_call_has_a_change(why: str, change: str) -> None:
    from microbench.report.sheets import graph

    report = Report(stage="proof", gpu="NVIDIA H200", why=why)
    (block,) = graph.screen(Made("train.py::step", report, None, None)).blocks
    said = {line.name: line.parts[0].text for line in block.lines}
    assert said["verdict"] == f"No graph: {why}"
    assert change in said.get("next", "")
    assert bool(change) == ("next" in said)


@pytest.mark.parametrize("width", [80, 120])
def test_what_the_command_says(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from microbench.report.sheets import graph
    from microbench.report.terminal import terminal

    (tmp_path / "train.py").write_text(FILE)
    made = change(tmp_path / "train.py", "step")
    monkeypatch.setenv("COLUMNS", str(width))
    cases = [
        Made("train.py::step", proved(), made, proved()), Made("train.py::step", blocked(), None, None),
        Made("train.py::step", different(), None, None), Made("train.py::step", hung(), None, None),
        Made("train.py::step", proved(), made, different()),
    ]  # fmt: skip
    cases.append(Made("train.py::step", within_a_library(), None, None))
    parts = change_parts(tmp_path / "train.py", "step", {2}, {12: 9})
    assert parts is not None
    cases += [Made("train.py::step", blocked(), parts, one) for one in (proved(), different())]
    slower = proved()
    slower.ratio, slower.memory_bytes = (0.98, 0.95, 1.01), 900 << 20
    along = {"batch=1": proved(), "batch=64": slower, "batch=4096": blocked()}
    drawn = []
    for number, one in enumerate(cases):
        console = terminal.open_console()
        with console.capture() as captured:
            terminal.draw(graph.screen(one, {} if number else along), console)
        drawn.append(captured.get())
    same(f"graph-{width}", "\n".join(drawn))
    assert [one.proved for one in cases] == [True, False, False, False, False, False, True, False]


def test_calls_that_stay_split_the_function_and_the_parts_are_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(STAYS)
    stops = [Stop("item", "train.py:6 in step: if y.sum() > 1", "item", "the host waits", "keep the tensor", 1, 6)]
    counted = dict.fromkeys(range(5, 11), 3)
    asked: list[Asked] = []

    def answer(one: Asked, *_: object) -> Report:
        asked.append(one)
        if not one.parts:
            return Report(blockers=stops, operations=counted)
        return Report(proved=True, also=[] if "also=" in Path(one.function.partition("::")[0]).read_text() else ["k"])

    monkeypatch.setattr(graphs, "_report", answer)
    made = make_graph(f"{tmp_path / 'train.py'}::step")
    assert made.proved
    assert made.change is not None
    assert made.change.text == PARTED
    assert [(one.parts, one.source) for one in asked] == [((), ""), *[(made.change.parts, STAYS)] * 2]
    del stops[0]
    stops.append(Stop("capturable", "", "AdamW.step", "its step count is on the host", "capturable=True", 1))
    assert make_graph(f"{tmp_path / 'train.py'}::step").change is None, "no line of the function is known to stay"


@pytest.mark.parametrize("also", [[], ["config.scale"]])
def test_a_changed_file_is_tried_with_other_values_only_if_it_names_some(
    also: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(FILE)
    asked: list[Asked] = []

    def answer(one: Asked, *_: object) -> Report:
        asked.append(one)
        return Report(proved=True, also=also)

    monkeypatch.setattr(graphs, "_report", answer)
    assert make_graph(f"{tmp_path / 'train.py'}::step").proved
    assert [one.host for one in asked] == [True, bool(also)]


@pytest.mark.parametrize(("body", "parts"), [
    ("    y = f(x)\n    g(y)\n    return y\n", 1),
    ("    y = f(x); g(y)\n    return y\n", 1),
    ("    g(x)\n    yield x\n", 1),
    ("    global y\n    y = f(x)\n    g(y)\n", 0),
    ("    if x:\n        return f(x)\n    g(x)\n", 1),
    ("    g(x)\n    import os\n    y = f(x)\n    def h():\n        return y\n    return h()\n", 3),
    ("    g(x)\n    import os\n" * 4, 3),
])  # fmt: skip
def test_what_may_be_moved_to_a_part(body: str, parts: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"def step(x):\n{body}")
    made = change_parts(tmp_path / "train.py", "step", set(), dict.fromkeys(range(20), 4))
    assert len(made.parts if made is not None else ()) == parts
    if made is not None:
        compile(made.text, "train.py", "exec")


@pytest.mark.parametrize(("name", "line"), [("step", "@graphed\n"), ("Trainer.step", "    @graphed\n")])
def test_the_change_is_an_import_and_a_decorator(name: str, line: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(FILE)
    made = change(file, name)
    assert made is not None
    added = [one[1:] for one in made.diff.splitlines(keepends=True)[2:] if one.startswith("+")]
    assert added == ["from cuda_graph import graphed\n", line]
    compile(made.text, "train.py", "exec")
    assert change(file, "missing") is None


@pytest.mark.parametrize(
    ("ratio", "files"), [((1.3, 1.2, 1.4), ["cuda_graph.py", "train.diff"]), ((0.7, 0.6, 0.9), [])]
)
def test_a_change_that_is_not_faster_is_not_handed_over(
    ratio: tuple[float, float, float], files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(FILE)
    again = proved()
    again.ratio = ratio
    made = Made("train.py::step", blocked(), change(tmp_path / "train.py", "step"), again)
    assert made.change is not None
    made = made._replace(change=made.change._replace(parts=("step_1",)))
    monkeypatch.setattr(graphs, "make_graph", lambda *_: made)
    call("graph", "train.py::step", "-o", str(tmp_path / "out"))
    assert sorted(one.name for one in tmp_path.glob("out/*")) == files


def test_a_file_is_changed_only_if_git_has_it(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(FILE)
    assert why_not_applied(file) == "train.py is not in a git repository"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "train.py"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *command], check=True)
    made = Made("train.py::step", proved(), change(file, "step"), proved())
    file.write_text(FILE + "\n")
    with pytest.raises(UsageError, match="not committed"):
        write_change(made.change, None, apply=True)
    file.write_text(FILE)
    assert [path.name for path in write_change(made.change, None, apply=True)] == ["train.py", "cuda_graph.py"]
    assert "@graphed\ndef step" in file.read_text()
    written = write_change(made.change, tmp_path / "out", apply=False)
    assert [path.name for path in written] == ["train.diff", "cuda_graph.py"]


def test_a_function_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FILE)
    with pytest.raises(UsageError):
        make_graph(f"{tmp_path / 'train.py'}::stepp")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def step():\n    return 1\n", "none of PyTorch, CuPy, Numba and cuda.core"),
        ("def step(x, y):\n    return x\n", "missing a required argument: 'x'; --setup"),
        ("async def step():\n    return 1\n", "async or generator"),
        ("def step():\n    import os\n    os._exit(3)\n", "ended at calling"),
        ("def step():\n    raise ValueError('no')\n", "ValueError: no"),
    ],
)
def test_a_function_of_which_no_graph_can_be_made_is_told_why(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(text)
    assert why in make_graph(f"{tmp_path / 'odd.py'}::step").report.error


def test_a_function_that_hangs_is_ended(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("import time\ndef step():\n    time.sleep(100)\n")
    stages: list[str] = []
    made = make_graph(f"{tmp_path / 'odd.py'}::step", limit_s=4.0, progress=stages.append)
    assert "did not end within 4 s, at: calling" in made.report.error
    assert stages[-1] == "calling"


def test_torch_compile_has_processes_of_its_own_and_cannot_undo_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def reported(asked: Asked, *_: object) -> Report:
        if asked.compile == "default":
            return Report(times=[Times("torch.compile, default", 2e-3, 2e-3, 2e-3, ratio=2.4)])
        return Report(error="its process ended: Aborted") if asked.compile else proved()

    monkeypatch.setattr(graphs, "_report", reported)
    made = make_graph("train:step", compile=True)
    assert made.proved
    assert [one.name for one in made.report.times[-2:]] == ["torch.compile, default", "torch.compile, reduce-overhead"]
    assert "Aborted" in made.report.times[-1].why
    assert len(make_graph("train:step").report.times) == len(proved().times)
