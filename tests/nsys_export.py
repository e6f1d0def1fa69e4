"""Makes .sqlite files with the schema of Nsight Systems' export, for tests and for measuring the reader.

python tests/nsys_export.py LARGE.sqlite --gigabytes 10
"""

import argparse
import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

PROCESS, THREAD = 4242, 4243
GLOBAL_PROCESS = 1 << 48 | PROCESS << 24
GLOBAL_THREAD = GLOBAL_PROCESS | THREAD
SECRET = "hf_not_for_anybody_else"

# The columns of schema 3.25, by the tables that matter and those that hold what nobody should read.
SCHEMA: Mapping[str, str] = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "TARGET_INFO_GPU": "vmId INTEGER, id INTEGER NOT NULL, name TEXT, busLocation TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT, name TEXT NOT NULL, nameEnum INTEGER, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT, systemClockNs INTEGER",
    "ProcessStreams": "globalPid INTEGER NOT NULL, filenameId INTEGER NOT NULL, contentId INTEGER NOT NULL",
    "DIAGNOSTIC_EVENT": "timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL, "
    "severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER",
    "ENUM_CUDA_MEM_KIND": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, "
    "globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, "
    "launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, "
    "blockX INTEGER, blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, "
    "localMemoryPerThread INTEGER, localMemoryTotal INTEGER, gridId INTEGER, sharedMemoryExecuted INTEGER, "
    "graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER, graphId INTEGER, tensorSizeMinusOneElements TEXT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER, migrationCause INTEGER, "
    "graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "graphId INTEGER NOT NULL, graphExecId INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, "
    "callchainId INTEGER",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "syncType INTEGER NOT NULL, eventId INTEGER NOT NULL, eventSyncId INTEGER",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, eventId INTEGER NOT NULL, "
    "eventSyncId INTEGER",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, correlationId INTEGER, nameId INTEGER, overheadType INTEGER NOT NULL",
    "PROFILER_OVERHEAD": "start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, nameId INTEGER NOT NULL, "
    "overheadType INTEGER NOT NULL",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, "
    "category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, "
    "domainId INTEGER, uint64Value INTEGER, jsonText TEXT, binaryData TEXT",
}

Rows = Mapping[str, Sequence[Mapping[str, object]]]
STRINGS = (
    "cudaLaunchKernel_v7000", "void gemm<128, 64>(float*)", "gemm", "cudaGraphLaunch_v10000", "cudaMemcpyAsync_v3020",
    "python3", "decode", "Lazy Function Loading", "CUPTI Buffer flush", SECRET, "cudaStreamSynchronize_v3020",
    "cudaEventRecord_v3020", "cudaStreamWaitEvent_v3020",
)  # fmt: skip


def call(start: int, correlation: int, name: int = 1, **other: object) -> dict[str, object]:
    return {"start": start, "end": start + 5000, "eventClass": 0, "globalTid": GLOBAL_THREAD, "nameId": name,
            "correlationId": correlation, "returnValue": 0, **other}  # fmt: skip


def work(start: int, correlation: int, **other: object) -> dict[str, object]:
    return {"start": start, "end": start + 2000, "deviceId": 0, "contextId": 1, "streamId": 7,
            "correlationId": correlation, "globalPid": GLOBAL_PROCESS, **other}  # fmt: skip


def kernel(start: int, correlation: int, **other: object) -> dict[str, object]:
    shape = {"gridX": 4, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}
    names = {"demangledName": 2, "shortName": 3, "mangledName": 2, "registersPerThread": 32, "launchType": 1}
    return {**work(start, correlation), **shape, **names, "tensorSizeMinusOneElements": "", **other}


def small() -> dict[str, list[dict[str, object]]]:
    """The rows of a small export: of each table at least one."""
    return {
        "StringIds": [{"id": number, "value": value} for number, value in enumerate(STRINGS, 1)],
        "META_DATA_CAPTURE": [
            {"name": "PROCESS_ENVIRONMENT", "value": f"HF_TOKEN={SECRET}"}, {"name": "COMMAND_LINE", "value": SECRET},
        ],
        "META_DATA_EXPORT": [
            {"name": "EXPORT_PRODUCT_VERSION", "value": "2026.2.1.210"},
            {"name": "EXPORT_SCHEMA_VERSION", "value": "3.25.0"},
            {"name": "EXPORT_COMMAND", "value": SECRET},
        ],
        "PROCESSES": [{"globalPid": GLOBAL_PROCESS, "pid": PROCESS, "name": SECRET}],
        "ThreadNames": [{"nameId": 6, "globalTid": GLOBAL_THREAD}, {"nameId": 10, "globalTid": GLOBAL_THREAD + 99}],
        "TARGET_INFO_GPU": [{"vmId": 1 << 48, "id": 0, "name": "NVIDIA H200"}],
        "TARGET_INFO_SYSTEM_ENV": [
            {"name": "CudaDriverVersion", "value": "13000"}, {"name": "NvDriverVersion", "value": SECRET},
            {"name": "Hostname", "value": SECRET},
        ],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 1_779_782_330_176_752_435}],
        "ProcessStreams": [{"globalPid": GLOBAL_PROCESS, "filenameId": 10, "contentId": 10}],
        "DIAGNOSTIC_EVENT": [
            {"timestamp": 1, "timestampType": 1, "source": 1, "severity": 2, "globalPid": process,
             "text": f"Not all CUDA events might have been collected. {SECRET}"}
            for process in (GLOBAL_PROCESS, 1 << 48 | 77 << 24)
        ],
        "ENUM_CUDA_MEM_KIND": [
            {"id": number, "label": label}
            for number, label in enumerate(("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static"))
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            call(60_000, 11), call(10_000, 1), call(20_000, 2, 5), call(30_000, 3, 4), call(40_000, 4, 13),
            call(35_000, 5, 12), call(50_000, 6, 11), call(70_000, 1, globalTid=1 << 48 | 77 << 24 | 78),
        ],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            kernel(12_000, 1), kernel(33_000, 3, graphNodeId=5), kernel(36_000, 3, graphNodeId=6),
            kernel(72_000, 1, globalPid=1 << 48 | 77 << 24, deviceId=1), kernel(80_000, 999),
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [work(22_000, 2, bytes=4096, copyKind=1, srcKind=0, dstKind=2)],
        "CUPTI_ACTIVITY_KIND_MEMSET": [work(62_000, 11, bytes=64, value=0, memKind=5)],
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [work(90_000, 3, graphId=1, graphExecId=9)],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
            work(40_100, 4, streamId=9, syncType=2, eventId=8, eventSyncId=21),
            work(50_100, 6, streamId=7, syncType=3, eventId=0xFFFFFFFF, eventSyncId=0),
            work(50_200, 6, streamId=0xFFFFFFFF, syncType=4, eventId=0xFFFFFFFF, eventSyncId=0),
            work(50_300, 6, streamId=7, syncType=2, eventId=0xFFFFFFFF, eventSyncId=0xFFFFFFFF),
            work(50_400, 6, streamId=7, syncType=0, eventId=0xFFFFFFFF, eventSyncId=0),
        ],
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [
            {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 5, "globalPid": GLOBAL_PROCESS,
             "eventId": 8, "eventSyncId": 21},
        ],
        "CUPTI_ACTIVITY_KIND_OVERHEAD": [
            {"start": 11_000, "end": 11_500, "globalTid": GLOBAL_THREAD, "nameId": 8, "overheadType": 7},
        ],
        "PROFILER_OVERHEAD": [
            {"start": 13_000, "end": 13_900, "globalTid": GLOBAL_THREAD, "nameId": 9, "overheadType": 3},
        ],
        "NVTX_EVENTS": [
            {"start": 5_000, "end": 99_000, "eventType": 59, "textId": 7, "globalTid": GLOBAL_THREAD},
            {"start": 6_000, "end": 9_000, "eventType": 59, "text": "aten::mm, seq = 3, op_id = 17",
             "globalTid": GLOBAL_THREAD},
            {"start": 6_500, "end": 8_000, "eventType": 60, "text": "step 3", "globalTid": GLOBAL_THREAD},
            {"start": 7_000, "end": None, "eventType": 34, "text": "mark", "globalTid": GLOBAL_THREAD},
            {"start": 7_500, "end": None, "eventType": 59, "text": "never closed", "globalTid": GLOBAL_THREAD},
            {"start": 0, "end": None, "eventType": 75, "text": "NCCL", "globalTid": GLOBAL_THREAD},
        ],
    }  # fmt: skip


def write(path: Path, rows: Rows, schema: Mapping[str, str] = SCHEMA, then: str = "", strict: bool = False) -> Path:
    """Write the tables of a schema with these rows; a row's missing columns are NULL. ``then`` is more SQL."""
    with closing(sqlite3.connect(path)) as sql:
        for table, columns in schema.items():
            sql.execute(f"CREATE TABLE {table} ({columns.replace('NOT NULL', 'NOT NULL' if strict else '')})")
            for row in rows.get(table, ()):
                marks = ", ".join("?" * len(row))
                columns = ", ".join(f"[{name}]" for name in row)
                sql.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", [*row.values()])
        sql.executescript(then)
        sql.commit()
    return path


def write_large(path: Path, gigabytes: float) -> None:
    """A step of 20 kernels, 40 calls and 100 ranges, repeated until the file is large enough."""
    step: dict[str, list[dict[str, object]]] = {"StringIds": small()["StringIds"]}
    step["CUPTI_ACTIVITY_KIND_RUNTIME"] = [call(1_000_000 + 10_000 * place, place + 1) for place in range(40)]
    step["CUPTI_ACTIVITY_KIND_KERNEL"] = [kernel(1_012_000 + 20_000 * place, 2 * place + 1) for place in range(20)]
    step["NVTX_EVENTS"] = [
        {"start": 1_000_000 + 4_000 * place, "end": 1_003_000 + 4_000 * place, "eventType": 59, "color": 1,
         "domainId": 0, "text": f"aten::operator_{place}, op_id = {place}", "globalTid": GLOBAL_THREAD}
        for place in range(100)
    ]  # fmt: skip
    write(path, step, strict=True)
    grown = [table for table in step if table != "StringIds"]
    with closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("PRAGMA journal_mode = OFF")
        sql.execute("PRAGMA synchronous = OFF")
        copies, made = 1, 1
        while os.path.getsize(path) < gigabytes * 1e9:
            for table in grown:
                names = [row[1] for row in sql.execute(f"PRAGMA table_info({table})")]
                shift = {"start": 400_000 * made, "end": 400_000 * made, "correlationId": 40 * made}
                values = [f"[{name}] + {shift[name]}" if name in shift else f"[{name}]" for name in names]
                last = sql.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0] * copies // made
                sql.execute(f"INSERT INTO {table} SELECT {', '.join(values)} FROM {table} WHERE rowid <= {last}")
            made += copies
            copies = copies * 2 if copies < 32768 else copies


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    arguments = parser.parse_args()
    write_large(arguments.path, arguments.gigabytes)
