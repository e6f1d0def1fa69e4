"""The run file's format as a JSON Schema, for whoever reads runs without this package."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from microbench.model import SAMPLES_KEPT, Run
from microbench.schema import SCHEMA_VERSION

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLE = "A run of microbench"
ABOUT = (
    "One JSON document in UTF-8, in SI base units: a quantity's last word is its unit, bandwidth is decimal, unknown "
    "is null or left out. While a run grows its outcomes follow the document, one JSON line each. Keys that are not "
    "named here belong to a later version and are ignored. A large file ends with the key carried: what was made of all"
    " that stands before, so that it is shown quickly; whoever writes a run may leave it out."
)
SAMPLES = {
    "type": "array",
    "items": {"type": "number"},
    "maxItems": SAMPLES_KEPT,
    "description": f"Raw readings in the metric's base unit (seconds for a rate): {SAMPLES_KEPT} of the n at most.",
}


def run_schema() -> dict[str, Any]:
    """The JSON Schema of a finished run file of SCHEMA_VERSION, made from the types that read and write it."""
    (reference,), parts = msgspec.json.schema_components([Run], ref_template="#/$defs/{name}")
    for part in parts.values():
        part["description"] = inspect.cleandoc(part["description"]).replace("``", "`")
    parts["Measurement"]["properties"]["samples"] = SAMPLES  # undecoded to the reader: its type says nothing
    parts["Run"]["properties"]["sessions"]["minItems"] = 1
    parts["Run"]["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {"$schema": DIALECT, "title": TITLE, "description": ABOUT, **reference, "$defs": parts}


def encoded() -> bytes:
    """The schema as it is published: indented, and the same on every machine."""
    return msgspec.json.format(msgspec.json.encode(run_schema()), indent=2) + b"\n"
