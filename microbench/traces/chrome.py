"""Reads Chrome's trace JSON, as PyTorch's profiler (Kineto) and JAX write it, of any size and layout, into a Trace.

Small files are decoded whole by msgspec. Large ones, and those that are cut or not quite JSON, go through the compiled
scanner, which finds every event and decodes those of the usual form; what is unusual (begin and end events, names of
threads, times in quotes) is decoded event by event, by the same code as that of small files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from microbench.traces import scanner
from microbench.traces.collector import Collector
from microbench.traces.events import FACT_KEYS, MALFORMED, ChromeReader, Event
from microbench.traces.stream import open_trace
from microbench.traces.trace import Trace

SMALL_BYTES = 32 << 20  # smaller files are decoded whole, which needs no compiler and takes 0.2 GB at most
WHOLE_BYTES = 256 << 20  # so are these where the scanner cannot be compiled


class Document(msgspec.Struct):
    """The file around its events."""

    traceEvents: list[Event] | None = None  # noqa: N815
    deviceProperties: Any = None  # noqa: N815
    distributedInfo: Any = None  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815
    schemaVersion: Any = None  # noqa: N815
    cuda_driver_version: Any = None
    cuda_runtime_version: Any = None
    cupti_version: Any = None
    torch_version: Any = None


decode_document = msgspec.json.Decoder(Document).decode
decode_array = msgspec.json.Decoder(list[Event]).decode


def read(path: Path) -> Trace:
    """Read a file. Raises UsageError for a file that is not a trace, has no work of a GPU, or was recorded on an AMD
    GPU.
    """
    with open_trace(path) as stream:
        reader = ChromeReader(path.name)
        head, most = stream.peek(SMALL_BYTES + 1), SMALL_BYTES
        if len(head) > most and not scanner.compiled():
            head, most = stream.peek(WHOLE_BYTES + 1), WHOLE_BYTES
        if len(head) > most or stream.fault or not read_whole(head, reader):
            del head
            reader = ChromeReader(path.name)
            scanner.scan_trace(stream, reader)
        return reader.finish(stream.fault)


def read_whole(data: bytes, reader: ChromeReader) -> bool:
    """Decode a small file at once; False if it is not JSON of the usual form, which the scanner then reads."""
    try:
        text = data.removeprefix(b"\xef\xbb\xbf")
        document = Document(decode_array(text)) if text.lstrip()[:1] == b"[" else decode_document(text)
    except MALFORMED:
        return False
    if document.traceEvents is None:
        return True
    reader.found_events = True
    for key in FACT_KEYS:
        reader.fact(key, getattr(document, key))
    reader.collector = Collector(2 * len(document.traceEvents), reader.collector.limits)
    reader.take(document.traceEvents)
    return True
