import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from infrastructure.fleet import Fleet, FleetMember
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.trajectories.encoding.features import Features, Tokens
from infrastructure.world_model import EnsembleNetwork, NetworkShape
from infrastructure.world_model.networks import ensemble_loss
from infrastructure.world_model.networks.network import LinearNetwork, build_seeded
from infrastructure.world_model.networks.text import TextEmbedding

SHAPE = NetworkShape(
    dense=3, texts={"action.code": 16}, boxes={"state": 2, "reward": 1}, labels={"outcome": 4}
)

TEXTS = NetworkShape(
    dense=8, texts={"code": 16, "words": 128}, boxes={"state": 2}, labels={"outcome": 4}
)


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    return Features(
        dense=torch.randn(5, 3, generator=generator),
        texts={"action.code": Tokens.of([[1, 2], [], [3], [4, 5, 6], [1]])},
        out_of_distribution=torch.zeros(5, dtype=torch.bool),
    ).inputs()


@pytest.fixture
def network():
    return build_seeded(lambda shape: EnsembleNetwork(shape, members=3, hidden=8), SHAPE, 1).eval()


@pytest.mark.parametrize(("build", "members"), [(EnsembleNetwork, 5), (LinearNetwork, 1)])
def test_heads(build, members, inputs):
    raw = build(SHAPE)(inputs)
    assert {name: tuple(tensor.shape) for name, tensor in raw.items()} == {
        "state.mean": (members, 5, 2),
        "state.log_variance": (members, 5, 2),
        "reward.mean": (members, 5, 1),
        "reward.log_variance": (members, 5, 1),
        "outcome.logits": (members, 5, 4),
    }


def test_members_share_nothing(network, inputs):
    network(inputs)["outcome.logits"][0].square().sum().backward()
    for parameter in (*network.weights, *network.biases):
        assert parameter.grad[0].abs().sum() > 0
        assert parameter.grad[1:].abs().sum() == 0
    table = network.embeddings[0].bag.weight.grad.unflatten(1, (3, -1))
    assert table[:, 0].abs().sum() > 0
    assert table[:, 1:].abs().sum() == 0


def test_members_differ_and_seeds_decide(network, inputs):
    logits = network(inputs)["outcome.logits"]
    assert not torch.allclose(logits[0], logits[1])
    before = torch.get_rng_state()
    builds = [build_seeded(EnsembleNetwork, SHAPE, seed).eval() for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    first, same, other = (build(inputs)["reward.mean"] for build in builds)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("half", "between"), [(torch.float16, [torch.float16]), (torch.bfloat16, [torch.bfloat16] * 2)]
)
def test_half_precision_computes_between_float32_ends_and_agrees(network, inputs, half, between):
    full = network(inputs)
    with DtypesOfProducts() as products, torch.autocast("cpu", dtype=half):
        outputs = network(inputs)
    assert products.seen == [torch.float32, *between, torch.float32]
    for name, tensor in outputs.items():
        assert tensor.dtype is torch.float32
        assert not torch.equal(tensor, full[name])
        assert torch.allclose(tensor, full[name], atol=0.02)


def test_bf16_corrects_the_rounding_of_the_weights(network):
    inputs = Features(
        dense=torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)),
        texts={"action.code": Tokens.of([[]] * 1000)},
        out_of_distribution=torch.zeros(1000, dtype=torch.bool),
    ).inputs()

    def mean_logits():
        return network(inputs)["outcome.logits"].mean(1)

    middle = network.weights[1].data
    middle.copy_(middle.bfloat16().float() * (1.0 + 0.9 * 2.0**-9))  # BF16 cuts all off
    full = mean_logits()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = mean_logits()
    middle.copy_(middle.bfloat16())
    cut_off = mean_logits()
    assert (half - full).norm() < 0.3 * (cut_off - full).norm()


def test_bf16_gradients_agree_with_float32(network, inputs):
    def gradients():
        loss = network(inputs)["outcome.logits"].square().sum()
        return torch.autograd.grad(loss, [*network.weights, *network.biases])

    full = gradients()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = gradients()
    for exact, rounded in zip(full, half, strict=True):
        assert (rounded - exact).norm() < 0.02 * exact.norm()


def test_weights_kept_in_half_give_float32_outputs(network, inputs):
    full = network(inputs)
    outputs = network.half()({name: _halved(tensor) for name, tensor in inputs.items()})
    for name, tensor in outputs.items():
        assert tensor.dtype is torch.float32
        assert torch.allclose(tensor, full[name], atol=0.02)


def _halved(tensor):
    return tensor.half() if tensor.is_floating_point() else tensor


class DtypesOfProducts(TorchDispatchMode):
    """Records the dtype of each batched product."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.baddbmm.default:
            self.seen.append(args[1].dtype)
        return func(*args, **(kwargs or {}))


def test_the_magnitude_of_a_text_does_not_depend_on_its_length():
    torch.manual_seed(0)
    embedding = TextEmbedding(2048, 64)
    torch.nn.init.normal_(embedding.bag.weight)
    short, long = Tokens.of([range(4)]), Tokens.of([range(400)])
    for tokens in (short, long):
        assert embedding(
            tokens.buckets, tokens.offsets, tokens.weights
        ).std().item() == pytest.approx(1.0, abs=0.2)


def test_rows_without_any_token_train():
    tokens = Tokens.of([[], []])
    embedding = TextEmbedding(8, 2)
    output = embedding(tokens.buckets, tokens.offsets, tokens.weights)
    assert output.tolist() == [[0, 0], [0, 0]]
    output.sum().backward()
    assert embedding.bag.weight.grad.abs().sum() == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("rows", "hidden"), [(32, 16), (5, 8)])
def test_a_fleet_of_networks_has_the_bits_of_each(precision, rows, hidden):
    """With 32 rows the layers of all networks are stacked, with 5 they are not."""

    def trainer(seed):
        network = build_seeded(
            lambda shape: EnsembleNetwork(shape, members=2, hidden=hidden, embedding=8), TEXTS, seed
        )
        optimizer = torch.optim.AdamW(network.parameters(), fused=True)
        return FP16Trainer(
            network, optimizer, FP16TrainingConfig(precision=precision, cpu_half=True)
        )

    generator = torch.Generator().manual_seed(0)
    code = Tokens.of([[row % 16, 3] for row in range(40)]).with_shares(16)
    batches = [
        {
            "dense": torch.randn(rows, 8, generator=generator),
            **code.take(torch.randint(40, (rows,), generator=generator)).inputs("code"),
            "words.buckets": torch.randint(128, (3 * rows,), generator=generator),
            "words.offsets": torch.arange(0, 3 * rows, 3),
            "words.weights": torch.rand(3 * rows, generator=generator),
            "target.state": torch.randn(rows, 2, generator=generator),
            "target.outcome": torch.randint(4, (rows,), generator=generator),
        }
        for _ in range(6)
    ]
    alone, together = ([trainer(seed) for seed in range(2)] for _ in range(2))
    fleet = Fleet()
    for seed, each in enumerate(together):
        torch.manual_seed(seed)
        member = FleetMember(
            trainer=each, loss=ensemble_loss, generator=torch.Generator().manual_seed(seed)
        )
        fleet.join(str(seed), member)
        for step in range(3):
            alone[seed].train_batch(batches[2 * step + seed], ensemble_loss)
    for step in range(3):
        assert fleet.step({str(seed): batches[2 * step + seed] for seed in range(2)}) == {}
    assert fleet.alone == {}
    for one, other in zip(alone, together, strict=True):
        pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
        assert all(torch.equal(first, second) for first, second in pairs)
        assert one.get_stats() == other.get_stats()
