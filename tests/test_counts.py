"""Counts of a step: kernel names by family, figures, baselines, and what changed between two recordings."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import make_recording
import msgspec
import numpy as np
import pytest
from command_line import call
from make_trace import Recorder, kineto
from test_diagnose import diagnosed, line_of
from test_diagnose_cli import HOSTILE, hostile

from microbench.analysis.stats import Interval
from microbench.core.errors import ExitCode, UsageError
from microbench.diagnosis.changed import Changed, Side, TimeChange, are_two, compare, limits, verdict
from microbench.diagnosis.counts import FIGURES, Counts, are_counts, count_steps, read_counts, written
from microbench.diagnosis.diagnosis import diagnose
from microbench.diagnosis.kernel_names import OWN, bare, family
from microbench.diagnosis.steps import find_steps
from microbench.diagnosis.words import findings
from microbench.library.answers import costs_of
from microbench.recorder import cells
from microbench.report.sheets.counts import MOST_LINES, changed_markdown
from microbench.traces.reading import read
from microbench.traces.trace import Memory, Trace

# Names


PRODUCT, CONVOLUTION, ATTENTION = "matrix product", "convolution", "attention"
HELPS = "helpers of {}"
ELEMENTWISE = "at::native::vectorized_elementwise_kernel"


@pytest.mark.parametrize(("name", "expected", "library"), [
    # One product on five architectures.
    ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_bias_TNT", PRODUCT, "cuBLAS"),
    ("nvjet_sm100_tst_128x64_64x8_2x1_2cta_v_bz_TNT", PRODUCT, "cuBLAS"),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize32x32x8_stage3_ffma_execute_kernel__5x_cublas", PRODUCT, "cuBLAS"),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>(cutlass_80_simt::Params)", PRODUCT, "cuBLAS"),
    ("cutlass::Kernel2 (3)", PRODUCT, "cuBLAS"),
    ("ampere_sgemm_128x64_tn", PRODUCT, "cuBLAS"), ("volta_fp16_s884gemm_fp16_64x64_ldg8_f2f_nn", PRODUCT, "cuBLAS"),
    ("void gemmSN_NN_kernel<float, 128, 2, 4, 8, 5, 4, false>(cublasGemmSmallNParams)", PRODUCT, "cuBLAS"),
    ("void gemv2T_kernel_val<int, int, float, 128, 16>(cublasGemvParamsEx)", PRODUCT, "cuBLAS"),
    ("void sgemm_largek_lds64<true, false, 5, 5, 4, 4, 4, 34>(float*, float const*)", PRODUCT, "cuBLAS"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::Params<float>)",
     HELPS.format("cuBLAS"), "cuBLAS"),
    # Convolutions, their helpers, and PyTorch's own ones.
    ("sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x64x32__5x_cudnn", CONVOLUTION, "cuDNN"),
    ("void implicit_convolve_sgemm<float, float, 1024, 5, 5>(int)", CONVOLUTION, "cuDNN"),
    ("sm80_xmma_dgrad_implicit_gemm_indexed_tf32f32__5x_cudnn", "convolution, backward by data", "cuDNN"),
    ("_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernelINS_Conv2dWgradOutput", "convolution, backward by weights", "cuDNN"),
    ("void cudnn::engines_precompiled::nchwToNhwcKernel<float, float>(cudnn::Params)", HELPS.format("cuDNN"), "cuDNN"),
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1, true>(cudnnTensorStruct)",
     "batch norm", "cuDNN"),
    ("void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<1, float, int>(int)",
     "at::native::conv_depthwise2d_forward_kernel<float, int>", "PyTorch"),
    # Attention by several libraries.
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>, false, true>(Params)",
     ATTENTION, "attention"),
    ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)", ATTENTION, "attention"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0",
     ATTENTION, "attention"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_kernel0_0",
     "attention, backward", "attention"),
    ("void pytorch_flash::flash_fwd_splitkv_combine_kernel<Traits<64>, 4, 1>(Params)",
     HELPS.format("attention"), "attention"),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "NCCL AllReduce", "NCCL"),
    ("ncclKernel_AllReduce_TREE_LL128_Sum_float(ncclDevComm*)", "NCCL AllReduce", "NCCL"),
    # Numbers of templates go, types stay; so do numbers that a program gave.
    ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int)",
     f"{ELEMENTWISE}<FillFunctor<float>, array<char*>>", "PyTorch"),
    ("void at::native::vectorized_templated_elementwise_kernel<8, at::native::FillFunctor<float>, std::"
     "array<char*, 1> >",
     f"{ELEMENTWISE}<FillFunctor<float>, array<char*>>", "PyTorch"),
    ("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::"
     "(anonymous namespace)::"
     "where_kernel_impl(at::TensorIterator&)::{lambda()#1}::operator()() const::{lambda()#11}>(int)>",
     "at::native::elementwise_kernel<gpu_kernel_impl_nocast<where_kernel_impl>>", "PyTorch"),
    ("void cub::CUB_200802_800_900_NS::DeviceScanKernel<cub::Policy900, float>(int)",
     "cub::DeviceScanKernel<Policy, float>", "CUB"),
    ("triton_poi_fused_add_relu_7", "triton_poi_fused_add_relu", "Triton"),
    ("loop_add_fusion_12", "loop_add_fusion", "XLA"),
    ("sm90_fp8_gemm_1d2d_impl<128, 64>(int)", "fp8_gemm_1d2d_impl", OWN), ("kernel_3", "kernel_3", OWN),
    ("void my::kernel<float, 128, true>(float*, int)", "my::kernel<float>", OWN),
    ("_Z9my_kernelPfi", "my_kernel", OWN), ("my_attention_gemm_3", "my_attention_gemm_3", OWN), ("", "", OWN),
    ("my_fprop<(anonymous namespace)::T>(int)", "my_fprop<T>", OWN), ("broken<<<(((", "broken<<<(((", OWN),
    ("saxpy[abi:v1][abi:c8tJTIeFIj](Array<float, 1, C>, float)", "saxpy", OWN),
])  # fmt: skip
def test_kernels_are_named_by_family(name: str, expected: str, library: str) -> None:
    found = family(name)
    assert (found.name, found.library) == (expected, library)
    assert found.extra == expected.startswith("helpers")
    again = family(found.name)
    assert (again.name, again.extra) == (found.name, found.extra)
    assert bare(expected) == expected.partition("<")[0]


# Programs with known differences

CHANGES: dict[str, dict[tuple[str, str], tuple[float, float]]] = {
    "wait": {("waits", ""): (1, 2)},
    "kernel": {("launches", ""): (9, 10), ("kernels", ""): (9, 10), ("kernels", "added"): (0, 1)},
    "no kernel": {("launches", ""): (9, 8), ("kernels", ""): (9, 8), ("kernels", "work_4"): (1, 0)},
    "pageable": {
        ("pageable", ""): (0, 1), ("copies", "to the GPU, pinned, 4 KiB"): (1, 0),
        ("copies", "to the GPU, pageable, 4 KiB"): (0, 1),
    },
    "allocates": {("allocations", ""): (0, 1), ("frees", ""): (0, 1)},
    "instantiates": {("graphs", ""): (0, 1)},
    "graph": {
        ("launches", ""): (9, 0), ("replays", ""): (0, 1), ("kernels_in_graphs", ""): (0, 9),
    },
    "copy twice": {("copies", ""): (1, 2), ("copies", "to the GPU, pinned, 4 KiB"): (1, 2)},
    "foreach off": {
        ("launches", ""): (9, 14), ("kernels", ""): (9, 14), ("kernels", "multi_tensor"): (1, 0),
        ("kernels", "adam"): (0, 6),
    },
    "event": {("records", ""): (0, 1), ("stream_waits", ""): (0, 1)},
    "memset": {("memsets", ""): (0, 1)},
    "blocking copy": {
        ("blocking_copies", ""): (0, 1), ("copies", ""): (1, 2), ("copies", "to the host, pinned, 4 B"): (0, 1),
    },
}  # fmt: skip

SOMETIMES = (4, 5, 9, 15, 16, 18, 26)


def program(change: str = "", seed: int = 0, line: int = 20, steps: int = 12) -> Trace:
    """Steps of a copy, nine kernels and a wait, with what ``change`` says; times, numbers and names by ``seed``."""
    random, made = np.random.default_rng(seed), Recorder()
    stream, other = (int(one) for one in 7 + random.permutation(40)[:2])
    for name in random.permutation([f"work_{one}" for one in range(8)]):
        made.name(name)  # numbers of names in another order

    def ns(usual: int) -> int:
        return int(usual * random.uniform(0.7, 1.5))

    def launch(name: str) -> None:
        made.runs(ns(9000))
        with made.range("aten::op"):
            made.launch(name, ns(3000), ns(3000), stream)

    def copy(memories: tuple[Memory, Memory], size: int, name: str = "cudaMemcpyAsync") -> None:
        words = f"Memcpy XtoX ({memories[0].title()} -> {memories[1].title()})"
        made.submit(made.call(name, ns(4000)), words, ns(2000), stream, kind="copy", memories=memories, size=size)

    for step in range(steps):
        with made.range(f"train.py({line}): step", "python"), made.range(f"step#{step}", "annotation"):
            copy(("pageable" if change == "pageable" else "pinned", "device"), 4096)
            if change == "copy twice":
                copy(("pinned", "device"), 4096)
            if change == "graph":
                replay = made.call("cudaGraphLaunch", ns(9000))
                for node, name in enumerate([*(f"work_{one}" for one in range(8)), "multi_tensor"]):
                    made.submit(replay, name, ns(3000), stream, node=node + 1)
            else:
                for kernel in range(8):
                    if not (change == "no kernel" and kernel == 4):
                        launch(f"work_{kernel}")
                for name in ["adam"] * 6 if change == "foreach off" else ["multi_tensor"]:
                    launch(name)
            if change == "kernel" or (change == "sometimes" and step in SOMETIMES):
                launch("added")
            if change == "wait" or (change == "sometimes waits" and step in SOMETIMES):
                with made.range("aten::item"), made.range(f"helper <object at 0x{seed:x}>", "python"):
                    made.wait()
            if change == "allocates":
                made.call("cudaMalloc", ns(90_000))
                made.call("cudaFree", ns(90_000))
            if change == "instantiates":
                made.call("cudaGraphInstantiateWithFlags", ns(90_000))
            if change == "event":
                made.wait_event(made.record_event(stream), other)
            if change == "memset":
                made.submit(made.call("cudaMemsetAsync", 3000), "Memset", 1000, stream, kind="memset", size=64)
            if change == "blocking copy":
                copy(("device", "pinned"), 4, "cudaMemcpy")
            made.wait()
    return made.trace(gpus={0: f"GPU of {seed % 2}"})


def counts_of(trace: Trace) -> Counts:
    return count_steps(trace, find_steps(trace))


def changed(before: Trace, after: Trace) -> Changed:
    return compare(Side("before", counts_of(before)), Side("after", counts_of(after)))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("back", [False, True])
def test_each_difference_is_named_and_nothing_else(change: str, back: bool) -> None:
    sides = program(), program(change, seed=1)
    found = changed(*(sides[::-1] if back else sides))
    named = {(one.figure, one.named): (one.before, one.after) for one in found.differences}
    assert named == {key: pair[::-1] if back else pair for key, pair in CHANGES[change].items()}
    assert not found.some
    better = change == "graph" and not back
    more = any((before < after) != back for (_, named), (before, after) in CHANGES[change].items() if not named)
    assert (verdict(found).severity == "warning") == (more and not better)


@pytest.mark.parametrize("seed", range(100))
def test_what_has_no_effect_is_not_a_difference(seed: int) -> None:
    """Times, numbers of streams, names and objects, lines, and how many steps there are differ; counts do not."""
    found = changed(program("wait"), program("wait", seed=seed, line=20 + seed, steps=8 + seed % 9))
    assert (found.differences, found.some, found.every) == ((), (), (1, 1))
    assert (verdict(found).rule, verdict(found).severity) == ("diagnose.changed", "good")


def test_a_wait_has_its_place_in_the_program() -> None:
    (one,) = changed(program(), program("wait", seed=1)).differences
    assert one.places == {"cudaStreamSynchronize in aten::item at train.py:20 step": 1}


def test_what_some_steps_do_is_told_apart() -> None:
    found = changed(program(steps=30), program("sometimes", steps=30))
    assert not found.differences
    told = {(one.figure, one.named): (one.before, one.after > 0) for one in found.some}
    assert told == dict.fromkeys([("kernels", "added"), ("kernels", ""), ("launches", "")], (0, True))
    assert "In some steps only: kernels added" in changed_markdown(found)
    assert (verdict(found).severity, "some steps do more: kernels added" in verdict(found).title) == ("warning", True)
    counts = found.before.counts, found.after.counts, found.every
    passed = {text: limits(text)[0].passed(*counts, found.some) for text in ("launches>+0", "launches>+1", "waits>+0")}
    assert passed == {"launches>+0": True, "launches>+1": False, "waits>+0": False}


def test_a_wait_in_some_steps_is_seen_though_each_step_waits_once() -> None:
    found = changed(program(steps=30), program("sometimes waits", steps=30))
    assert [(one.figure, one.before, one.after) for one in found.some] == [("waits", 0, 0.25)]
    counts = found.before.counts, found.after.counts, found.every
    assert limits("waits>+0")[0].passed(*counts, found.some)
    assert not changed(program("sometimes waits", steps=30), program("sometimes waits", 1, steps=30)).some


def test_a_slower_step_is_no_good_news_though_its_counts_are_the_same() -> None:
    found = changed(program("wait"), program("wait", seed=1))
    times = [TimeChange("a step", Interval(1e-3, 9e-4, 1.1e-3), Interval(2e-3, 1.9e-3, 2.1e-3), "slower")]
    slower = msgspec.structs.replace(found, times=tuple(times))
    assert (verdict(found).severity, verdict(slower).severity) == ("good", "warning")


def test_the_same_program_recorded_twice_has_the_same_counts(tmp_path: Path) -> None:
    both = []
    for number, (begin_us, count) in enumerate(((0.0, 9), (777.0, 14))):
        path = tmp_path / f"{number}.rows"
        path.write_bytes(make_recording.recording(make_recording.steps(count, begin_us=begin_us)))
        both.append(counts_of(read(path)))
    assert both[0].figures == {"kernels": 8, "launches": 8, "waits": 1}
    assert both[0].kernels == {"my_kernel": 8}
    for field in ("figures", "kernels", "copies", "places", "some", "libraries"):
        assert getattr(both[0], field) == getattr(both[1], field)


def test_a_short_call_is_at_the_line_of_its_nearest_samples(tmp_path: Path) -> None:
    """A line takes 20 us of a step of 1 ms, with a sample each 2 ms: most steps have none in it."""
    parts = [cells.text(cells.FRAME, line, f"0 own train.py:{line} step") for line in (1, 2, 3)]
    parts.append(cells.text(cells.NAME, 4096, "_Z9my_kernelPfi"))
    for step in range(600):
        for place, at_us in enumerate((100, 300, 500, 700, 900)):
            correlation, now_us = 10 * step + place + 1, 1000 * step + at_us
            call = {"detail": make_recording.LAUNCH, "correlation": correlation, "place": 9}
            parts.append(make_recording.row(cells.RUNTIME, now_us, 3, **call))
            work = {"correlation": correlation, "stream": 7, "size": 24, "flags": 256, "name": 4096}
            parts.append(make_recording.row(cells.KERNEL, now_us + 5, 2, **work))
        call = {"detail": make_recording.SYNCHRONIZE, "correlation": 10 * step + 9, "place": 9}
        parts.append(make_recording.row(cells.RUNTIME, 1000 * step + 950, 4, **call))
    for sample in range(370):
        at_us = 1618 * sample
        line = 1 if at_us % 1000 < 490 else 2 if at_us % 1000 < 510 else 3
        parts.append(make_recording.sampled(9, line, at_us / 1000, at_us / 1000))
    path = tmp_path / "0.rows"
    path.write_bytes(make_recording.recording(*parts))
    found = counts_of(read(path))
    assert found.places["waits"] == {"cudaStreamSynchronize at train.py:3 step": 1}
    at_lines = {f"cudaLaunchKernel at train.py:{line} step": count for line, count in ((1, 2), (2, 1), (3, 2))}
    assert found.places["launches"] == at_lines


def test_a_call_of_a_thread_without_python_has_the_main_threads_line() -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(6)
        made.thread = 1
        with made.range("main thread at train.py:33 fit", "line"):
            made.submit(made.call("cuMemcpyDtoHAsync", 2000), "Memcpy DtoH", 1000, kind="copy", size=4)
        made.thread = 0
    found = counts_of(made.trace())
    assert found.places["copies"] == {"cuMemcpyDtoHAsync while the main thread is at train.py:33 fit": 1}


def test_calls_with_equal_neighbours_share_a_line_where_steps_differ() -> None:
    """A copy's line is recorded twice in three; between it and the step's begin are more and fewer kernels."""
    made = Recorder()
    for step in range(60):
        with made.range(f"step {step}", "annotation"):
            made.launches(4 + step * step * 7919 % 101 % 6)
            made.launches(2)
            known = "train.py:20 batch" if step % 3 else "train.py:9 other"
            with made.range(known, "line"):
                copy = made.call("cudaMemcpyAsync", 2000)
                made.submit(copy, "Memcpy HtoD", 1000, kind="copy", size=512, memories=("pageable", "device"))
            made.launch("after", 2000)
    trace = made.trace()
    steps = find_steps(trace)
    assert steps is not None
    assert steps.likeness < 0.99
    assert list(counts_of(trace).places["copies"]) == ["cudaMemcpyAsync at train.py:20 batch"]
    recorded = diagnose(trace, costs_of(None).fit).recorded
    assert recorded is not None
    assert [one.place for one in recorded.blockers] == ["train.py:20 batch"]


@pytest.mark.parametrize(("before", "after", "more"), [
    ({60: 1}, {41: 1, 61: 1}, {41: 1}),  # a new line ahead of one that moved
    ({60: 1}, {61: 1, 63: 1}, {63: 1}),
    ({51: 0.02}, {47: 1, 53: 0.02}, {47: 1}),  # beside one that few steps reach
    ({60: 3}, {70: 4}, {70: 1}),
    ({60: 2, 62: 1}, {60: 1}, {60: -2}),
    ({60: 2, 64: 1}, {70: 2}, {64: -1}),
])  # fmt: skip
def test_lines_of_a_function_that_belong_together_are_compared(
    before: dict[int, float], after: dict[int, float], more: dict[int, float]
) -> None:
    def side(name: str, lines: dict[int, float]) -> Side:
        places = {f"cudaStreamSynchronize at train.py:{line} step": count for line, count in lines.items()}
        return Side(name, Counts(figures={"waits": sum(lines.values())}, places={"waits": places}, steps=50))

    (found,) = compare(side("before", before), side("after", after)).differences
    assert found.places == {f"cudaStreamSynchronize at train.py:{line} step": count for line, count in more.items()}


def test_launches_that_samples_give_to_a_neighbour_are_not_named() -> None:
    def side(name: str, lines: dict[int, tuple[str, float]]) -> Side:
        places = {f"cudaLaunchKernel at train.py:{line} {of}": count for line, (of, count) in lines.items()}
        return Side(name, Counts(figures={"launches": sum(count for _, count in lines.values())},
                                 places={"launches": places}, steps=50))  # fmt: skip

    before = side("before", {22: ("forward", 40), 51: ("step", 30), 53: ("step", 9)})
    after = side("after", {20: ("normalize", 1), 22: ("forward", 37), 51: ("step", 33), 53: ("step", 9)})
    for one, other, more in ((before, after, 1), (after, before, -1)):
        (found,) = compare(one, other).differences
        assert found.places == {"cudaLaunchKernel at train.py:20 normalize": more}


def test_helpers_of_libraries_are_not_counted_and_other_gpus_agree() -> None:
    def product(names: list[str], gpu: str) -> Trace:
        made = Recorder()
        for _ in made.steps(9):
            for name in ("mine", *names):
                made.runs(9000)
                if name == "memset":
                    made.submit(made.call("cudaMemsetAsync", 3000), "Memset", 900, kind="memset", size=64)
                else:
                    made.launch(name, 3000)
        return made.trace(gpus={0: gpu})

    here = counts_of(
        product(["memset", "nvjet_sm90_tst_64x8_splitK", "void cublasLt::splitKreduce_kernel<32>(int)"], "H")
    )
    there = counts_of(product(["sm80_xmma_gemm_f32_tilesize32x32x8_stage3_cublas"], "A"))
    assert here.figures == there.figures == {"kernels": 2, "launches": 2}
    assert here.kernels == there.kernels == {"matrix product": 1, "mine": 1}
    assert here.seen["H"].extra == {"helpers of cuBLAS": 1, "memsets for a kernel": 1}
    assert list(here.seen["H"].names) == ["matrix product", "helpers of cuBLAS"]
    both = read_counts(written(there, here), "x")
    assert (both.figures, set(both.seen)) == (here.figures, {"H", "A"})


@pytest.mark.parametrize(("operator", "memsets"), [("aten::zero_", 1), ("aten::mm", 0)])
def test_a_memset_of_another_operator_is_the_program_s_own(operator: str, memsets: int) -> None:
    made = Recorder()
    for _ in made.steps(9):
        made.runs(9000)
        with made.range(operator):
            made.submit(made.call("cudaMemsetAsync", 3000), "Memset", 900, kind="memset", size=64)
        with made.range("aten::mm"):
            made.launch("nvjet_sm90_tst_64x8_TNT", 3000)
    counts = counts_of(made.trace(gpus={0: "H"}))
    assert counts.figures.get("memsets", 0) == memsets
    assert counts.seen["H"].extra == ({} if memsets else {"memsets for a kernel": 1})


def test_without_steps_the_whole_trace_is_counted() -> None:
    made = Recorder()
    for kernel in range(7):
        made.runs(1000 * kernel**2)
        made.launch(f"kernel_{kernel}", 3000)
    found = counts_of(made.trace())
    assert (found.figures["launches"], found.steps) == (7, 0)
    assert "cannot be matched" in changed(made.trace(), program()).why_not
    assert changed(made.trace(), made.trace()).differences == ()


def test_repetitions_of_another_length_are_matched() -> None:
    one, two = counts_of(program()), counts_of(program(seed=3))
    twice = {name: 2 * count for name, count in two.kernels.items()}
    longer = msgspec.structs.replace(
        two, kernels=twice, figures={name: 2 * count for name, count in two.figures.items()}, of="repetition",
        copies={name: 2 * count for name, count in two.copies.items()}, places={},
    )  # fmt: skip
    found = compare(Side("a", msgspec.structs.replace(one, places={})), Side("b", longer))
    assert (found.every, found.differences) == ((2, 1), ())


def test_the_figures_that_are_named_are_all() -> None:
    named = (Counts.__doc__ or "").partition("not 0 of: ")[2].partition(".")[0]
    assert [one.strip() for one in named.split(",")] == list(FIGURES)


# Findings


def found_in(made: Recorder) -> dict[str, str]:
    return {one.rule: one.title for one in findings(diagnose(made.trace(), costs_of(None).fit))}


@pytest.mark.parametrize(("graphs", "launches", "words"), [
    (0, 2, None), (1, 1, "Each step makes 1 graph, and each is launched once: 90.0 µs of the host"),
    (1, 3, "Each step makes 1 graph: 90.0 µs of the host"),
    (2, 2, "Each step makes 2 graphs, and each is launched once"),
])  # fmt: skip
def test_a_graph_that_each_step_makes_is_named(graphs: int, launches: int, words: str | None) -> None:
    made = Recorder()
    for step in range(9):
        with made.range(f"train.py({step}): step", "python"), made.range(f"step#{step}", "annotation"):
            for _ in range(graphs):
                made.call("cudaGraphInstantiateWithFlags", 90_000)
            for _ in range(launches):
                made.runs(9000)
                made.submit(made.call("cudaGraphLaunch", 9000), "kernel", 3000, node=1)
    title = found_in(made).get("diagnose.graph_made")
    assert ("diagnose.no_graph" in found_in(made)) is (words is None)  # one statement about graphs
    assert (title is None) if words is None else (title or "").startswith(words)


@pytest.mark.parametrize(("call_ns", "kernel_ns", "slow"), [(2_000_000, 3000, True), (900_000, 3000, False),
                                                            (2_000_000, 2_500_000, False)])  # fmt: skip
def test_graph_launches_of_milliseconds_are_named(call_ns: int, kernel_ns: int, slow: bool) -> None:
    made = Recorder()
    for _ in made.steps(9):
        made.runs(9000)
        made.submit(made.call("cudaGraphLaunch", call_ns), "kernel", kernel_ns, node=1)
        if kernel_ns < call_ns:
            made.wait()
    title = found_in(made).get("diagnose.slow_replay")
    assert (title == "A launch of a graph takes 2.00 ms of the host, while the GPU has nothing to do") is slow


@pytest.mark.parametrize(("held", "left", "named"), [(60, 40, True), (60, 19, False), (2, 98, True), (98, 2, False)])
def test_the_part_of_a_step_that_graphs_hold_is_named(held: int, left: int, named: bool) -> None:
    made = Recorder()
    for _ in made.steps(9):
        replay = made.call("cudaGraphLaunch", 9000)
        for node in range(held):
            made.submit(replay, f"node_{node}", 3000, node=node + 1)
        made.launches(left)
        made.wait()
    title = found_in(made).get("diagnose.graph_part")
    assert (title == f"Graphs hold {held:.1f} % of the kernels; {left} are launched one by one") is named
    found = diagnosed(made)
    advised = line_of(found, "next") == f"{title}. Capture these too, or the whole step in one graph"
    assert advised is (named and found.bound == "launch-bound")
    assert ("diagnose.no_graph" in found_in(made)) is not named  # one statement about graphs


def test_what_a_graph_cannot_hold_between_kernels_keeps_from_capturing_them_too() -> None:
    made = Recorder()
    for _ in made.steps(9):
        replay = made.call("cudaGraphLaunch", 9000)
        for node in range(20):
            made.submit(replay, f"node_{node}", 3000, node=node + 1)
        for _ in range(2):
            made.launches(20)
            made.wait()
    found = diagnosed(made)
    assert found.bound in ("launch-bound", "wait-bound")
    assert "diagnose.graph_part" in found_in(made)
    assert "Capture these too" not in line_of(found, "next")


@pytest.mark.parametrize(("kernels", "name", "named"), [
    (60, "at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)", True),
    (29, "at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)", False),
    (60, "at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<1> >(int)", False),
])  # fmt: skip
def test_an_optimizer_with_kernels_for_each_parameter_is_named(kernels: int, name: str, named: bool) -> None:
    made = Recorder()
    for _ in made.steps(9):
        made.launches(50)
        with made.range("Optimizer.step#AdamW.step"):
            for _ in range(kernels):
                made.runs(9000)
                made.launch(name, 3000)
        made.wait()
    title = found_in(made).get("diagnose.optimizer")
    words = "The optimizer AdamW launches 60 kernels each time, for each parameter anew: 54.5 % of the launches"
    assert (title == words) is named
    assert line_of(diagnosed(made), "next").startswith(words) is named  # before a graph, which costs more


def test_an_optimizer_is_named_where_what_repeats_is_its_work_for_one_parameter() -> None:
    made = Recorder()
    made.launches(5)
    with made.range("Optimizer.step#Adam.step"):
        for _ in range(22):
            for kind in ("mul", "add", "sqrt"):
                made.runs(9000)
                made.launch(f"at::native::vectorized_elementwise_kernel<4, {kind}>(int)", 2000)
    found = diagnosed(made)
    assert found.step.kernels == 3
    assert line_of(found, "next").startswith(
        "The optimizer Adam launches 60 kernels each time, for each parameter anew"
    )


# Files of counts


def test_counts_are_written_sorted_and_read_again() -> None:
    found = counts_of(program("wait"))
    data = written(found)
    assert are_counts(data[:400])
    assert not are_counts(kineto(program())[:400])
    assert read_counts(data, "base") == found
    whole = json.loads(data)
    assert list(whole) == sorted(whole)
    assert list(whole["kernels"]) == sorted(whole["kernels"])
    assert data == written(counts_of(program("wait")))


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"figures": 3}', b'{"figures": {}, "format": "later"}', b"\xff{"]
)
def test_other_files_are_no_counts(data: bytes) -> None:
    with pytest.raises(UsageError):
        read_counts(data, "base")


# Limits


@pytest.mark.parametrize(("text", "failed"), [
    ("launches>+0", True), ("launches>+1", False), ("launches>9", True), ("launches>10", False), ("kernels>+5%", True),
    ("kernels>+12%", False), ("waits>+0", False), ("waits>0", True), ("graphs>+0", False), ("Launches > +0", True),
    ("waits for the gpu>0", True), ("stream-waits>0", False), ("pageable copies>+0", False),
])  # fmt: skip
def test_limits_are_passed_or_not(text: str, failed: bool) -> None:
    before, after = counts_of(program()), counts_of(program("kernel", seed=1))
    (limit,) = limits(text)
    assert limit.passed(before, after) is failed


@pytest.mark.parametrize("text", ["", "launches", "time>+0", "launches>0%", "launches>+x", "launches>+0,,waits>1"])
def test_limits_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        limits(text)


def test_a_graph_that_is_updated_counts_as_made() -> None:
    (limit,) = limits("graphs>+0")
    assert limit.passed(Counts(figures={}), Counts(figures={"updates": 1}))


# The command


def at(folder: Path, name: str, trace: Trace, epoch_s: int = 0) -> str:
    path = folder / name
    base = f'"baseTimeNanoseconds": {epoch_s * 10**9}'.encode()
    path.write_bytes(kineto(trace).replace(b'"baseTimeNanoseconds": 0', base))
    return str(path)


def test_two_recordings_one_after_the_other_are_compared(tmp_path: Path) -> None:
    before, after = at(tmp_path, "before.json", program(), 100), at(tmp_path, "after.json", program("wait", 1), 900)
    shown = call("diagnose", before, after, COLUMNS="120")
    assert shown.exit_code == ExitCode.MEASURED
    for words in (
        "What changed",
        "A step does more: 1 more wait for the GPU",
        "+1 cudaStreamSynchronize in aten::item",
    ):
        assert words in " ".join(shown.output.split())
    failed = call("diagnose", before, after, "--fail-on", "launches>+0, waits>+0", "--json")
    assert failed.exit_code == ExitCode.CHANGED
    assert "failed: waits>+0" in failed.output
    assert "failed: launches" not in failed.output
    assert call("diagnose", before, after, "--fail-on", "launches>+0").exit_code == ExitCode.MEASURED
    assert call("diagnose", before, after, "--fail-on", "idle>5%").exit_code == ExitCode.USAGE


def test_two_recordings_that_cannot_be_compared_end_with_4(tmp_path: Path) -> None:
    made = Recorder()
    for kernel in range(7):
        made.runs(1000 * kernel**2)
        made.launch(f"kernel_{kernel}", 3000)
    result = call(
        "diagnose", at(tmp_path, "before.json", made.trace(), 100), at(tmp_path, "after.json", program(), 900)
    )
    assert "Nothing can be compared" in result.output
    assert result.exit_code == ExitCode.UNREADABLE_RUN


@pytest.mark.parametrize(("seed", "steps", "judged"), [
    (1, 12, "another GPU"), (2, 3, "too few steps"), (2, 12, "slower"),
])  # fmt: skip
def test_times_of_few_steps_or_of_another_gpu_are_not_judged(
    tmp_path: Path, seed: int, steps: int, judged: str
) -> None:
    slow = program("wait", seed, steps=steps)
    for table in (slow.calls, slow.work, slow.ranges):
        table["begin_ns"] *= 3
        table["end_ns"] *= 3
    before, after = at(tmp_path, "before.json", program(), 100), at(tmp_path, "after.json", slow, 900)
    times = json.loads(call("diagnose", before, after, "--json").stdout)["times"]
    assert {one["judged"] for one in times} - {"within noise"} == {judged}


def test_ranks_stay_ranks(tmp_path: Path) -> None:
    one, two = at(tmp_path, "rank0.json", program(), 100), at(tmp_path, "rank1.json", program("wait", 1), 100)
    assert "2 traces" in call("diagnose", one, two).output
    assert "What changed" in call("diagnose", one, two, "--fail-on", "launches>+0").output
    assert "2 traces" in call("diagnose", str(tmp_path)).output


@pytest.mark.parametrize("text", [text[:2000] for text in HOSTILE])
def test_no_name_of_a_trace_breaks_out(tmp_path: Path, text: str) -> None:
    before, after = at(tmp_path, "before.json", program(), 100), at(tmp_path, "after.json", hostile(text).trace(), 900)
    for options in ((after, "--counts"), (after, "--openmetrics"), (before, after, "--markdown"), (before, after)):
        result = call("diagnose", *options)
        assert result.exit_code == ExitCode.MEASURED
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u2028\u202e]", result.output)
        assert "--markdown" not in options or not re.search("<(?!/?sub>)", result.output)


def test_a_picture_is_drawn_of_what_changed(tmp_path: Path) -> None:
    before, after = at(tmp_path, "before.json", program(), 100), at(tmp_path, "after.json", program("wait", 1), 900)
    for name, files in (("one.svg", (after, "--counts")), ("two.svg", (before, after))):
        assert call("diagnose", *files, "--svg", str(tmp_path / name)).exit_code == ExitCode.MEASURED
        assert "<svg" in (tmp_path / name).read_text(encoding="utf-8")
    assert call("diagnose", before, after, "--openmetrics").exit_code == ExitCode.USAGE


def test_records_that_a_trace_lacks_are_said(tmp_path: Path) -> None:
    whole = program(seed=1)
    before = at(tmp_path, "before.json", program(), 100)
    after = at(tmp_path, "after.json", msgspec.structs.replace(whole, work=whole.work[::2]), 900)
    shown = " ".join(call("diagnose", before, after, COLUMNS="160").output.split())
    assert "Counts may be too low: after.json has 59 launches without work" in shown
    assert "before.json has" not in shown


def test_counts_of_a_step_are_a_baseline(tmp_path: Path) -> None:
    trace = at(tmp_path, "trace.json", program())
    made = call("diagnose", trace, "--counts", "--json")
    base = tmp_path / "counts.json"
    base.write_text(made.output)
    assert read_counts(made.output.encode(), "x").figures == {"copies": 1, "kernels": 9, "launches": 9, "waits": 1}
    same = call("diagnose", str(base), trace, "--fail-on", "launches>+0,waits>+0,pageable>+0,graphs>+0")
    assert same.exit_code == ExitCode.MEASURED
    assert "The counts of a step are the same" in same.output
    more = call("diagnose", str(base), at(tmp_path, "new.json", program("pageable", 1)), "--fail-on", "pageable>+0")
    assert more.exit_code == ExitCode.CHANGED
    screen = call("diagnose", trace, "--counts", COLUMNS="100").output
    for words in ("9 launches, 9 kernels, 1 wait for the GPU, 1 copy", "to the GPU, pinned, 4 KiB", "work_4"):
        assert words in screen
    metrics = call("diagnose", trace, "--openmetrics").output
    assert 'microbench_step_count{recording="trace.json",figure="launches"} 9.0' in metrics
    assert metrics.endswith("# EOF\n")
    assert call("diagnose", trace, "--fail-on", "launches>8").exit_code == ExitCode.CHANGED
    assert call("diagnose", trace, "--fail-on", "launches>+8").exit_code == ExitCode.USAGE
    assert call("diagnose", trace, "--markdown").exit_code == ExitCode.USAGE
    assert call("diagnose", str(tmp_path), "--counts").exit_code == ExitCode.USAGE


def test_markdown_is_short_and_safe() -> None:
    before, after = counts_of(program()), counts_of(program("wait", 1))
    many = {f"<b>|kernel*{number}" * 9: number + 1 for number in range(500)}
    places = {"waits": {f"cudaStreamSynchronize at <img> {number}": 1 for number in range(60)}}
    wild = msgspec.structs.replace(after, kernels=many, places=places)
    for left, right in ((before, after), (before, wild), (wild, before)):
        text = changed_markdown(compare(Side("a|b", left), Side("<i>", right)))
        assert len(text.splitlines()) <= MOST_LINES
        assert "**A step does" in text.splitlines()[0]
        assert "<b>" not in text
        assert "<img>" not in text
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert {row.replace("\\|", "").count("|") for row in rows} == {5}


def test_two_traces_without_a_common_time_are_no_ranks() -> None:
    def both(*traces: Trace) -> bool:
        return are_two([SimpleNamespace(trace=one) for one in traces])  # type: ignore[arg-type]

    one = msgspec.structs.replace(program(), epoch_ns=10**18)
    later = msgspec.structs.replace(program(seed=1), epoch_ns=10**18 + 10**12)
    assert both(one, later)
    assert not both(one, one)
    assert both(one, msgspec.structs.replace(one, epoch_ns=None))
    ranks = [msgspec.structs.replace(each, rank=rank) for each, rank in ((one, 0), (one, 1), (later, 1))]
    assert not both(ranks[0], ranks[1])
    assert both(ranks[0], ranks[2]), "of two jobs"
    assert both(ranks[1], ranks[1]), "a rank has one recording of a time"
    assert not both(one, later, later)
