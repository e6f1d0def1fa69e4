"""Tests of whose the host code is in which a GPU idles, and of the stacks of functions that idle time passes in."""

import itertools
import json
from pathlib import Path

import pytest
from command_line import call
from make_trace import Recorder, kineto
from test_diagnose import costs, diagnosed

from microbench.core.errors import ExitCode
from microbench.core.units import times
from microbench.diagnosis.diagnosis import diagnose
from microbench.diagnosis.idle import BETWEEN, CAUSES, Idle, owners
from microbench.diagnosis.lanes import perfetto
from microbench.diagnosis.owners import (
    AWAITS,
    BUILT_IN,
    COMPILED,
    ELSEWHERE,
    GARBAGE,
    IMPORTS,
    LOCK,
    NAMELESS,
    OPERATORS,
    OWN,
    PRINTS,
    REQUESTS,
    Owner,
    meanwhile,
    owner_of,
)
from microbench.diagnosis.stacks import flame, rows, tree
from microbench.diagnosis.words import findings, owner_words
from microbench.report.sheets.diagnosis import answer
from microbench.traces.trace import Samples


def test_who_waits_for_a_compiler_does_not_compile() -> None:
    within = "torch/_dynamo/convert_frame.py ConvertFrame.__call__"
    assert owner_of((within, "torch/_inductor/select.py choose"))[0] == "torch.compile's compiler"
    assert owner_of((within, "python3.12/threading.py Condition.wait"))[0] == "waiting in a lock or a queue"
    assert owner_of((within, "python3.12/subprocess.py run", "python3.12/selectors.py select"))[0].endswith("compiler")


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("train.py:88 step", OWN),
        ("models/net.py:3 conv2", OWN),
        ("train.py(88): step", OWN),
        ("/home/me/project/train.py(88): step", OWN),
        ("torch/nn/modules/module.py Module._call_impl", "torch.nn modules"),
        ("torch/nn/modules/module.py(1747): _call_impl", "torch.nn modules"),
        ("/usr/lib/python3/dist-packages/torch/nn/functional.py(88): linear", "torch.nn modules"),
        ("nn.Module: Linear_0", "torch.nn modules"),
        ("torch/optim/adam.py Adam.step", "torch.optim"),
        ("torch/_inductor/utils.py call", "torch.compile"),
        ("torch/_inductor/compile_fx.py(88): compile_fx", "torch.compile's compiler"),
        ("torch/_inductor/compile_fx.py(2080): run", "torch.compile"),
        ("torch/_inductor/codecache.py CompiledFxGraph.__call__", "torch.compile"),
        ("triton/compiler/compiler.py CompiledKernel.launch_metadata", "triton"),
        ("jax/_src/compiler.py backend_compile_and_load", "jax's compiler"),
        ("jax/_src/interpreters/pxla.py ExecuteReplicated.__call__", "jax"),
        ("triton/compiler/compiler.py compile", "Triton's compiler"),
        ("triton/runtime/build.py compile_module_from_src", "Triton's compiler"),
        ("triton/runtime/autotuner.py Autotuner._bench", "Triton's autotuner"),
        ("triton/runtime/autotuner.py Autotuner.run.benchmark", "Triton's autotuner"),
        ("triton/runtime/autotuner.py Autotuner.run", "triton"),
        ("numba_cuda/numba/cuda/compiler.py compile_cuda", "Numba's compiler"),
        ("cupy/cuda/compiler.py _compile_module_with_cache", "CuPy's compiler"),
        ("torch/functional.py(48): broadcast_tensors", "torch"),
        ("transformers/models/vit/modeling_vit.py(407): forward", "transformers"),
        ("diffrax/_integrate.py diffeqsolve", "diffrax"),
        ("library.py wait", "library"),
        ("aten::addmm", OPERATORS),
        ("autograd::engine::evaluate_function: AddmmBackward0", OPERATORS),
        ("AddmmBackward0", OPERATORS),
        ("<built-in method astype of numpy.ndarray object at 0x7cbf780f01b0>", BUILT_IN),
        ("threading.py(1016): _bootstrap", "Python's threading"),
        ("python3.12/queue.py Queue.get", "waiting in a lock or a queue"),
        ("python3.12/threading.py Condition.wait", "waiting in a lock or a queue"),
        ("threading.py(355): wait", "waiting in a lock or a queue"),
        ("<built-in method acquire of _thread.lock object at 0x7cbf>", "waiting in a lock or a queue"),
        ("self.lock.acquire at train.py:7 Loader.next", "waiting in a lock or a queue"),
        ("time.sleep at train.py:88 step", "waiting in a sleep"),
        ("<built-in function sleep>", "waiting in a sleep"),
        ("sock.recv at train.py:8 step", "waiting in a socket or a pipe"),
        ("/usr/lib/python3.12/selectors.py(468): select", "waiting in a socket or a pipe"),
        ("python3.12/multiprocessing/connection.py wait", "waiting in a socket or a pipe"),
        ("os.write at log.py:3 tell", "waiting in a file"),
        ("python3.12/subprocess.py Popen._wait", "waiting in a process"),
        ("python3.12/threading.py Thread.start", "Python's threading"),
        ("<frozen importlib._bootstrap>(1390): _handle_fromlist", IMPORTS),
        ("<frozen os>(88): _walk", "Python's os"),
        ("/usr/lib/python3.12/json/decoder.py(353): raw_decode", "Python's json"),
        ("main thread at train.py:90 step", ELSEWHERE),
        ("backward pass of train.py:90 step", "PyTorch's backward thread"),
        ("forward", "code in forward"),
        ("MPI_Waitall", "waiting in MPI"),
        ("clock_nanosleep (libc)", "waiting in a sleep"),
        ("pthread_cond_timedwait (libc)", "waiting in a lock or a queue"),
        ("epoll_wait (libc)", "waiting in a socket or a pipe"),
        ("fread (libc)", "waiting in a file"),
        ("waitpid (libc)", "waiting in a process"),
        ("read", "code in read"),
    ],
)
def test_a_name_has_an_owner(name: str, owner: str) -> None:
    assert owner_of([name]) == (owner, name)


LOADING = "torch/utils/data/dataloader.py"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["a" * 300_000, "a/" * 150_000, "a.py " * 60_000, "/site-packages/" * 20_000])
def test_a_long_name_takes_no_longer_than_its_length(name: str) -> None:
    assert owner_of([name])[1] == name


@pytest.mark.parametrize(
    ("names", "owner", "most"),
    [
        (["serve.py:8 main", "asyncio/runners.py run", "asyncio/base_events.py BaseEventLoop._run_once",
          "python3.12/selectors.py EpollSelector.select", "self._selector.poll at serve.py:8 main"],
         "waiting in asyncio's event loop", "self._selector.poll at serve.py:8 main"),
        (["train.py(3): load", "<built-in function perf_counter>"], OWN, "train.py(3): load"),
        (["torch/nn/functional.py(9): linear", "<built-in function linear>", "aten::addmm"], OPERATORS, "aten::addmm"),
        (["train.py(3): load", "json/__init__.py(299): loads", "re/__init__.py(8): sub"],
         "Python's json", "re/__init__.py(8): sub"),
        (["train.py:3 load", "json/decoder.py JSONDecoder.decode", GARBAGE], GARBAGE, GARBAGE),
        (["train.py:3 load", "python3.12/queue.py Queue.get", "python3.12/queue.py Queue._get"],
         "Python's queue", "python3.12/queue.py Queue._get"),
        (["train.py:3 load", "<frozen importlib._bootstrap> _find_and_load", "inspect.py <module>"],
         IMPORTS, "train.py:3 load"),
        (["train.py:9 train", f"{LOADING} _MultiProcessingDataLoaderIter._next_data", "python3.12/queue.py Queue.get",
          "python3.12/threading.py Condition.wait", "waiter.acquire at train.py:9 train"],
         AWAITS, "train.py:9 train"),
        (["train.py:9 train", f"{LOADING} _SingleProcessDataLoaderIter._next_data", "PIL/Image.py Image.load"],
         "PIL", "PIL/Image.py Image.load"),
        ([f"{LOADING} _SingleProcessDataLoaderIter._next_data", "torch/_ops.py TorchBindOpOverload.__call__"],
         "the data loader", "torch/_ops.py TorchBindOpOverload.__call__"),
        (["train.py:9 train", "torch/_tensor_str.py _str", "torch/_tensor.py Tensor.__format__"], PRINTS,
         "torch/_tensor_str.py _str"),
        (["train.py:9 train", "torch/_tensor_str.py _str", f"{LOCK} held at data.py:3 other"], LOCK,
         "held at data.py:3 other"),
        (["train.py:9 train", f"{LOCK} held at torch/_tensor_str.py _str"], LOCK, "held at torch/_tensor_str.py _str"),
        (["transformers/models/x.py(88): forward", "<string>(12): __init__"], "transformers",
         "transformers/models/x.py(88): forward"),
        (["train.py:8 main", "torch/fx/graph_module.py call", "<eval_with_key>.7 forward", "<built-in function mul>"],
         "torch", "torch/fx/graph_module.py call"),
        (["torch/fx/graph_module.py(9): call", "<eval_with_key>.3 from /tmp/a.py:3 in forward(88): forward"],
         "torch", "torch/fx/graph_module.py(9): call"),
        (["<string>(1): <module>", "<string>(4): step"], OWN, "<string>(4): step"),
        (["<stdin>(4): step"], OWN, "<stdin>(4): step"),
        ([], NAMELESS, ""),
        (["serve.py:43 <module>", "python3.12/socketserver.py BaseServer.handle_request",
          "python3.12/selectors.py _PollLikeSelector.select", "self._selector.poll at serve.py:43 <module>"],
         REQUESTS, "self._selector.poll at serve.py:43 <module>"),
        (["uvicorn/server.py Server.run", "python3.12/asyncio/base_events.py BaseEventLoop._run_once",
          "python3.12/selectors.py EpollSelector.select"], REQUESTS, "python3.12/selectors.py EpollSelector.select"),
        (["uvicorn/server.py Server.run", "asyncio/runners.py Runner.run"], REQUESTS, "asyncio/runners.py Runner.run"),
        (["anyio/_backends/_asyncio.py WorkerThread.run", "python3.12/queue.py Queue.get",
          "python3.12/threading.py Condition.wait"], REQUESTS, "python3.12/threading.py Condition.wait"),
        (["python3.12/threading.py Thread.run", "futures/thread.py _worker"], "waiting in a lock or a queue",
         "futures/thread.py _worker"),
        (["http/server.py(424): handle", "serve.py(12): do_POST", "urllib/request.py(8): urlopen",
          "socket.py(707): readinto"], "waiting in a socket or a pipe", "socket.py(707): readinto"),
        (["ProfilerStep#1", "aten::split_with_sizes", "aten::narrow", "aten::as_strided"], OPERATORS,
         "aten::split_with_sizes"),
        (["MulBackward0", "aten::mul"], OPERATORS, "aten::mul"),
        (["ensure_layer_3_weights"], "code in ensure_layer_#_weights", "ensure_layer_3_weights"),
        (["h2d_w_of_conv2d"], "code in h2d_w_of_conv2d", "h2d_w_of_conv2d"),
        (["Torch-Compiled Region: 0/0", "CompiledFunction"], COMPILED, "CompiledFunction"),
        (["/tmp/torchinductor_me/ab/cab.py(33): call"], COMPILED, "/tmp/torchinductor_me/ab/cab.py(33): call"),
        (["serve.py:12 do_POST", "time.sleep at serve.py:12 do_POST"], "waiting in a sleep",
         "time.sleep at serve.py:12 do_POST"),
    ],
)  # fmt: skip
def test_a_stack_has_the_owner_that_can_change_it(names: list[str], owner: str, most: str) -> None:
    assert owner_of(names) == (owner, most)


def test_owners_have_the_sum_of_their_code_and_name_its_largest_piece() -> None:
    pieces = {"aten::mm": 2, "train.py:8 step": 4, "aten::add": 3}
    stacks = {(BETWEEN, "step", name): round(seconds * 1e9) for name, seconds in pieces.items()}
    stacks["launch calls", "cudaLaunchKernel"] = 9_000_000_000
    assert owners(Idle(0, 20.0, 2.0, {}, (), 1, stacks_ns=stacks)) == [
        Owner(OPERATORS, 5.0, "aten::add", 3.0),
        Owner(OWN, 4.0, "train.py:8 step", 4.0),
    ]


def nested() -> Recorder:
    """Steps whose host time lies in functions of functions, and that wait."""
    made = Recorder()
    for step in range(12):
        with made.range(f"step#{step}", "annotation"):
            made.runs(1000)
            with made.range("train.py(8): step", "python"):
                for kernel in range(5):
                    with made.range("torch/nn/modules/linear.py(130): forward", "python"):
                        made.runs(20_000)
                        with made.range("aten::addmm"):
                            made.runs(10_000)
                            made.launch(f"kernel_{kernel}", 2000)
                made.runs(30_000)
        made.wait()
    return made


def test_stacks_add_up_to_the_idle_time_and_name_all_functions() -> None:
    found = diagnosed(nested())
    stacks = found.idle.stacks_ns
    assert sum(stacks.values()) == round(found.idle.idle_s * 1e9)
    for cause, seconds in found.idle.causes.items():
        assert sum(ns for stack, ns in stacks.items() if stack[0] == cause) == round(seconds * 1e9)
    between, steps = BETWEEN, found.steps.count
    own, module = "train.py(8): step", "torch/nn/modules/linear.py(130): forward"
    assert stacks[between, "step", own, module] == pytest.approx(steps * 5 * 20_000, rel=0.2), "less the kernels"
    assert stacks[between, "step", own, module, "aten::addmm"] == steps * 5 * 10_000
    launches = next(ns for stack, ns in stacks.items() if stack[-1] == "cudaLaunchKernel")
    assert launches == steps * 5 * 3000


def test_a_range_that_ends_after_the_one_in_which_it_began_is_not_of_it() -> None:
    """PyTorch's profiler begins an annotation within the function that begins it."""
    made = Recorder()
    for _ in range(12):
        enter_ns = made.now_ns
        made.runs(2000)
        with made.range("annotated", "annotation"):
            made.runs(1000)
            made.ranges.append((enter_ns, made.now_ns, made.name("enter.py(1): enter"), made.thread, 2))
            made.launches(5, between_ns=20_000)
    stacks = diagnosed(made).idle.stacks_ns
    assert any(stack[1:] == ("annotated",) for stack in stacks)
    assert not any(stack[1:3] == ("enter.py(1): enter", "annotated") and ns > 12_000 for stack, ns in stacks.items())


def test_speedscope_has_a_weighted_stack_for_each_piece(tmp_path: Path) -> None:
    trace, file = tmp_path / "trace.json", tmp_path / "idle.speedscope.json"
    trace.write_bytes(kineto(nested().trace()))
    assert call("diagnose", str(trace), "--speedscope", str(file)).exit_code == ExitCode.MEASURED
    written = json.loads(file.read_text())
    (profile,) = written["profiles"]
    assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "seconds", 0)
    assert len(profile["samples"]) == len(profile["weights"]) > 5
    assert profile["endValue"] == pytest.approx(sum(profile["weights"]))
    names = [frame["name"] for frame in written["shared"]["frames"]]
    assert {names[place] for stack in profile["samples"] for place in stack} == set(names)
    assert call("diagnose", str(trace), "--speedscope", str(file)).exit_code == ExitCode.USAGE, "it is there already"
    assert call("diagnose", str(trace), str(trace), "--speedscope", "x").exit_code == ExitCode.USAGE


@pytest.mark.parametrize(("duration_ns", "then_us"), [(2000, 70), (18_000, 94)])
def test_a_step_without_an_owner_is_played(duration_ns: int, then_us: float) -> None:
    """Five launches, each with 20 us of a slow function and 11 us of other code; then the GPU may be the limit."""
    made = Recorder()
    for _ in range(12):
        for kernel in range(5):
            with made.range("train.py(8): step", "python"):
                made.runs(11_000)
                with made.range("hooks/slow.py(3): hook", "python"):
                    made.runs(20_000)
                made.launch(f"kernel_{kernel}", duration_ns)
    found = diagnosed(made, step_s=5 * 34e-6)
    without = found.without["hooks"]
    assert without.step_s == pytest.approx(then_us * 1e-6, rel=0.03)
    assert without.speedup == pytest.approx(170 / then_us, rel=0.03)
    assert without.speedup_low <= without.speedup <= without.speedup_high < 1.1 * without.speedup
    (hooks,) = (one for one in owners(found.idle) if one.name == "hooks")
    assert ("then the GPU is the limit" in owner_words(found, hooks)[0]) == (duration_ns > 2000)
    assert max(one["without"]["speedup"] for one in answer(found)["owners"] if one["without"]) == without.speedup


def test_one_owner_has_one_gain() -> None:
    made = Recorder()
    for _ in range(30):
        with made.range("selectors.py(468): select", "python"):
            made.runs(2_000_000)
        made.runs(1_500_000)
        for kernel in range(10):
            made.runs(10_000)
            made.launch(f"kernel_{kernel}", 2000)
    found = diagnosed(made, step_s=3650e-6)
    (wait,) = (one for one in owners(found.idle) if one.name.startswith("waiting in a socket"))
    (said,) = (one for one in findings(found) if one.rule == "diagnose.pauses")
    gain = times(found.without[wait.name].speedup)
    assert said.title.endswith(f"without it a step is {gain} as fast")
    assert f"without it {gain} as fast" in owner_words(found, wait)[0]


@pytest.mark.parametrize(("works_ns", "said"), [(1_500_000, True), (200_000, False)])
def test_who_fills_a_queue_is_named(works_ns: int, said: bool) -> None:
    """Another thread is named if it works at one line for a quarter of the wait."""
    made = Recorder()
    line, other = (made.names.setdefault(f"loader.py:{at} load", len(made.names)) for at in (14, 9))
    beside = [(0, 10_000, other)]
    for _ in range(30):
        with made.range("train.py:22 train", "line"), made.range("self.ready.acquire at train.py:22 train", "function"):
            beside.append((made.now_ns, made.now_ns + works_ns, line))
            made.runs(2_000_000)
        made.launches(10, 10_000, 2000)
    found = diagnose(
        made.trace(format="microbench recording", samples=Samples(600, 0, 2_000_000, {}, tuple(beside))), costs()
    )
    (wait,) = (one for one in owners(found.idle) if one.name == "waiting in a lock or a queue")
    assert meanwhile(found.trace, wait.name, -9, -8) == ("", 0.0)  # nobody waits then
    words = "; meanwhile another thread is at loader.py:14 load"
    assert (words in owner_words(found, wait)[0]) is said
    (advised,) = (one for one in findings(found) if one.rule == "diagnose.pauses")
    assert (words in advised.title) is said


def test_few_samples_leave_the_gain_unsure() -> None:
    made = Recorder()
    for _ in range(12):
        made.runs(500_000)
        for kernel in range(5):
            with made.range("hooks/slow.py hook", "function"):
                made.runs(200_000)
            made.launch(f"kernel_{kernel}", 2000)
    surely = diagnosed(made, step_s=1515e-6).without["hooks"]
    sampled = made.trace(format="microbench recording", samples=Samples(6, 0, 2_000_000))
    unsure = diagnose(sampled, costs(), 1515e-6).without["hooks"]
    assert unsure.speedup == pytest.approx(surely.speedup)
    assert unsure.speedup_low < 0.9 * surely.speedup_low
    assert unsure.speedup_high > 1.1 * surely.speedup_high


def test_of_steps_at_the_pace_of_something_else_only_waiting_can_be_left_out() -> None:
    made = Recorder()
    for step in range(30):
        with made.range("aten::op"):
            made.runs(500_000 + 40_000 * (step % 5))
        made.launch("kernel", 2000)
        with made.range("threading.py(355): wait", "python"):
            made.runs(3_000_000 - 40_000 * (step % 5))
        made.launch("other", 2000)
    found = diagnosed(made)
    assert found.recorded.paced_s is not None
    assert set(found.without) == {"waiting in a lock or a queue"}
    assert found.without["waiting in a lock or a queue"].speedup > 4


@pytest.mark.parametrize("waits", [True, False])
def test_no_graph_saves_a_short_wait_for_something_else(waits: bool) -> None:
    made = Recorder()
    for _ in range(30):
        with made.range("selectors.py(468): select" if waits else "torch/nn/functional.py(88): linear", "python"):
            made.runs(600_000)
        for kernel in range(10):
            made.runs(10_000)
            made.launch(f"kernel_{kernel}", 2000)
    found = diagnosed(made, step_s=750e-6)
    assert found.bound == ("host-bound" if waits else "launch-bound")
    assert (found.graph.step_s > 600e-6) == waits


def test_the_tree_adds_up_in_all_rows() -> None:
    found = diagnosed(nested())
    root = tree(found)
    assert root.ns == round(found.idle.idle_s * 1e9)
    assert [one.name for one in root.within] == [
        cause for cause in sorted(CAUSES, key=lambda cause: -found.idle.causes[cause]) if found.idle.causes[cause]
    ]
    for least_ns in (0, 0.05 * root.ns, root.ns):
        listed = list(rows(root, least_ns))
        for place, row in enumerate(listed):
            below = itertools.takewhile(lambda one, depth=row.depth: one.depth > depth, listed[place + 1 :])
            parts_ns = [one.ns for one in below if one.depth == row.depth + 1]
            assert not parts_ns or row.ns == sum(parts_ns) + row.itself_ns, row
            assert bool(parts_ns) == (row.itself_ns is not None)
    (chain,) = (row for row in rows(root, 0) if row.names[-1] == "train.py(8): step" and row.ns > 0.5 * root.ns)
    assert chain.names == ("train.py(8): step",)


def test_the_flame_graph_is_the_tree() -> None:
    found = diagnosed(nested())
    count, root = found.steps.count, tree(found)
    lanes = flame(found, 40, 0.0)
    assert sum(one.end_s - one.begin_s for one in lanes[0].pieces) == pytest.approx(found.idle.idle_s / count)
    for outer, inner in itertools.pairwise(lanes):
        for piece in inner.pieces:
            (around,) = (
                one for one in outer.pieces if one.begin_s - 1e-15 <= piece.begin_s and piece.end_s <= one.end_s + 1e-15
            )
            assert around.what == piece.what
    assert len(flame(found, 2, 0.0)) == 2
    assert all(one.end_s - one.begin_s >= 0.1 * root.ns * 1e-9 / count for lane in flame(found, 40, 0.1)[1:]
               for one in lane.pieces)  # fmt: skip


def tracks(written: bytes) -> dict[str, list[tuple[float, float, str]]]:
    """The slices of each track of Chrome's trace events, as begin, end and name."""
    events = json.loads(written)["traceEvents"]
    names = {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in events
        if one["ph"] == "M" and one["name"] == "thread_name"
    }
    found: dict[str, list[tuple[float, float, str]]] = {name: [] for name in names.values()}
    for one in (one for one in events if one["ph"] == "X"):
        found[names[one["pid"], one["tid"]]].append((one["ts"], one["ts"] + one["dur"], one["name"]))
    return found


def test_perfetto_gets_idle_time_by_cause_streams_and_nested_code(tmp_path: Path) -> None:
    trace, file = tmp_path / "trace.json", tmp_path / "steps.perfetto.json"
    made = nested()
    trace.write_bytes(kineto(made.trace()))
    assert call("diagnose", str(trace), "--perfetto", str(file)).exit_code == ExitCode.MEASURED
    written, found = tracks(file.read_bytes()), diagnosed(made)
    assert list(written) == ["GPU idle, by cause", "stream 7", "host code", "CUDA calls"]
    for cause, seconds in found.idle.causes.items():
        idle_us = sum(end - begin for begin, end, name in written["GPU idle, by cause"] if name == cause)
        assert idle_us == pytest.approx(seconds * 1e6)
    assert sum(end - begin for begin, end, _ in written["stream 7"]) == pytest.approx(found.idle.busy_s * 1e6)
    assert {"train.py(8): step", "torch/nn/modules/linear.py(130): forward", "aten::addmm"} <= {
        name for _, _, name in written["host code"]
    }
    for slices in written.values():
        around: list[float] = []
        for begin, end, _ in slices:
            while around and around[-1] <= begin + 1e-9:
                around.pop()
            assert not around or end <= around[-1] + 1e-9, "Perfetto drops a slice that ends behind the one around it"
            around.append(end)


def test_overlapping_kernels_of_a_stream_have_rows_of_their_own() -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(5, 10_000, 8000)
    work = made.trace().work
    work["end_ns"][::2] += 6000  # into the next kernel
    found = tracks(perfetto(diagnose(made.trace(work=work), costs())))
    assert [name for name in found if name.startswith("stream")] == ["stream 7", "stream 7 (2)"]
    assert len(found["stream 7"]) > len(found["stream 7 (2)"]) > 20
