from __future__ import annotations

import collections
import collections.abc
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from torch import distributions as dist
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils import _pytree

from infrastructure.training.precision import outputs
from infrastructure.training.precision.outputs import to_float32

Pair = collections.namedtuple("Pair", "a b")
HALF = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def _log_anew():
    outputs._log_passed.cache_clear()


def half(*shape):
    return torch.ones(*shape, dtype=torch.float16)


@dataclass(frozen=True, slots=True)
class Frozen:
    mean: torch.Tensor
    name: str = "n"


@dataclass
class Counted:
    """Its constructor must not run again."""

    mean: torch.Tensor
    made: list[int] = field(default_factory=list)
    extra: torch.Tensor = field(init=False)

    def __post_init__(self):
        self.made.append(1)
        self.extra = self.mean


@dataclass
class Node:
    value: object
    also: object = None


class Attributed(dict):
    """A dict whose items are its attributes, too."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


class Plain:
    def __init__(self, value):
        self.value, self.nested = value, [value, {"again": value}]


class Opaque:
    """Its tensor is in an object in an object, as in a cache."""

    def __init__(self):
        self.layers = [Plain(half(1))]


def test_the_tensor_itself():
    whole, single = torch.ones(2, dtype=torch.int64), torch.ones(2)
    assert to_float32(half(2)).dtype == torch.float32
    assert to_float32(whole) is whole
    assert to_float32(single) is single


def reached(value):
    return _pytree.tree_leaves(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"a": half(1), 3: [half(1)]},
        lambda: [half(1), (half(1), None)],
        lambda: Pair(half(1), 1),
        lambda: collections.OrderedDict(b=half(1), a=half(1)),
        lambda: collections.defaultdict(list, a=half(1)),
        lambda: torch.return_types.max((half(1), torch.ones(1, dtype=torch.int64))),
        lambda: pack_padded_sequence(half(2, 3, 1), torch.tensor([3, 2]), batch_first=True),
    ],
)
def test_collections_keep_their_type_their_order_and_their_other_values(make):
    value = make()
    result = to_float32(value)
    assert type(result) is type(value)
    assert result is not value
    before, after = reached(value), reached(result)
    assert [str(x) for x in before if not isinstance(x, torch.Tensor)] == [
        str(x) for x in after if not isinstance(x, torch.Tensor)
    ]
    assert not any(isinstance(x, torch.Tensor) and x.dtype in HALF for x in after)
    assert any(isinstance(x, torch.Tensor) and x.dtype in HALF for x in before)  # not in place
    if isinstance(value, dict):
        assert list(result) == list(value)


def test_a_default_dict_keeps_its_default_and_a_packed_sequence_its_lengths():
    assert to_float32(collections.defaultdict(list, a=half(1)))["new"] == []
    packed = pack_padded_sequence(half(2, 3, 1), torch.tensor([3, 2]), batch_first=True)
    result = to_float32(packed)
    assert isinstance(result, PackedSequence)
    assert result.batch_sizes is packed.batch_sizes


def test_dataclasses_are_copied_without_their_constructor():
    frozen, counted = Frozen(half(1)), Counted(half(1))
    assert to_float32(frozen).mean.dtype == torch.float32
    assert type(to_float32(frozen)) is Frozen
    result = to_float32(counted)
    assert type(result) is Counted
    assert result.made == [1]
    assert result.extra is result.mean
    assert result.extra.dtype == torch.float32
    assert counted.mean.dtype == torch.float16


def test_objects_with_attributes():
    for value in (Plain(half(1)), SimpleNamespace(value=half(1), nested=[0, {"again": 1}])):
        result = to_float32(value)
        assert type(result) is type(value)
        assert result.value.dtype == torch.float32
        assert value.value.dtype == torch.float16
    result = to_float32(Plain(half(1)))
    assert result.nested[0] is result.value
    assert result.nested[1]["again"] is result.value
    result = to_float32(Attributed(a=half(1)))
    assert result["a"].dtype == result.a.dtype == torch.float32


@pytest.mark.parametrize(
    "make",
    [
        lambda x: dist.Normal(x, x.exp()),
        lambda x: dist.OneHotCategorical(logits=x),
        lambda x: dist.Independent(dist.Normal(x, x.exp()), 1),
        lambda x: dist.MixtureSameFamily(
            dist.Categorical(logits=x), dist.Independent(dist.Normal(x[..., None], 1.0), 1)
        ),
        lambda x: dist.TransformedDistribution(
            dist.Normal(x, 1.0), [dist.TanhTransform(), dist.AffineTransform(x, 2.0)]
        ),
    ],
)
def test_distributions_compute_in_float32_and_keep_their_type(make):
    x = torch.linspace(-1.0, 1.0, 8).reshape(2, 4).half()
    value = make(x)
    result = to_float32(value)
    assert type(result) is type(value)
    drawn = result.sample()
    assert drawn.dtype == torch.float32
    assert result.log_prob(drawn).dtype == torch.float32
    torch.testing.assert_close(
        result.log_prob(drawn), make(x.float()).log_prob(drawn), rtol=1e-2, atol=1e-2
    )


def test_what_holds_no_half_tensor_comes_back_itself():
    for value in (
        {"a": torch.ones(1)},
        [1],
        Pair(1, 2),
        Frozen(torch.ones(1)),
        Plain(torch.ones(1)),
        dist.Normal(0.0, 1.0),
        object(),
        "text",
        range(3),
    ):
        assert to_float32(value) is value


def test_a_tensor_that_occurs_twice_is_cast_once():
    tensor = half(1)
    result = to_float32({"a": tensor, "b": [tensor]})
    assert result["a"] is result["b"][0]


@pytest.mark.parametrize(
    "make",
    [
        lambda own: own,
        lambda own: {"inner": [own]},
        lambda own: (own, half(1)),
        lambda own: [Pair(own, half(1))],
        Node,
        lambda own: collections.deque([own, half(1)], maxlen=2),
    ],
)
def test_what_contains_itself_is_cast_all_the_way(make):
    for own in (Node(half(1)), [half(1)], {"x": half(1)}, collections.deque([half(1)])):
        inside = make(own)
        if isinstance(own, Node):
            own.also = inside
        elif isinstance(own, dict):
            own["also"] = inside
        else:
            own.append(inside)
        for start in (own, inside):
            require_same_graph(start, to_float32(start))


def test_an_object_that_is_its_own_attribute_stays_so():
    given = Plain(half(1))
    given.myself = given
    result = to_float32(given)
    assert result.value.dtype == torch.float32
    assert result.myself is result
    assert given.value.dtype == torch.float16


def test_what_contains_itself_without_a_half_tensor_comes_back_itself():
    given = [torch.ones(1)]
    given.append({"again": (given,)})
    assert to_float32(given) is given
    assert given[1]["again"][0] is given


def test_what_is_nested_too_deeply_passes_with_a_notice():
    deep = []
    for _ in range(3000):
        deep = [deep]
    given = [half(1), deep]
    with capture_logs() as logs:
        assert to_float32(given) is given
    assert [entry["event"] for entry in logs] == ["half_tensors_returned"]


class Slotted:
    __slots__ = ("__private", "value")

    def __init__(self, value):
        self.value = self.__private = value

    @property
    def private(self):
        return self.__private


class SlottedChild(Slotted):
    pass


@pytest.mark.parametrize("kind", [Slotted, SlottedChild])
def test_objects_with_attributes_in_slots(kind):
    given = kind(half(2))
    result = to_float32([given])[0]
    assert type(result) is kind
    assert result.value.dtype == result.private.dtype == torch.float32
    assert given.value.dtype == torch.float16


class Unreadable(collections.abc.Mapping):
    def __getitem__(self, key):
        raise KeyError(key)

    def __iter__(self):
        return iter(["a"])

    def __len__(self):
        return 1


def test_an_object_that_cannot_be_read_passes():
    given = Unreadable()
    assert to_float32(given) is given


class Refusing(Plain):
    __slots__ = ()

    def __copy__(self):
        raise TypeError("no copies")


@pytest.mark.parametrize(
    "make", [Opaque, lambda: MappingProxyType({"a": half(1)}), lambda: Refusing(half(1))]
)
def test_what_cannot_be_opened_passes_with_one_notice_for_its_type(make):
    with capture_logs() as logs:
        for value in (make(), make()):
            assert to_float32([value])[0] is value
    (entry,) = logs
    assert entry["event"] == "half_tensors_returned"
    assert entry["type"].endswith(type(make()).__qualname__)


def test_what_cannot_be_opened_passes_without_a_notice_if_it_holds_no_half_tensor():
    opaque = Opaque()
    opaque.layers[0] = Plain(torch.ones(1))
    with capture_logs() as logs:
        assert to_float32((opaque, iter([1]), print))[0] is opaque
    assert logs == []


def test_what_is_in_use_passes_without_a_notice():
    opaque = Opaque()
    with capture_logs() as logs:
        assert to_float32((opaque,), in_use=lambda value: value is opaque)[0] is opaque
    assert logs == []


class Registered:
    def __init__(self, tensors):
        self._tensors = tensors

    def __reduce__(self):
        raise TypeError("only by its registration")


def test_what_is_registered_as_a_pytree_is_opened_by_its_registration():
    _pytree.register_pytree_node(
        Registered, lambda r: (r._tensors, None), lambda tensors, _: Registered(list(tensors))
    )
    try:
        result = to_float32({"r": Registered([half(1), 2])})["r"]
    finally:
        _pytree.SUPPORTED_NODES.pop(Registered)
    assert type(result) is Registered
    assert result._tensors[0].dtype == torch.float32


class Fresh(dict):
    """Makes a new tensor whenever one is asked for."""

    def items(self):
        return ((key, value.clone()) for key, value in super().items())


def test_values_that_live_only_while_they_are_looked_at_are_not_confused():
    result = to_float32(Fresh({n: half(1) * n for n in range(50)}))
    assert type(result) is Fresh
    assert [float(each) for each in result.values()] == list(range(50))


TREES = st.recursive(
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.int64]).map(
        lambda dtype: torch.ones(1, dtype=dtype)
    )
    | st.none()
    | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
        | st.builds(Frozen, inner)
        | st.builds(Plain, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3).map(collections.OrderedDict)
    ),
    max_leaves=8,
)


def shape_of(value):
    """Types in *value*, all the way down, without the dtypes of floating tensors."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.is_floating_point())
    if isinstance(value, dict):
        return (type(value), {key: shape_of(each) for key, each in value.items()})
    if isinstance(value, list | tuple):
        return (type(value), [shape_of(each) for each in value])
    if isinstance(value, Frozen):
        return (Frozen, shape_of(value.mean))
    if isinstance(value, Plain):
        return (Plain, shape_of(value.value))
    return value


@given(TREES)
def test_no_tree_changes_its_types(tree):
    before = shape_of(tree)
    assert shape_of(to_float32(tree)) == before
    assert shape_of(tree) == before


def children(value):
    if isinstance(value, Node):
        return [value.value, value.also]
    return list(value.values()) if isinstance(value, dict) else list(value)


def require_same_graph(before, after):
    """Walk both: types and identities correspond, half tensors became float32, none is left."""
    partner, held, queue = {}, [], [(before, after)]
    while queue:
        old, new = queue.pop()
        if isinstance(old, torch.Tensor):
            assert new.dtype == (torch.float32 if old.dtype in HALF else old.dtype)
        elif isinstance(old, Node | dict | list | tuple | collections.deque):
            assert type(new) is type(old)
            if id(old) in partner:
                assert partner[id(old)] is new
                continue
            partner[id(old)] = new
            held += [old, new]
            queue += zip(children(old), children(new), strict=True)
        else:
            assert new == old


GRAPHS = st.recursive(
    st.sampled_from([torch.float16, torch.float32]).map(lambda dtype: torch.ones(1, dtype=dtype))
    | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
        | st.builds(Node, inner, inner)
        | st.lists(inner, max_size=2).map(collections.deque)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


def nodes_of(value):
    if not isinstance(value, Node | dict | list | tuple | collections.deque):
        return []
    return [value, *(node for each in children(value) for node in nodes_of(each))]


@given(st.data())
def test_any_graph_with_cycles_is_cast_all_the_way(data):
    root = data.draw(GRAPHS)
    nodes = nodes_of(root)
    for _ in range(data.draw(st.integers(0, 3)) if nodes else 0):  # close cycles
        source, target = data.draw(st.sampled_from(nodes)), data.draw(st.sampled_from(nodes))
        if isinstance(source, Node):
            source.also = target
        elif isinstance(source, dict):
            source["also"] = target
        elif not isinstance(source, tuple):
            source.append(target)
    kinds = [type(node) for node in nodes]
    require_same_graph(root, to_float32(root))
    assert [type(node) for node in nodes] == kinds
