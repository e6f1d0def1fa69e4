"""Lives and changes of chains on the simulated GPU, each act stamped on the virtual clock."""

from __future__ import annotations

import numpy as np

from microbench.errors import MeasurementError
from microbench.gpu.api import IntArray
from microbench.gpu.fake.capture import empty_chain
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.executable import Executable
from microbench.gpu.fake.machine import Machine
from microbench.gpu.graph_api import Change, ChangeWay, Life, Made

RECORDED: tuple[ChangeWay, ...] = ("exec_update", "rebuild")  # ways that need a new capture
REFUSED = "the driver refused the update: CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"


def lives(machine: Machine, nodes: int, count: int, made: Made) -> IntArray:
    """See Graphs.lives."""
    out_ns: IntArray = np.zeros((count, len(Life)), dtype=np.int64)
    executable = Executable(machine, empty_chain(nodes, machine.costs))
    for row in out_ns:
        _live(machine, executable, made, row)
    return out_ns


def _live(machine: Machine, executable: Executable, made: Made, row: IntArray) -> None:
    clock, costs = machine.clock, machine.costs.graphs
    row[Life.BEGIN] = clock.now_ns()
    clock.pass_ns(machine.noise.one((costs.capture if made == "capture" else costs.build).at(executable.nodes)))
    row[Life.MADE] = clock.now_ns()
    executable.instantiate()
    row[Life.INSTANTIATED : Life.CALLED] = clock.now_ns()
    if made == "capture":
        executable.upload()
        row[Life.UPLOADED] = clock.now_ns()
        machine.synchronize(0)
        row[Life.READY] = clock.now_ns()
    executable.launch()
    row[Life.CALLED] = clock.now_ns()
    machine.synchronize(0)
    row[Life.DONE] = clock.now_ns()
    executable.destroy()
    row[Life.DESTROYED] = clock.now_ns()


def changes(machine: Machine, way: ChangeWay, nodes: int, changed: int, count: int) -> IntArray:
    """See Graphs.changes."""
    if not 1 <= changed <= nodes:
        raise MeasurementError(f"{changed} of {nodes} nodes cannot be changed")
    out_ns: IntArray = np.zeros((count, len(Change)), dtype=np.int64)
    executable = Executable(machine, empty_chain(nodes, machine.costs), uploaded=True)
    for row in out_ns:
        _change(machine, executable, way, changed, row)
    return out_ns


def _change(machine: Machine, executable: Executable, way: ChangeWay, changed: int, row: IntArray) -> None:
    clock, costs = machine.clock, machine.costs.graphs
    row[Change.BEGIN] = row[Change.RECORDED] = clock.now_ns()
    if way in RECORDED:
        clock.pass_ns(machine.noise.one(costs.capture.at(executable.nodes)))
        row[Change.RECORDED] = clock.now_ns()
    if way == "rebuild":
        executable.instantiate()
    elif way == "exec_update":
        refused = refusal(machine.costs)
        if refused:
            raise MeasurementError(refused)
        executable.change(executable.nodes, costs.exec_update.at(executable.nodes))
    else:
        executable.change(changed, (costs.set_params if way == "set_params" else costs.set_grid).at(changed))
    row[Change.CHANGED] = clock.now_ns()
    _replay(machine, executable, row[Change.CALLED : Change.AGAIN])
    row[Change.AGAIN] = clock.now_ns()
    _replay(machine, executable, row[Change.AGAIN_CALLED : Change.DISPOSED])
    row[Change.DISPOSED] = row[Change.AGAIN_DONE]
    if way in RECORDED:
        if way == "rebuild":
            executable.destroy()  # the old one, which is like the new one
        else:
            executable.destroy_captured()
        row[Change.DISPOSED] = clock.now_ns()


def _replay(machine: Machine, executable: Executable, row: IntArray) -> None:
    executable.launch()
    row[0] = machine.clock.now_ns()
    machine.synchronize(0)
    row[1] = machine.clock.now_ns()


def refusal(costs: FakeCosts, update_ns: float | None = 0.0) -> str | None:
    """Why the driver refuses to update a graph, of nodes whose update costs that much more than a kernel's."""
    if update_ns is None:
        return f"{REFUSED} (ERROR_NOT_SUPPORTED)"
    return f"{REFUSED} (ERROR_TOPOLOGY_CHANGED)" if costs.refuses_updates else None
