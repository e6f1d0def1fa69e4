"""The memory suite's section of the report: pictures, tables, and no line wider than the page."""

from link_evidence import with_gpu, without
from make_memory_run import MIB
from memory_evidence import FULL, WHOLE, evidence, with_facts
from msgspec.structs import replace
from sections import cells, drawn, headings, some, study

from microbench.report.suites import memory
from microbench.report.suites.memory import by_dtype, by_implementation, hierarchy, l2_lines, latencies


def test_kernels_by_implementation_with_shares_and_shapes() -> None:
    table = some(by_implementation(evidence()))
    assert table.title == "Streaming kernels on arrays of 1 GiB, fp64, in GB/s"
    assert headings(table) == ["", "CUDA C++", "CuPy", "Numba", "shape of CUDA C++"]
    first = table.rows[0]
    assert (first[0].text, first[1].text, first[1].note) == ("read", "3760", "94.0 %")
    assert first[4].text == "bulk copies of 16 KiB, 2 stages, blocks of 128, 4 blocks an SM"
    assert table.notes == ("ceiling: 4000 GB/s, memory clock 2500 MHz x 2 x 6400 bit",)


def test_types_stand_in_a_table_where_there_are_several() -> None:
    assert by_dtype(evidence()) is None
    table = some(by_dtype(evidence(FULL)))
    assert (headings(table), len(table.rows)) == (["", "fp64", "fp32", "fp16", "int8"], 7)


def test_a_figure_above_its_ceiling_stands_out_and_an_unknown_ceiling_gives_no_share() -> None:
    slow = with_gpu(lambda gpu: replace(gpu, memory_clock_max_hz=2e9), WHOLE)
    assert [cell.tone for cell in some(by_implementation(evidence(slow))).rows[0]][1:4:2] == ["problem", "strong"]
    unknown = with_gpu(lambda gpu: replace(gpu, memory_bus_bits=None), WHOLE)
    table = some(by_implementation(evidence(unknown)))
    assert (cells(table)[1], table.notes) == ("3760", ())


def test_the_hierarchy_is_one_picture() -> None:
    picture = some(hierarchy(evidence()))
    assert picture.x_log
    assert [line.name for line in picture.lines] == [
        "L1 31.9 TB/s, 122 B/clk/SM", "L2 11.0 TB/s, 42.0 B/clk/SM", "DRAM 3.76 TB/s, 14.4 B/clk/SM", "",
    ]  # fmt: skip
    assert [mark.text for mark in picture.marks] == ["L1 to 192 KiB", "L2 to 32 MiB", "L2 is 48 MiB"]
    assert picture.about.endswith("from shared memory 33.2 TB/s, 127 B/clk/SM")
    assert len(picture.lines[-1].points) == 18
    assert [tick.text for tick in picture.y_ticks] == ["5 TB/s", "10 TB/s", "20 TB/s", "50 TB/s"]  # room for the marks


def test_a_knee_at_the_reported_size_is_marked_once() -> None:
    near = with_gpu(lambda gpu: replace(gpu, l2_bytes=33 * MIB), WHOLE)
    assert [mark.text for mark in some(hierarchy(evidence(near))).marks] == ["L1 to 192 KiB", "L2 to 32 MiB"]


def test_latency_is_a_picture_with_the_reach_of_the_tlb() -> None:
    picture = some(latencies(evidence()))
    assert [line.name for line in picture.lines][:3] == [
        "L1 16.6 ns, 33.2 cycles", "L2 132 ns, 262 cycles", "DRAM 282 ns, 559 cycles",
    ]  # fmt: skip
    assert [mark.text for mark in picture.marks] == ["L2 is 48 MiB", "TLB reach 2.00 GiB"]
    assert {"20 ns", "100 ns", "500 ns"} <= {tick.text for tick in picture.y_ticks}


def test_latency_under_load_is_a_curve_over_the_bandwidth() -> None:
    picture = some(memory.under_load(evidence()))
    assert [line.name.split(" at ")[-1] for line in picture.lines] == ["3.61 TB/s", "10.3 TB/s"]
    assert picture.lines[0].name.startswith("DRAM 283 ns idle, 55")
    assert not picture.x_log
    xs, ys = zip(*picture.lines[0].points, strict=True)
    assert (xs[0], len(xs)) == (0.0, 6)
    assert list(xs) == sorted(xs)
    assert ys[-1] > 1.9 * ys[0]
    assert memory.under_load(evidence(without("memory_loaded", WHOLE, level="dram"))) is not None
    few = without("memory_loaded", without("memory_loaded", WHOLE, level="dram"), load_percent=20)
    few = without("memory_loaded", without("memory_loaded", few, load_percent=50), load_percent=90)
    assert memory.under_load(evidence(few)) is None


def test_near_and_far_lines_are_a_histogram() -> None:
    picture = some(l2_lines(evidence()))
    assert [mark.text for mark in picture.marks] == ["near 262 cycles", "far 421 cycles"]
    assert sum(picture.counts) == 1604


def test_bytes_in_flight_have_a_line_for_each_number_of_loads() -> None:
    picture = some(memory.in_flight(evidence()))
    assert [line.name for line in picture.lines] == ["1 load per thread", "4 loads per thread"]
    assert [mark.text for mark in picture.marks] == ["Little 7.85 KiB", "90 % at 32.0 KiB"]
    full = some(memory.in_flight(evidence(FULL)))
    assert len(full.lines) == 4
    xs = [x for x, _ in full.lines[0].points]
    assert xs == sorted(set(xs))


def test_additions_allocations_and_energy_are_tables() -> None:
    assert cells(memory.additions(evidence())) == ["int32, global", "2.40 GOP/s", "130 GOP/s", "2.60 TOP/s", "1083×"]
    assert cells(memory.allocations(evidence()), 2)[:2] == ["cudaMalloc", "64 MiB"]
    energies = some(memory.energies(evidence()))
    assert [row[0].text for row in energies.rows] == ["read", "write", "copy", "triad", "idle"]
    assert (cells(energies, "read")[2], cells(energies, "idle")[2]) == ("112 pJ/B", "–")


def test_facts_in_bytes_are_short_and_many_shapes_are_counted() -> None:
    whole = with_facts("memory_capacity", total_bytes=146591680 << 10)
    (table,) = study(whole, "memory_capacity").tables
    assert {row[0].text: row[1].text for row in table.rows}["total_bytes"] == "140 GiB"
    assert "under way per sm: 2 KiB to 128 KiB (12 cases)" in study(WHOLE, "memory_occupancy").tables[-1].notes
    assert "shape: 5 different ones (63 cases)" in study(WHOLE, "memory_stream").tables[-1].notes
    notes = study(without("memory_stream", WHOLE, implementation="numba"), "memory_stream").tables[-1].notes
    assert any(note.startswith("shape: bulk_16384B_x2_t128_b4") for note in notes)


def test_the_shape_in_words_has_room_at_120_columns_and_goes_at_80() -> None:
    longest = with_facts("memory_stream", shape="past_16B_x1_t1024")
    assert "16-byte accesses, 1 a thread, no loop, past the L1, blocks of 1024" in drawn(longest)
    assert "columns not shown at this width: shape of CUDA C++" in drawn(longest, 80)
