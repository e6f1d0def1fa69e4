"""Workloads from a file, an example's name or options; nonsense is an error with its place and a next step."""

import re
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from texts import any_text

from microbench.cli import options
from microbench.core.errors import UsageError
from microbench.core.units import typed_factor, typed_rate, typed_size
from microbench.gpu.layers.base import layer_names
from microbench.model import step_file
from microbench.model.step_file import examples
from microbench.model.workload import MOST_KERNELS, Copies, Event, HostWork, Kernels, StepOptions, Wait, Workload

described = partial(step_file.described, layers=layer_names())
parsed = partial(step_file.parsed, layers=layer_names())
read = partial(step_file.read, layers=layer_names())

MIXED = """
title = "mixed"
layer = "torch"
streams = 2
replays = 50
unit = "token"
per_step = 2

[[part]]
copy = "h2d"
size = "16 KiB"
count = 3
memory = "pageable"

[[part]]
repeat = 2
parts = [{kernels = 3, duration = ["2us", "3us"], host = "1us"}, {kernels = 1, bytes = "12 MB", arguments = 4}]

[[part]]
record_event = 1
stream = 0

[[part]]
wait_event = 1
stream = 1

[[part]]
host = "4us"

[[part]]
sync = true
"""


def test_a_file_becomes_a_workload() -> None:
    first = Kernels(3, (2e-6, 3e-6), host_s=1e-6)
    second = Kernels(1, bytes=12e6, arguments=4)
    copies = Copies("h2d", 16384, 3, "pageable")
    found = parsed(MIXED, "mixed.toml")
    events = (Event(1, 0), Event(1, 1, awaited=True))
    assert found.parts == (copies, first, second, first, second, *events, HostWork(4e-6), Wait())
    assert (found.layer, found.streams, found.replays, found.unit, found.per_step) == ("torch_eager", 2, 50, "token", 2)


MEMSET = 'kernels = 2\nduration = "0.8us"\nmemset = '


@pytest.mark.parametrize(("text", "parts"), [
    ('kernels = 5\nduration = "6us"', (Kernels(5, (6e-6,)),)),
    ('kernels = 1\nduration = "6us"\n[[part]]\ncopy = "d2h"\nsize = 64\nhost = "4us"',
     (Kernels(1, (6e-6,)), Copies("d2h", 64, host_s=4e-6))),
    (f"{MEMSET}true\n[[part]]\n{MEMSET}false", (Kernels(2, (0.8e-6,), memset=True), Kernels(2, (0.8e-6,)))),
])  # fmt: skip
def test_keys_that_are_left_out_have_defaults(text: str, parts: tuple[Kernels | Copies, ...]) -> None:
    found = parsed(f"[[part]]\n{text}", "short.toml")
    assert found == Workload(parts, title="short.toml")
    assert parsed(step_file.written(found), "again.toml").parts == parts


@pytest.mark.parametrize(("text", "message"), [
    ("= 3", r"bad\.toml is not TOML"), ("", r"bad\.toml describes no part"),
    ("part = 3", r"bad\.toml: part is not a list"), ("[[part]]", r"part 1 does not say what it is"),
    ('[[part]]\nkernels = 3\nduration = "1us"\nsync = true', r"part 1 is both kernels and sync"),
    ("[[part]]\nkernels = 3", r"part 1: nothing says how long"),
    ('[[part]]\nkernels = 0\nduration = "1us"', r"part 1, kernels: 0 is too small"),
    ('[[part]]\nkernels = -4\nduration = "1us"', r"part 1, kernels: -4 is too small"),
    ('[[part]]\nkernels = 1.5\nduration = "1us"', r"part 1, kernels: 1\.5 is not a whole number"),
    ('[[part]]\nkernels = "3"\nduration = "1us"', r'part 1, kernels: "3" is not a whole number'),
    ('[[part]]\nkernels = true\nduration = "1us"', r"part 1, kernels: true is not a whole number"),
    ("[[part]]\nkernels = 3\nduration = 6", r"part 1, duration: 6 is not a time"),
    ('[[part]]\nkernels = 3\nduration = "-6us"', r"part 1, duration: -6us is not a time"),
    ("[[part]]\nkernels = 3\nduration = nan", r"part 1, duration: nan is not a time"),
    ("[[part]]\nkernels = 3\nduration = []", r"part 1, duration: the list is empty"),
    ('[[part]]\nkernels = 3\nduration = "11s"', r"part 1, duration: 11s is too long"),
    ('[[part]]\nkernels = 3\nbytes = "2000 TB"', r"part 1, bytes: 2000 TB is too large"),
    ('[[part]]\nkernels = 3\nbytes = "12 parsecs"', r"part 1, bytes: 12 parsecs"),
    ('[[part]]\nkernels = 3\nduration = "1us"\nlayer = "torhc"', r"part 1, layer: there is no layer torhc"),
    ('[[part]]\nkernels = 3\nduration = "1us"\nsize = 4', r"part 1: there is no key size in a kernels part"),
    ('[[part]]\ncopy = "h2h"\nsize = 4', r"part 1, copy: there is no h2h"),
    ('[[part]]\ncopy = "h2d"', r"part 1: nothing says how much"),
    ('[[part]]\ncopy = "h2d"\nsize = 0', r"part 1, size: 0 is too small"),
    ('[[part]]\ncopy = "h2d"\nsize = 1\nmemory = "soft"', r"part 1, memory: there is no soft"),
    ("[[part]]\nsync = false", r"part 1, sync: false is not true"),
    (f"[[part]]\n{MEMSET}1", "memset is neither true nor false"),
    ('[[part]]\nkernels = 1\ncopy = "d2h"\nsize = 64\nhost = "4us"', "is both kernels and copy"),
    ('[[part]]\nhost = "1us"\nsize = 3', r"there is no key size in a host part"),
    ("[[part]]\nrecord_event = 3", r"part 1: nothing says which stream"),
    ("[[part]]\nwait_event = 3\nstream = -1", r"part 1, stream: -1 is too small"),
    (MIXED.replace("stream = 1\n", "stream = 2\n"), r"a part goes to stream 2, and the step has 2"),
    ("[[part]]\nrepeat = 3", r"part 1: nothing says what is repeated"),
    ("[[part]]\nrepeat = 3\nparts = []", r"bad\.toml describes no part"),
    ("[[part]]\nrepeat = 3\nparts = [{repeat = 2, parts = []}]", r"part 1: a repeat stands inside a repeat"),
    ("[[part]]\nrepeat = 3\nparts = [{kernels = 1}]", r"part 1, part 1: nothing says how long"),
    ("[[part]]\nrepeat = 9999\nparts = [{sync = true}, {sync = true}]", r"9999 times 2 parts are too many"),
    ("[[part]]\nsync = true", r"bad\.toml launches no kernel"),
    ('[[part]]\nkernels = 60000\nduration = 0\n[[part]]\nkernels = 60000\nduration = "1us"', "120000 kernels"),
    ("per_step = -1\n" + MIXED.replace("per_step = 2", ""), r"per_step: -1 is not a number above 0"),
    ("per_step = 1e300\n" + MIXED.replace("per_step = 2", ""), r"per_step: 1e\+300 is too large"),
    (f'unit = "{"u" * 500}"\n' + MIXED.replace('unit = "token"', ""), r"unit: u{40}.* is too long"),
    ('unit = " "\n' + MIXED.replace('unit = "token"', ""), r"unit: it is empty"),
    ("per_step = inf\n" + MIXED.replace("per_step = 2", ""), r"per_step: inf is not a number above 0"),
    (MIXED.replace("streams = 2", "streams = 1000"), r"streams: 1000 is too large"),
    (MIXED.replace("replays = 50", "replays = 0"), r"replays: 0 is too small"),
    (MIXED.replace('unit = "token"', "unit = 3"), r"unit: 3 is not a text"),
    (MIXED.replace("streams", "streems"), r"there is no key streems"),
])  # fmt: skip
def test_nonsense_is_an_error_with_its_place_and_a_next_step(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parsed(text, "bad.toml")
    assert "bad.toml" in caught.value.cause
    assert caught.value.next_step
    assert "\n" not in caught.value.cause + caught.value.next_step


@given(any_text(200))
def test_any_text_is_a_workload_or_an_error(text: str) -> None:
    with suppress(UsageError):
        assert parsed(text, "any.toml").kernels > 0


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'title = "\xe9"')
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 20) + b"#")
    for name, message in (("latin", "not UTF-8"), ("large", "too large to describe"), ("none", "cannot be read")):
        with pytest.raises(UsageError, match=message):
            read(tmp_path / f"{name}.toml")
    for path, message in ((f"{tmp_path}/", "cannot be read"), ("/dev/zero", "not a regular file")):
        with pytest.raises(UsageError, match=message):
            read(path)


@pytest.mark.parametrize("name", sorted(examples()))
def test_an_example_has_a_title_and_names_its_guesses(name: str) -> None:
    found = read(name)
    assert found.title
    assert "guess" in found.about.lower()
    assert found.kernels > 0


def test_the_examples_are_those_that_help_names() -> None:
    assert options.EXAMPLES.split(", ") == list(examples())


def test_a_token_of_the_7b_model_reads_its_weights_once() -> None:
    """32 layers of four 4096 x 4096 and three 4096 x 11008 matrices, and 32000 x 4096 for the scores, in 2 bytes."""
    kernels = [part for part in read("decode-7b").parts if isinstance(part, Kernels)]
    weights = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 32000 * 4096
    assert sum(part.count * part.bytes for part in kernels) == 2 * weights
    assert sum(part.count for part in kernels) == 1100
    about = " ".join(read("decode-7b").about.split())
    for bandwidth, rate in re.findall(r"\((\d+) and (\d+) GB/s\).*?", about):
        assert [f"{float(one) * 1e9 / (2 * weights):.0f}" for one in (bandwidth, rate)] == ["76", "154"]
    assert "76 and 154 tokens/s" in about


def single(workload: Workload) -> list[object]:
    """The parts with each kernel by itself, times to the ps, which is how runs of alike kernels can be compared."""

    def rounded(part: object) -> object:
        if isinstance(part, Kernels) and len(part.durations_s) == 1:
            host_s = None if part.host_s is None else round(part.host_s, 12)
            return replace(part, count=1, durations_s=(round(part.durations_s[0], 12),), host_s=host_s)
        return replace(part, seconds=round(part.seconds, 12)) if isinstance(part, HostWork) else part

    return [
        rounded(part)
        for part in workload.parts
        for _ in range(part.count if isinstance(part, Kernels) and len(part.durations_s) == 1 else 1)
    ]


@pytest.mark.parametrize("name", [*sorted(examples()), "mixed.toml"])
def test_a_written_step_is_read_again(name: str) -> None:
    step = parsed(MIXED, name) if name == "mixed.toml" else read(name)
    again = parsed(step_file.written(step), "again.toml")
    assert single(again) == single(step)
    assert replace(again, parts=(), about="") == replace(step, parts=(), about="")


@given(title=any_text())
@example(title=".a" * 40)
@example(title="1" * 500)
@example(title='"\\\x7f\u2028\ud800')
def test_any_title_can_be_written(title: str) -> None:
    written = step_file.written(Workload((Kernels(1, (1e-6,)),), title=title, about=title))
    assert parsed(written, "again.toml").kernels == 1


def test_a_long_step_is_written_with_alike_kernels_merged() -> None:
    each = [
        Kernels(1, ((2 + place % 7 * 1e-3) * 1e-6,), host_s=(14 + place % 5 * 1e-3) * 1e-6) for place in range(30_000)
    ]
    step = Workload((*each, HostWork(1e-3), Kernels(1, (9e-6,), host_s=1e-6)))
    text = step_file.written(step)
    assert len(text) < 1000
    again = parsed(text, "again.toml")
    assert again.kernels == step.kernels
    for field in ("durations_s", "host_s"):
        sums = [
            sum(sum(part.durations_s) * part.count if field == "durations_s" else (part.host_s or 0.0) * part.count
                for part in one.parts if isinstance(part, Kernels))
            for one in (step, again)
        ]  # fmt: skip
        assert sums[1] == pytest.approx(sums[0], rel=1e-6)


def test_a_step_that_cannot_be_described_is_not_written() -> None:
    different = tuple(Kernels(1, (place * 1e-9,), host_s=place * 1e-8) for place in range(1, 30_000))
    unlike = Workload(tuple(part for pair in zip(different, reversed(different), strict=True) for part in pair))
    with pytest.raises(UsageError, match="does not fit into a file"):
        step_file.written(unlike)
    with pytest.raises(UsageError, match="too long"):
        step_file.written(Workload((Kernels(1, (1e-6,)), HostWork(60.0))))


def test_options_become_kernels_and_one_wait() -> None:
    found = described(None, StepOptions(kernels=1100, duration="6us", layer="torch"))
    assert found.parts == (Kernels(1100, (6e-6,)), Wait())
    assert found.layer == "torch_eager"


@given(st.integers(1, 300), st.integers(0, 300))
def test_kernels_are_parted_evenly_by_their_waits(count: int, waits: int) -> None:
    step = StepOptions(kernels=count, duration="1us", syncs_per_step=waits)
    if waits > count:
        with pytest.raises(UsageError, match="--syncs-per-step"):
            described(None, step)
        return
    parts = described(None, step).parts
    runs = [part.count for part in parts if isinstance(part, Kernels)]
    assert sum(runs) == count
    assert max(runs) - min(runs) <= 1
    assert sum(isinstance(part, Wait) for part in parts) == waits
    assert isinstance(parts[-1], Wait) == (waits > 0)


def test_copies_come_first_and_before_the_last_wait() -> None:
    step = StepOptions(kernels=4, duration="1us", syncs_per_step=2, copy_in="1MiB", copy_out="4 KiB", arguments=3)
    kernels = Kernels(2, (1e-6,), arguments=3)
    expected = (Copies("h2d", 1 << 20), kernels, Wait(), kernels, Copies("d2h", 4096), Wait())
    assert described(None, step).parts == expected


def test_a_named_workload_takes_another_layer_but_no_other_kernels() -> None:
    found = described("decode-7b", StepOptions(layer="c++", streams=3, replays=7))
    assert (found.layer, found.streams, found.replays) == ("loop", 3, 7)
    assert found.parts == read("decode-7b").parts
    with pytest.raises(UsageError, match="--copy-in"):
        described("decode-7b", StepOptions(copy_in="1MiB"))


@pytest.mark.parametrize(("step", "message"), [
    (StepOptions(), "nothing says what the step does"), (StepOptions(kernels=3), "nothing says how long a kernel runs"),
    (StepOptions(duration="1us"), "nothing says how many kernels"),
    (StepOptions(kernels=0, duration="1us"), "--kernels: 0"),
    (StepOptions(kernels=MOST_KERNELS + 1, duration="1us"), "--kernels"),
    (StepOptions(kernels=3, duration="1 parsec"), "--duration: 1 parsec"),
    (StepOptions(kernels=3, duration="1us", arguments=-1), "--arguments: -1"),
    (StepOptions(kernels=3, duration="1us", syncs_per_step=-1), "--syncs-per-step: -1"),
    (StepOptions(kernels=3, duration="1us", copy_in="0"), "--copy-in: 0"),
    (StepOptions(kernels=3, duration="1us", copy_out="9000000 TB"), "--copy-out"),
    (StepOptions(kernels=3, duration="1us", streams=0), "--streams: 0"),
    (StepOptions(kernels=3, duration="1us", replays=0), "--replays: 0"),
    (StepOptions(kernels=3, duration="1us", layer="tensorflow"), "no layer tensorflow"),
])  # fmt: skip
def test_nonsense_options_are_errors_that_name_them(step: StepOptions, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        described(None, step)
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("text", "size"),
    [("16 KiB", 16384), ("1MiB", 1 << 20), ("12MB", 12_000_000), ("1.5 GB", 1_500_000_000), ("4096", 4096)],
)
def test_typed_sizes(text: str, size: int) -> None:
    assert typed_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1", "1 XB", "1e9", "1..5 GB", "1_000", "nan"])
def test_a_text_that_is_not_a_size_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        typed_size(text)


def test_typed_rates_and_factors() -> None:
    assert typed_rate("2039GB/s") == 2039e9
    assert typed_rate("1.2 TB/s") == pytest.approx(1.2e12)
    assert [typed_factor(text) for text in ("0.5x", "2×", "3", "0")] == [0.5, 2.0, 3.0, 0.0]
    for text in ("2039", "0 GB/s", "-1 GB/s", "x"):
        with pytest.raises(UsageError, match="is not a rate"):
            typed_rate(text)
    for text in ("-1x", "1001x", "half", ""):
        with pytest.raises(UsageError, match="is not a factor"):
            typed_factor(text)
