"""Writes numbers for people (no other file scales or rounds), reads what they type, and makes text safe to show."""

import math
import re
import unicodedata

from microbench.core.errors import UsageError

LONGEST = 400
UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
MAYBE_UNSEEN = re.compile(r"[^\x20-\x7e]")

# Replacements for the symbols of the reports, for terminals and pipes that are not UTF-8.
ASCII = str.maketrans(
    {
        "µ": "u", "±": "+-", "−": "-", "▸": ">", "×": "x", "·": "-", "–": "-", "—": "-", "…": "...", "≥": ">=",
        "≤": "<=", "≈": "~", "●": "*", "◐": "+", "○": "~", "◌": "1", "▼": "!", "◇": "_", "✓": "+", "✗": "x", "▲": "^",
        "│": "|", "─": "-", "├": "|", "┤": "|", "┴": "+", "┬": "+", "└": "+", "┘": "+", "█": "#", "▓": "=", "▒": "-",
        "░": ".", "▌": "|", "▏": "|", "’": "'", "“": '"', "”": '"', "•": "*", "┊": ":", "→": "->", "╌": "-", "┄": ".",
        "▁": ".", "▂": ":", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "%", "▎": "|", "▍": "|", "▋": "#", "▊": "#",
        "▉": "#", "▐": "|", "┌": "+", "┐": "+", "◆": "o", "■": "#", "\u2800": " ",
        **{chr(dots): "*" for dots in range(0x2801, 0x2900)},  # braille, of which curves are drawn
    }
)  # fmt: skip


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    if character in "\n\r\t":
        return " "
    if unicodedata.category(character) not in UNSEEN_CATEGORIES:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def plain(text: object, longest: int = LONGEST) -> str:
    """``text`` on one line, cut after ``longest`` characters, with control and bidirectional characters escaped.

    Text from users, devices and files goes through here, so that nothing in it can move a cursor.
    """
    whole = str(text)
    shown = MAYBE_UNSEEN.sub(_escaped, whole[:longest])
    return shown if len(whole) <= longest else f"{shown}… ({len(whole)} characters)"


def to_ascii(text: str) -> str:
    """``text`` in ASCII: symbols of the reports become similar ones, anything else a question mark."""
    return text.translate(ASCII).encode("ascii", "replace").decode("ascii")


PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
# Only energies need smaller prefixes: a byte costs picojoules, but no time here is given in picoseconds.
SMALLER: dict[str, tuple[tuple[float, str], ...]] = {
    "J/B": ((1e-12, "p"),), "J/FLOP": ((1e-12, "p"), (1e-15, "f")), "J/OP": ((1e-12, "p"), (1e-15, "f")),
}  # fmt: skip
# Operations of all types cost around a picojoule and are compared: 0.850 pJ/FLOP, not 850 fJ/FLOP.
TENTHS = {"J/FLOP": "p", "J/OP": "p"}
# How a stored unit is written. "per launch" stands in the heading, not behind each number.
WRITTEN = {"s/launch": "s", "B/launch": "B", "1/s": "/s", "1": "", "launch": "", "cycle": "cycles"}
# These are counted or known exactly and have no fraction below SMALLEST_COUNTED.
COUNTED = frozenset({"launch", "B/launch", "1", "cycle"})
SMALLEST_COUNTED = 0.0005
PER_CLOCK = frozenset({"B/clk/SM", "FLOP/clk/SM", "OP/clk/SM"})
# Units without smaller prefixes, and units without larger ones: nobody says kiloseconds.
NO_SMALLER = COUNTED | PER_CLOCK | {"B"}
NO_LARGER = PER_CLOCK | {"s", "s/launch", "cycle", "launch"}
BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
LONGEST_SIZE = 4
MISSING = "–"
# Where a line of text should not be broken.
BEFORE_UNIT = re.compile(r"(?<=\d) (?=[%A-Za-zµ])")
TYPED_TIME = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(ns|us|µs|μs|ms|s|min|h|d)")
TYPED_UNITS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip
TYPED_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGT]i?B|kB|B)?")
TYPED_BYTES = {
    "": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    **{name: scale for scale, name in BINARY},
}  # fmt: skip
TYPED_SHARE = re.compile(r"(\d{1,2}(?:\.\d{1,6})?) ?%")
TYPED_FACTOR = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*[x×]?")
LARGEST_FACTOR = 1000.0


def three_digits(value: float) -> str:
    """``value`` with three significant digits, never in exponent form: 3.61, 55.4, 1021, 0.0123."""
    if value == 0:
        return "0"
    if abs(value) < 1000:
        value = float(f"{value:.2e}")
    before_point = math.floor(math.log10(abs(value))) + 1
    return f"{value:.{max(3 - before_point, 0)}f}"


def quantity(value: float | None, unit: str) -> str:
    """A value given in an SI base unit: "3.61 µs", "55.4 GB/s", "1.77 kB", "277 k/s", "1021"; a dash for None."""
    if value is None or not math.isfinite(value):
        return MISSING
    scale, prefix = _scale(value, unit)
    scaled = value / scale
    if unit in COUNTED and scale == 1.0 and scaled == round(scaled):
        digits = f"{scaled:.0f}"
    elif unit in COUNTED and abs(scaled) < SMALLEST_COUNTED:
        digits = "0.000"
    else:
        digits = three_digits(scaled)
    return f"{digits} {prefix}{WRITTEN.get(unit, unit)}".rstrip()


def _scale(value: float, unit: str) -> tuple[float, str]:
    if value == 0:
        return 1.0, ""
    prefixes = (*PREFIXES, *SMALLER.get(unit, ()))
    smallest = 1.0 if unit in NO_SMALLER else prefixes[-1][0]
    # Rounded to three digits first: 999.96 ns is 1.00 µs, not 1000 ns.
    rounded = float(f"{abs(value):.2e}")
    for scale, prefix in prefixes:
        begin = scale / 10 if TENTHS.get(unit) == prefix else scale
        if (scale <= 1.0 or unit not in NO_LARGER) and (rounded >= begin * (1 - 1e-9) or scale == smallest):
            return scale, prefix
    return prefixes[-1]


def as_time(seconds: float) -> str:
    """A time: "3.61 µs"."""
    return quantity(seconds, "s")


def two_times(low_s: float, high_s: float) -> str:
    """The ends of a range of times, with a common unit written once: "8.05 to 37.1 ms", "998 ns to 1.05 µs"."""
    first, last = as_time(low_s), as_time(high_s)
    number, _, unit = first.partition(" ")
    return first if first == last else f"{number if last.endswith(f' {unit}') else first} to {last}"


def rate_of(value: float, what: str) -> str:
    """A number of things a second: "293 k launches/s", "12.0 launches/s"."""
    return f"{quantity(value, '1/s').removesuffix('/s').strip()} {what}/s"


def spread(half_width: float) -> str:
    """The half width of an interval, given as a share of its value: "±1.2 %"."""
    if not math.isfinite(half_width) or half_width > 9.99:
        return "±>999 %"
    share = half_width * 100
    return f"±{share:.1f} %" if share < 9.95 else f"±{share:.0f} %"


def percent(share: float) -> str:
    """A share in percent: "92.3 %", "0.41 %", "7.0 %"."""
    value = share * 100
    return f"{value:.2f} %" if 0 < abs(value) < 0.995 else f"{value:.1f} %" if abs(value) < 99.95 else f"{value:.0f} %"


def round_percent(share: float) -> str:
    """A share that was chosen rather than measured, in whole percent: "90 %"."""
    return f"{share * 100:.0f} %"


def times(ratio: float) -> str:
    """A ratio: "1.09×", "2.4×", "17×"."""
    return f"{ratio:.2f}×" if ratio < 1.995 else f"{ratio:.1f}×" if ratio < 9.95 else f"{ratio:.0f}×"


def counted(count: int, what: str, several: str = "") -> str:
    """A number with its noun: "1 node", "9 nodes"; ``several`` is a plural that does not end in s alone."""
    return f"{count} {what if count == 1 else several or f'{what}s'}"


def size(count: int) -> str:
    """A buffer size, in binary units if it is a multiple of one: "64 KiB", "4000 B"."""
    for scale, name in BINARY:
        if count and count % scale == 0:
            return f"{count // scale} {name}"
    return f"{count} B"


def about_size(count: float) -> str:
    """A computed buffer size with three digits, in binary units: "70.3 KiB", "633 B"."""
    if not math.isfinite(count):
        return MISSING
    scale, name = next((unit for unit in BINARY if count >= unit[0]), (1, "B"))
    return f"{three_digits(count / scale)} {name}"


def short_size(count: int) -> str:
    """An exact size ("64 KiB"), or with three digits if its number is longer than LONGEST_SIZE: "139 GiB"."""
    exact = size(count)
    return exact if len(exact.split()[0]) <= LONGEST_SIZE else about_size(count)


def gigabytes(value: float) -> str:
    """Bytes (a second) in billions without the unit, for tables whose title names it."""
    return three_digits(value * 1e-9)


def tera(value: float) -> str:
    """Operations (a second) in trillions without the unit, for tables whose title names it."""
    return three_digits(value * 1e-12)


def wall(seconds: float) -> str:
    """A long time: "4.2 s", "1 min 20 s", "2 h 05 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def axis_title(name: str) -> str:
    """An axis name as a heading without its unit: "argument_bytes" is "argument size"."""
    for suffix, title in (("_ns", ""), ("_bytes", " size")):
        if name.endswith(suffix):
            name = name.removesuffix(suffix) + title
    return name.replace("_", " ").replace("size size", "size")


def axis_value(name: str, value: int | str) -> str:
    """An axis value in the unit of the axis's name: duration_ns 10000 is "10 µs", argument_bytes 4096 is "4 KiB"."""
    if isinstance(value, str):
        return value
    if name.endswith("_ns"):
        seconds = max(value, 1) * 1e-9
        scale, prefix = next((pair for pair in PREFIXES if pair[0] <= min(seconds * (1 + 1e-9), 1.0)), PREFIXES[-1])
        return f"{seconds / scale:g} {prefix}s" if value else "0"
    if name.endswith("_bytes"):
        return size(value)
    return str(value)


def typed_time(text: str, longest_s: float = 10.0, examples: str = "3us, 500ns, 0.2ms, or 0") -> float:
    """Seconds of a time that a person typed: "3us", "3µs", "500ns", "0.2ms", "30min", "6h", "1d", "0".

    Raises UsageError, which names ``examples``, for anything else, and for more than ``longest_s``.
    """
    stripped = text.strip()
    match = TYPED_TIME.fullmatch(stripped)
    if match is None and stripped not in ("0", "0.0"):
        raise UsageError(f"{plain(text, 40)} is not a time", f"give a number and its unit: {examples}")
    seconds = float(match[1]) * TYPED_UNITS[match[2]] if match else 0.0
    if seconds > longest_s:
        raise UsageError(f"{plain(text, 40)} is too long", f"give a time of at most {wall(longest_s)}")
    return seconds


def typed_size(text: str) -> int:
    """Bytes of a size that a person typed: "16 KiB", "12MB", "4096". Raises UsageError for anything else."""
    match = TYPED_SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{plain(text, 40)} is not a size", "give a number and its unit: 4096, 16KiB, 12MB, 1.5GB")
    return round(float(match[1]) * TYPED_BYTES[match[2] or ""])


def typed_rate(text: str) -> float:
    """Bytes a second of a rate that a person typed: "2039GB/s", "1.2 TB/s".

    Raises UsageError for anything else, and for 0.
    """
    stripped = text.strip()
    match = TYPED_SIZE.fullmatch(stripped.removesuffix("/s")) if stripped.endswith("B/s") else None
    value = float(match[1]) * TYPED_BYTES[match[2]] if match else 0.0
    if value <= 0:
        raise UsageError(f"{plain(text, 40)} is not a rate", "give a number above 0 and its unit: 2039GB/s, 1.2TB/s")
    return value


def typed_share(text: str) -> float:
    """A share that a person typed: "1%", "0.3 %". Raises UsageError for anything else, 0 and more than half."""
    match = TYPED_SHARE.fullmatch(text.strip())
    if match is None or not 0 < float(match[1]) <= 50:
        raise UsageError(f"{plain(text, 40)} is not a share", "give a percentage above 0 and up to 50%: 1%, 0.3%")
    return float(match[1]) / 100


def typed_factor(text: str) -> float:
    """A factor that a person typed: "0.5x", "2×", "0". Raises UsageError for anything else."""
    match = TYPED_FACTOR.fullmatch(text.strip())
    if match is None or float(match[1]) > LARGEST_FACTOR:
        raise UsageError(f"{plain(text, 40)} is not a factor", f"give 0 to {LARGEST_FACTOR:.0f}: 0.5x, 2x")
    return float(match[1])


def ratio(value: float) -> str:
    """A ratio near 1, with more digits than ``times`` gives: "1.097×", "0.940×", "2.41×", "17×"."""
    if value >= 9.95:
        return f"{value:.0f}×"
    return f"{value:.3f}×" if 0.1 <= value < 1.9995 else f"{value:.2f}×" if value >= 0.1 else f"{three_digits(value)}×"


def ratio_range(low: float, high: float) -> str:
    """The ends of a ratio's interval: "1.084–1.110"."""
    return f"{ratio(low).removesuffix('×')}–{ratio(high).removesuffix('×')}"


def from_to(before: float, after: float, unit: str) -> str:
    """Two values of one quantity, with a common unit written once: "3.61 → 3.96 µs", "998 ns → 1.05 µs"."""
    first, second = quantity(before, unit), quantity(after, unit)
    number, _, prefixed = first.partition(" ")
    return f"{number if prefixed and second.endswith(f' {prefixed}') else first} → {second}"
