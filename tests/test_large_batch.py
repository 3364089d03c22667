"""Gradients of a batch in chunks against those of the undivided batch."""

import copy
import weakref
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from pml_ext.large_batch import step
from pml_ext.losses import DiscriminativeLoss, LoOp, PairWeightingLoss, RecallAtKSurrogateLoss, SoftTripleLoss

Gradients = dict[str, Tensor]


def network(*, dropout=0.0, norm=False):
    torch.manual_seed(0)
    middle: list[nn.Module] = [nn.BatchNorm1d(24)] if norm else []
    return nn.Sequential(nn.Linear(12, 24), *middle, nn.ReLU(), nn.Dropout(dropout), nn.Linear(24, 8))


def batch(size=24):
    torch.manual_seed(5)
    return torch.randn(size, 12), torch.arange(size) % 6


def gradients(*modules):
    return {f"{n}.{name}": p.grad for n, module in enumerate(modules) for name, p in module.named_parameters()}


def assert_equal_in_norm(found, expected):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        error = (found[name] - gradient).norm() / gradient.norm()
        assert error < 1e-5, f"{name}: {error:.1e}"


def undivided(model, loss, size=24):
    model, loss = copy.deepcopy(model), copy.deepcopy(loss)
    inputs, labels = batch(size)
    value = loss(model(inputs), labels)
    value.backward()
    return value.detach(), gradients(model, loss)


@pytest.mark.parametrize("chunk", [1, 5, 24])
@pytest.mark.parametrize(
    "make_loss",
    [RecallAtKSurrogateLoss, lambda: LoOp(PairWeightingLoss()), lambda: SoftTripleLoss(6, 8)],
)
def test_gradients_are_those_of_the_undivided_batch(make_loss, chunk):
    torch.manual_seed(1)
    model, loss = network(), make_loss()
    expected, by_name = undivided(model, loss)
    value = step(model, batch(), loss, chunk=chunk)
    torch.testing.assert_close(value, expected)
    assert_equal_in_norm(gradients(model, loss), by_name)
    assert all(gradient.abs().sum() > 0 for gradient in by_name.values())
    assert not value.requires_grad
    step(model, batch(), loss, chunk=chunk)  # adds to what is there
    assert_equal_in_norm(gradients(model, loss), {name: 2 * gradient for name, gradient in by_name.items()})


class Noted(nn.Module):
    """Notes what the module in it gives."""

    def __init__(self, module):
        super().__init__()
        self.module, self.outputs = module, list[tuple[bool, Tensor]]()

    def forward(self, x):
        output: Tensor = self.module(x)
        self.outputs.append((output.requires_grad, output.detach().clone()))
        return output


def test_a_loss_with_a_buffer_in_the_model():
    model, loss = Noted(network()), DiscriminativeLoss(6, 8, centroids="simplex")
    expected, _ = undivided(model, loss)
    model.loss = loss
    torch.testing.assert_close(step(model, batch(), loss, chunk=5), expected)


def test_dropout_draws_the_same_again():
    model = Noted(network(dropout=0.5))
    torch.manual_seed(9)
    step(model, batch(), PairWeightingLoss(), chunk=10)
    first = [output for learns, output in model.outputs[:2]]
    again = [output for learns, output in model.outputs[3:]]
    assert [learns for learns, _ in model.outputs] == [False, False, True, True, True]
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    assert not torch.equal(first[0], first[1]), "each chunk draws its own"
    after = torch.rand(3)
    torch.manual_seed(9)
    for part in batch()[0].split(10):
        model(part)
    assert torch.equal(after, torch.rand(3)), "what follows goes on behind the first pass"


def test_autocast_around_it():
    model, loss, seen = network(), PairWeightingLoss(), []

    def noted(x, y):
        seen.append(x.dtype)
        value: Tensor = loss(x, y)
        return value

    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, expected = undivided(model, loss)
        step(model, batch(), noted, chunk=7)
    assert seen == [torch.bfloat16]
    torch.testing.assert_close(gradients(model), expected, rtol=4e-2, atol=1e-3)


def test_a_gradient_scaler():
    model, loss = network(), SoftTripleLoss(6, 8)
    _, expected = undivided(model, loss)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    step(model, batch(), loss, chunk=7, scaler=scaler)
    scaled = gradients(model, loss)
    assert_equal_in_norm(scaled, {name: 256 * gradient for name, gradient in expected.items()})
    scaler.unscale_(optimizer)
    assert_equal_in_norm(gradients(model, loss), expected)


def test_batch_norm_goes_by_chunks_and_says_so_once():
    model, other = network(norm=True), network(norm=True)
    with pytest.warns(UserWarning, match="batch norm uses the statistics of chunks of 8 samples"):
        step(model, batch(), PairWeightingLoss(), chunk=8)
    step(model, batch(), PairWeightingLoss(), chunk=8)
    step(network(norm=True), batch(), PairWeightingLoss(), chunk=24)  # the whole batch: no warning
    for _ in range(2):
        for part in batch()[0].split(8):
            other(part)
    assert dict(model.named_buffers()).keys() == dict(other.named_buffers()).keys()
    for name, buffer in other.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer)


def test_spectral_norms_buffers_are_replayed():
    torch.manual_seed(0)
    model = Noted(nn.utils.parametrizations.spectral_norm(nn.Linear(12, 8)))
    step(model, batch(), PairWeightingLoss(), chunk=8)
    outputs = [output for _, output in model.outputs]
    torch.testing.assert_close(outputs[3:], outputs[:2], rtol=0, atol=0)


class Counting(nn.Module):
    """Counts its rows in a buffer that it replaces and in one that it changes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 8)
        self.register_buffer("rows", torch.zeros(()))
        self.register_buffer("in_place", torch.zeros(()))

    def forward(self, x):
        self.rows = self.rows + len(x)
        self.in_place += len(x)
        return self.layer(x) * self.rows / self.in_place + self.rows


def test_buffers_are_those_of_one_pass():
    model = Noted(Counting())
    for rows in (24, 48):
        step(model, batch(), PairWeightingLoss(), chunk=10)
        assert model.module.rows == model.module.in_place == rows
    outputs = [output for _, output in model.outputs[:5]]
    torch.testing.assert_close(outputs[3:], outputs[:2], rtol=0, atol=0)


class Found(NamedTuple):
    features: tuple[Tensor, Tensor]
    nothing: None
    scores: Tensor


class WithScores(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.scores = network(), nn.Linear(8, 6)

    def forward(self, x, weight):
        features = self.body(x) * weight[:, None]
        return Found((features, features[:, :4]), None, self.scores(features))


def test_several_inputs_and_outputs():
    def loss(found, labels):
        assert found.nothing is None
        value: Tensor = sum(PairWeightingLoss()(part, labels) for part in found.features) + nn.functional.cross_entropy(
            found.scores, labels
        )
        return value

    model, (inputs, labels) = WithScores(), batch()
    weights = torch.rand(24)
    loss(model(inputs, weights), labels).backward()
    expected = {name: gradient.clone() for name, gradient in gradients(model).items()}
    model.zero_grad()
    step(model, ((inputs, weights), labels), loss, chunk=9)
    assert_equal_in_norm(gradients(model), expected)
    model.zero_grad()
    step(model, ((inputs, weights), labels), lambda found, y: PairWeightingLoss()(found.features[1], y), chunk=9)
    assert model.scores.weight.grad is None and model.body[0].weight.grad is not None  # which has no part in the loss


def test_graphs_do_not_grow_with_the_batch():
    def most_kept(size):
        alive, most = weakref.WeakSet[Tensor](), [0]

        def keep(x):
            kept = x.detach().clone()
            alive.add(kept)
            most[0] = max(most[0], sum(len(one) for one in alive))
            return kept

        model = network()
        inside = nn.Sequential(*model, nn.Tanh())

        class Counted(nn.Module):
            def forward(self, x):
                with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
                    output: Tensor = inside(x)
                return output

        step(Counted(), batch(size), PairWeightingLoss(), chunk=6)
        return most[0]

    assert most_kept(60) == most_kept(18) > 0


class Named(nn.Module):
    def forward(self, x):
        return {"embeddings": x}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"chunk": 0}, ValueError, "chunk must be at least 1; got 0"),
        ({"loss": lambda x, y: x}, ValueError, r"loss must return a scalar tensor; got shape \(24, 8\)"),
        ({"batch": ({"x": 1}, None)}, TypeError, "a tensor or a tuple of tensors; got dict"),
        ({"batch": ((torch.ones(3, 12), torch.ones(2)), None)}, ValueError, r"got lengths \[3, 2\]"),
        ({"model": nn.Flatten(0)}, ValueError, r"one row for each of the 10 samples of a chunk; got shape \(120,\)"),
        ({"loss": lambda x, y: x.detach().sum()}, ValueError, "depend on a parameter .* that requires a gradient"),
        ({"model": Named()}, TypeError, "a tuple of tensors and None; got dict"),
    ],
)
def test_errors(change, error, message):
    given: dict[str, Any] = {"model": network(), "batch": batch(), "loss": PairWeightingLoss(), "chunk": 10} | change
    with pytest.raises(error, match=message):
        step(given.pop("model"), given.pop("batch"), given.pop("loss"), **given)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_step_without_gradients_says_so(without):
    with without(), pytest.raises(ValueError, match=r"they are disabled; call it outside of torch\.no_grad"):
        step(network(), batch(), PairWeightingLoss(), chunk=10)
