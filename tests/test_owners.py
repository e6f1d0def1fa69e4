"""Tests of whose the host code is in which a GPU idles, by the names that recordings and traces have for it."""

from __future__ import annotations

import pytest

from microbench.diagnosis.owners import BUILT_IN, ELSEWHERE, LIBRARY, OPERATORS, OWN, Owner, owner_of, owners


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("train.py:88 step", OWN),
        ("models/net.py:3 conv2", OWN),
        ("train.py(88): step", OWN),
        ("/home/me/project/train.py(88): step", OWN),
        ("torch/nn/modules/module.py Module._call_impl", "torch.nn modules"),
        ("torch/nn/modules/module.py(1747): _call_impl", "torch.nn modules"),
        ("/usr/lib/python3/dist-packages/torch/nn/functional.py(88): linear", "torch.nn modules"),
        ("nn.Module: Linear_0", "torch.nn modules"),
        ("torch/optim/adam.py Adam.step", "torch.optim"),
        ("torch/_inductor/utils.py call", "torch.compile"),
        ("torch/functional.py(48): broadcast_tensors", "torch"),
        ("transformers/models/vit/modeling_vit.py(407): forward", "transformers"),
        ("diffrax/_integrate.py diffeqsolve", "diffrax"),
        ("library.py wait", "library"),
        ("aten::addmm", OPERATORS),
        ("autograd::engine::evaluate_function: AddmmBackward0", OPERATORS),
        ("AddmmBackward0", OPERATORS),
        ("<built-in method astype of numpy.ndarray object at 0x7cbf780f01b0>", BUILT_IN),
        ("threading.py(1016): _bootstrap", LIBRARY),
        ("python3.12/queue.py Queue.get", LIBRARY),
        ("<frozen importlib._bootstrap>(1390): _handle_fromlist", LIBRARY),
        ("main thread at train.py:90 step", ELSEWHERE),
        ("forward", "forward"),
    ],
)
def test_a_name_has_an_owner(name: str, owner: str) -> None:
    assert owner_of(name) == owner


def test_owners_have_the_sum_of_their_code_and_name_its_largest_piece() -> None:
    places = [("aten::mm", 2.0), ("train.py:8 step", 4.0), ("aten::add", 3.0)]
    assert owners(places) == [Owner(OPERATORS, 5.0, "aten::add"), Owner(OWN, 4.0, "train.py:8 step")]
