"""Compiles the callbacks with Numba into machine code that runs at any address of any process of this machine.

The program that is watched needs no Numba then, and begins without compiling or importing it. The code is kept in the
user's cache folder for the next time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs

from microbench.core import files
from microbench.core.errors import UsageError

SOURCES = ("machine_code.py", "callbacks.py", "cells.py", "state.py")
ARGUMENTS = 6
DEFINED = re.compile(r"^(define .*?)(?: #\d+)? \{$", re.MULTILINE)


def callbacks() -> bytes:
    """The code of ``requested``, ``completed``, ``called`` and ``given``, each behind its length in 8 bytes.

    Raises UsageError on a processor that the recorder does not know, or where the code cannot be compiled.
    """
    if platform.machine() != "x86_64":
        raise UsageError(f"watch cannot record on this processor: {platform.machine()}", "use another profiler")
    import llvmlite
    import llvmlite.binding as llvm

    sources = b"".join((Path(__file__).parent / name).read_bytes() for name in SOURCES)
    about = f"{llvmlite.__version__} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    key = hashlib.sha256(sources + about.encode()).hexdigest()
    kept = platformdirs.user_cache_path("microbench", appauthor=False) / f"watch-{key[:16]}.code"
    with contextlib.suppress(OSError):
        digest, code = (data := kept.read_bytes())[:32], data[32:]
        if digest == hashlib.sha256(code).digest():
            return code
    from microbench.recorder.callbacks import called, completed, given, requested

    each = [machine_code(function) for function in (requested, completed, called, given)]
    code = b"".join(struct.pack("<Q", len(one)) + one for one in each)
    with contextlib.suppress(OSError):  # it is compiled again the next time
        kept.parent.mkdir(parents=True, exist_ok=True)
        os.close(files.replace(kept, hashlib.sha256(code).digest() + code))
    return code


def machine_code(function: Callable[..., None]) -> bytes:
    """The code of a function of ARGUMENTS 64-bit numbers; it refers to nothing outside of itself.

    Raises UsageError if the code is not of that kind, which depends on the versions of Numba and LLVM.
    """
    import llvmlite.binding as llvm
    from numba import cfunc, types

    made: Any = cfunc(types.void(*[types.int64] * ARGUMENTS))(function)
    # A table of jumps would be data outside of the code.
    text = DEFINED.sub(r'\1 "no-jump-tables"="true" {', made.inspect_llvm()).replace("noinline", "nounwind")
    module = llvm.parse_assembly(text)
    for defined in module.functions:
        if not defined.is_declaration and not defined.name.startswith("cfunc."):
            defined.linkage = "internal"
            defined.add_function_attribute("alwaysinline")
    target = llvm.Target.from_triple(llvm.get_process_triple())
    features = llvm.get_host_cpu_features().flatten()
    machine = target.create_target_machine(llvm.get_host_cpu_name(), features, opt=2, reloc="pic", codemodel="small")
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    left = [one.name for one in module.functions if not one.is_declaration]
    compiled = llvm.ObjectFileRef.from_data(machine.emit_object(module))
    sections = {one.name() or b"": bytes(one.data()) for one in compiled.sections() if one.size()}
    if len(left) != 1 or b".rela.text" in sections or b".text" not in sections:
        raise UsageError(
            f"the recorder cannot be compiled by this Numba: {function.__name__} needs {sorted(sections)}",
            "please report this, with the output of `microbench doctor`",
        )
    return sections[b".text"]
