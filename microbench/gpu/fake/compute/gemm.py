"""Matrix products of the simulated GPU by the kernels of simulated libraries."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.errors import Skip
from microbench.gpu.bound import Submit
from microbench.gpu.compute_api import Library
from microbench.gpu.fake.calls import Call
from microbench.gpu.fake.compute.answers import Answer
from microbench.gpu.fake.compute.products import Product, item_of
from microbench.gpu.fake.compute_costs import ProductLibrary
from microbench.gpu.fake.links.copies import MovingSubmit
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.stream import Item


class FakeGemm:
    """See Gemm."""

    submit: Submit

    def __init__(self, machine: Machine, product: Product, answer: Answer, library: ProductLibrary, way: str) -> None:
        self._machine = machine
        self._product = product
        self._answer = answer
        self._share = library.kernels[way]
        self.submit = MovingSubmit(machine, Call(library.submit_ns, self._item(1)), answer)
        self.fresh = answer.fresh
        self.check = answer.check

    def _item(self, calls: int) -> Item:
        return item_of(self._machine.costs, self._product, self._share, calls)

    def graph(self, calls: int) -> Submit:
        """See Gemm."""
        costs, graphs = self._machine.costs, self._machine.costs.graphs
        for part in (graphs.capture, graphs.instantiate, graphs.upload):
            self._machine.clock.pass_ns(part.at(calls))
        call = Call(costs.graph_submit_ns + calls * costs.graph_node_submit_ns, self._item(calls))
        return MovingSubmit(self._machine, call, self._answer)


class FakeProblem:
    """See Problem."""

    def __init__(self, machine: Machine, product: Product) -> None:
        self._machine = machine
        self._product = product
        self._answer = Answer(machine.costs, product.result_bytes, "D times random signs")
        self.dtype = product.dtype
        self.rows, self.columns, self.depth = product.rows, product.columns, product.depth
        self.operations = product.operations
        self.size_bytes = product.size_bytes

    def ways(self, library: Library) -> Sequence[str]:
        """See Problem."""
        return tuple(self._library(library).kernels)

    def gemm(self, library: Library, way: str) -> FakeGemm:
        """See Problem."""
        found = self._library(library)
        if way not in found.kernels:
            raise Skip(f"the simulated {library} has no kernel {way}")
        return FakeGemm(self._machine, self._product, self._answer, found, way)

    def _library(self, library: Library) -> ProductLibrary:
        found = self._machine.costs.compute.libraries.get(library)
        if found is None:
            raise Skip(f"the simulated machine has no {library}")
        if self._product.dtype not in found.dtypes:
            raise Skip(f"the simulated {library} has no {self._product.dtype}")
        return found
