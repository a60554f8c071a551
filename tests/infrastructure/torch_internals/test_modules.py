import pytest
import torch
from torch import nn

from infrastructure.torch_internals.autograd_nodes import leaves, output_dtypes
from infrastructure.torch_internals.fsdp import policy_dtype_of
from infrastructure.torch_internals.guard import UnavailableError
from infrastructure.torch_internals.modules import COMPILED, REGISTRIES, buffer_places, has_hooks


def test_names_are_those_of_this_torch():
    model = nn.BatchNorm1d(2)
    kept = [vars(model)[name] for name in REGISTRIES]
    assert [list(each) for each in kept[1:]] == [
        ["weight", "bias"],
        ["running_mean", "running_var", "num_batches_tracked"],
    ]
    assert getattr(torch.compile(model, backend="eager"), COMPILED) is model


@pytest.mark.parametrize(
    "register",
    ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"],
)
def test_hooks_are_seen(register):
    model = nn.Linear(1, 1)
    assert not has_hooks(model)
    getattr(model, register)(lambda *_: None)
    assert has_hooks(model)


def test_a_node_tells_the_type_of_its_outputs():
    result = torch.ones(2, requires_grad=True).half()
    assert output_dtypes(result.grad_fn) == [torch.float16]


def test_the_leaves_of_a_loss_are_found_once_each():
    a, b, constant = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True), 3.0
    loss = (a * b + a.exp() * constant).sum()
    found = list(leaves(loss))
    assert len(found) == 2
    assert {id(leaf) for leaf in found} == {id(a), id(b)}


def test_buffers_are_found_where_their_modules_keep_them():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))
    places = buffer_places(model)
    assert [name for _, name in places] == 2 * [
        "running_mean",
        "running_var",
        "num_batches_tracked",
    ]
    registry, name = places[0]
    model[0].running_mean = torch.full((2,), 5.0)
    assert registry[name] is model[0].running_mean
    assert places[3][0][places[3][1]] is None


def test_what_this_torch_does_not_tell_is_an_error_with_its_name():
    with pytest.raises(UnavailableError, match="_mp_policy"):
        policy_dtype_of(nn.Linear(1, 1))
    with pytest.raises(UnavailableError, match="_input_metadata"):
        output_dtypes(object())
