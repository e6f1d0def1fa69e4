"""Libraries that build kernels in most steps are told from those that load each kernel once."""

from collections.abc import Collection

import pytest
from make_trace import Recorder
from test_diagnose import diagnosed, finding, rules

from microbench.report.sheets.diagnosis import screen

STEPS, BEFORE_NS = 30, 4_000_000


def made(loading: Collection[int], before_ns: int = BEFORE_NS, attention: str = "softmax") -> Recorder:
    """Steps of 10 launches and a wait; in those of ``loading`` the host builds a kernel for so long and loads it."""
    recorder = Recorder()
    for step in range(STEPS + 1):
        recorder.launches(between_ns=100_000)
        if step in loading:
            recorder.runs(before_ns)
            recorder.call("cuLibraryLoadData", 20_000)
        recorder.launch(attention, 3000)
        recorder.wait()
    return recorder


def test_kernels_that_are_built_in_most_steps_are_named_with_what_helps() -> None:
    found = finding(diagnosed(made(range(STEPS + 1))), "diagnose.building")
    assert found.title.startswith(
        f"Libraries build kernels in {STEPS - 1} of {STEPS - 1} steps, mostly because shapes "
    )
    assert found.title.endswith(" change: 4.02 ms of each step")
    assert "cudnn" not in found.advice
    diagnosis = diagnosed(made(range(STEPS + 1)))
    said = {line.name: line.parts[0].text for line in screen(diagnosis, "", "").blocks[0].lines if line.name}
    assert "building kernels in libraries takes 4.02 ms" in said["verdict"]
    assert said["next"] == f"{found.title}. {found.advice}"
    kernel = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop"
    assert (
        "enable_cudnn_sdp(False)"
        in finding(diagnosed(made(range(STEPS), attention=kernel)), "diagnose.building").advice
    )


@pytest.mark.parametrize(
    ("loading", "before_ns"),
    [(range(STEPS // 2), BEFORE_NS), ({2, 13, 21}, BEFORE_NS), (range(STEPS), 50_000)],
    ids=["at the start", "now and then", "ready code"],
)
def test_kernels_that_are_loaded_once_or_seldom_are_not(loading: Collection[int], before_ns: int) -> None:
    assert "diagnose.building" not in rules(diagnosed(made(loading, before_ns)))
