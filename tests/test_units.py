"""Numbers in readable units, and text made safe to show."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import any_text

from microbench.core import units


@pytest.mark.parametrize(("value", "unit", "words"), [
    (3.61e-6, "s/launch", "3.61 µs"), (55.4e9, "B/s", "55.4 GB/s"), (1769.0, "B/launch", "1.77 kB"),
    (285.0, "B/launch", "285 B"), (277e3, "1/s", "277 k/s"), (1021.0, "launch", "1021"), (0.99996e-6, "s", "1.00 µs"),
    (999.4e-9, "s", "999 ns"), (3e-10, "s", "0.300 ns"), (120.0, "s", "120 s"), (-2e-6, "s", "-2.00 µs"),
    (1.98e9, "Hz", "1.98 GHz"), (63.1, "cycle", "63.1 cycles"), (1.078, "1", "1.08"), (3e-6, "1", "0.000"),
    (0.0, "s", "0 s"), (28.1e-12, "J/B", "28.1 pJ/B"), (3e-9, "J/B", "3.00 nJ/B"), (0.0, "J/B", "0 J/B"),
    (0.85e-12, "J/FLOP", "0.850 pJ/FLOP"), (12.3e-12, "J/OP", "12.3 pJ/OP"), (99e-15, "J/FLOP", "99.0 fJ/FLOP"),
    (3e-9, "J/FLOP", "3.00 nJ/FLOP"), (4093.2, "FLOP/clk/SM", "4093 FLOP/clk/SM"),
    (15.97, "OP/clk/SM", "16.0 OP/clk/SM"), (748e12, "FLOP/s", "748 TFLOP/s"), (1.395e9, "Hz", "1.40 GHz"),
    (345e6, "Hz", "345 MHz"), (124.3, "B/clk/SM", "124 B/clk/SM"), (1200.0, "B/clk/SM", "1200 B/clk/SM"),
    (0.4, "B/clk/SM", "0.400 B/clk/SM"), (3.2e9, "OP/s", "3.20 GOP/s"), (512.0, "W", "512 W"), (512.0, "B", "512 B"),
    (None, "s", "–"), (float("nan"), "s", "–"),
])  # fmt: skip
def test_quantity(value: float | None, unit: str, words: str) -> None:
    assert units.quantity(value, unit) == words


@given(st.floats(min_value=1e-9, max_value=999e12))
def test_quantity_keeps_three_digits(value: float) -> None:
    number, _, unit = units.quantity(value, "B/s").partition(" ")
    assert "e" not in number
    scale = {prefix: scale for scale, prefix in units.PREFIXES}[unit.removesuffix("B/s")]
    assert float(number) * scale == pytest.approx(value, rel=0.0051)


def test_shares_ratios_and_sizes() -> None:
    assert (units.spread(0.0118), units.spread(0.12), units.spread(float("inf"))) == ("±1.2 %", "±12 %", "±>999 %")
    assert (units.percent(0.923), units.percent(0.0041), units.percent(1.0)) == ("92.3 %", "0.41 %", "100 %")
    assert (units.times(1.094), units.times(2.44), units.times(17.2)) == ("1.09×", "2.4×", "17×")
    assert (units.size(65536), units.size(4000), units.size(0), units.size(3 << 30)) == (
        "64 KiB", "4000 B", "0 B", "3 GiB",
    )  # fmt: skip
    assert (units.wall(4.21), units.wall(59.6), units.wall(80), units.wall(7500)) == (
        "4.2 s", "1 min 00 s", "1 min 20 s", "2 h 05 min",
    )  # fmt: skip
    assert (units.as_time(1.5e-3), units.rate_of(293e3, "launches")) == ("1.50 ms", "293 k launches/s")


@pytest.mark.parametrize(("name", "value", "title", "words"), [
    ("duration_ns", 10_000, "duration", "10 µs"), ("duration_ns", 1500, "duration", "1.5 µs"),
    ("duration_ns", 0, "duration", "0"), ("argument_bytes", 4096, "argument size", "4 KiB"),
    ("size_bytes", 64 << 20, "size", "64 MiB"), ("streams", 8, "streams", "8"),
    ("layer", "cuda_core", "layer", "cuda_core"),
])  # fmt: skip
def test_axes(name: str, value: int | str, title: str, words: str) -> None:
    assert (units.axis_title(name), units.axis_value(name, value)) == (title, words)


def test_plain_spells_out_what_moves_a_cursor_or_turns_text_around() -> None:
    assert units.plain("a\x1b[31mb\nc\td") == "a\\x1b[31mb c d"
    assert units.plain("x\u202ey\u200fz") == "x\\u202ey\\u200fz"
    assert units.plain("\udc80") == "\\udc80"
    assert units.plain("H200 · µs ±1 % 漢") == "H200 · µs ±1 % 漢"


def test_plain_cuts_what_is_too_long() -> None:
    cut = units.plain("x" * 100_000)
    assert cut.startswith("x" * units.LONGEST)
    assert cut.endswith("… (100000 characters)")


@given(any_text())
def test_plain_leaves_one_line_without_hidden_characters(text: str) -> None:
    assert all(unicodedata.category(one) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for one in units.plain(text))


@given(any_text())
def test_ascii_is_ascii(text: str) -> None:
    assert units.to_ascii(text).isascii()


def test_ascii_has_a_likeness_for_what_reports_write() -> None:
    assert units.to_ascii("3.61 µs ±1.2 % · 2× – … →") == "3.61 us +-1.2 % - 2x - ... ->"
    assert not re.search(r"\?", units.to_ascii("█▒░▌│─├┤┴└┊●◐○◌▼◇✓✗▲•−▸"))


@pytest.mark.parametrize(
    ("count", "words"),
    [(0.0, "0 B"), (633.4, "633 B"), (72_020.0, "70.3 KiB"), (1 << 20, "1.00 MiB"), (float("inf"), "–")],
)
def test_computed_sizes_have_three_digits(count: float, words: str) -> None:
    assert units.about_size(count) == words


def test_sizes_that_were_found_out_are_short() -> None:
    assert [units.short_size(one) for one in (0, 256, 2048, 520 << 20, 146591680 << 10, 142624 << 20)] == [
        "0 B", "256 B", "2 KiB", "520 MiB", "140 GiB", "139 GiB",
    ]  # fmt: skip


def test_tables_that_name_their_unit_hold_bare_figures() -> None:
    assert units.gigabytes(55.43e9) == "55.4"
    assert units.round_percent(0.9) == "90 %"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0971, "1.097×"), (0.94, "0.940×"), (1.9996, "2.00×"), (2.414, "2.41×"), (17.2, "17×"), (0.0123, "0.0123×")],
)
def test_a_ratio_near_one_keeps_its_digits(value: float, text: str) -> None:
    assert units.ratio(value) == text


def test_a_ratio_and_its_range_are_written_alike() -> None:
    assert units.ratio_range(1.0841, 1.1102) == "1.084–1.110"


@pytest.mark.parametrize(("before", "after", "unit", "text"), [
    (3.61e-6, 3.96e-6, "s", "3.61 → 3.96 µs"), (998e-9, 1.05e-6, "s", "998 ns → 1.05 µs"),
    (1021, 1009, "launch", "1021 → 1009"), (5.54e10, 5.2e10, "B/s", "55.4 → 52.0 GB/s"),
    (0, 64e6, "B", "0 B → 64.0 MB"),
])  # fmt: skip
def test_two_values_name_a_common_unit_once(before: float, after: float, unit: str, text: str) -> None:
    assert units.from_to(before, after, unit) == text
