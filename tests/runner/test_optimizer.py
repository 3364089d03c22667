import pytest
import torch
from torch import nn

from pml_ext.losses import DiscriminativeLoss
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.registry import OPTIMIZER_REGISTRY
from pml_ext.runner.solver import build_optimizer, clip_gradients, fit_restored_state


def config(**solver):
    cfg = get_cfg()
    for key, value in ({"BASE_LR": 1.0, "MAX_EPOCH": 20, "WARMUP_ITERS": 0} | solver).items():
        cfg.SOLVER[key] = value
    return cfg


def test_biases_norms_and_heads_have_their_own_rates_and_decays():
    model = nn.ModuleDict({"backbone": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "heads": nn.Linear(2, 2)})
    cfg = config(
        BIAS_LR_FACTOR=2.0, HEADS_LR_FACTOR=3.0, WEIGHT_DECAY=0.1, WEIGHT_DECAY_NORM=0.2, WEIGHT_DECAY_BIAS=0.3
    )
    model["losses"] = nn.ModuleDict({"DiscriminativeLoss": DiscriminativeLoss(3, 2)})
    model["backbone"].append(nn.InstanceNorm1d(2, affine=True))
    model["backbone"][1].weight.requires_grad_(False)
    model["heads"].register_parameter("shared", model["backbone"][0].weight)  # listed once, at its first place
    groups = build_optimizer(cfg.SOLVER, model).param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {}
    for group in groups:
        for parameter in group["params"]:
            assert names[id(parameter)] not in found
            found[names[id(parameter)]] = (group["lr"], group["weight_decay"])
    expected = {
        "backbone.0.weight": (1.0, 0.1),
        "backbone.0.bias": (2.0, 0.3),
        "backbone.1.bias": (2.0, 0.3),  # a bias, as in FastReID
        "backbone.2.weight": (1.0, 0.2),
        "backbone.2.bias": (2.0, 0.3),
        "heads.weight": (3.0, 0.1),
        "heads.bias": (6.0, 0.3),
        "losses.DiscriminativeLoss.projection.weight": (3.0, 0.1),
    }
    assert found == expected


@pytest.mark.parametrize("name", OPTIMIZER_REGISTRY)
def test_every_optimizer_trains_with_rates_and_decays_by_group(name):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = build_optimizer(config(OPT=name, BASE_LR=0.01, WEIGHT_DECAY=0.1, BIAS_LR_FACTOR=2.0).SOLVER, model)
    assert type(optimizer) is getattr(torch.optim, name)
    assert {(g["lr"], g["weight_decay"]) for g in optimizer.param_groups} == {(0.01, 0.1), (0.01, 5e-4), (0.02, 5e-4)}
    model(torch.randn(4, 2)).square().mean().backward()
    optimizer.step()
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_a_state_of_another_layout_steps_as_if_it_had_the_weights(name):
    """A fused step of weights and states in different layouts is silently wrong."""

    def stepped(*, restored):
        torch.manual_seed(0)
        layer, images = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 5, 5)
        optimizer = build_optimizer(config(OPT=name, BASE_LR=0.1).SOLVER, layer)
        for step in range(2):
            if step and restored:
                layer.to(memory_format=torch.channels_last)
                fit_restored_state(optimizer)
            optimizer.zero_grad()
            layer(images).square().mean().backward()
            optimizer.step()
        return layer.weight.detach()

    torch.testing.assert_close(stepped(restored=True), stepped(restored=False))


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_steps_are_fused_but_for_gradients_that_a_scaler_has_scaled(name):
    solver = config(OPT=name).SOLVER
    fused = build_optimizer(solver, nn.Linear(2, 2))
    assert fused.defaults["fused"]
    solver.AMP.ENABLED = True
    resumed = build_optimizer(solver, nn.Linear(2, 2))
    resumed.load_state_dict(fused.state_dict())
    assert resumed.param_groups[0]["fused"], "torch restores it"
    fit_restored_state(resumed)
    assert not any(group["fused"] for group in resumed.param_groups)
    solver.AMP.DTYPE = "bfloat16"
    assert build_optimizer(solver, nn.Linear(2, 2)).defaults["fused"]


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
@pytest.mark.parametrize("amp", [{}, {"ENABLED": True, "DTYPE": "bfloat16"}, {"ENABLED": True, "DTYPE": "float16"}])
def test_weights_that_are_frozen_at_first_then_step_like_fresh_ones(name, amp):
    def trained(steps, *, frozen):
        layers = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
        for layer in layers:
            nn.init.ones_(layer.weight)
        solver = config(OPT=name, BASE_LR=0.1).SOLVER
        solver.AMP.update(amp)
        optimizer = build_optimizer(solver, layers)
        for step in range(steps):
            layers[0].weight.grad = torch.full((1, 1), step + 1.0)
            layers[1].weight.grad = None if step < frozen else torch.full((1, 1), step - frozen + 1.0)
            optimizer.step()
        return layers[1].weight.item()

    assert trained(5, frozen=2) == pytest.approx(trained(3, frozen=0), rel=1e-6)
    assert trained(2, frozen=2) == 1, "no weight decay before"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"CLIP_VALUE": 6.0}, [3.0, -4.0]),
        ({"CLIP_VALUE": 3.5, "NORM_TYPE": 1.0}, [1.5, -2.0]),
        ({"CLIP_VALUE": 0.35, "CLIP_TYPE": "value"}, [0.35, -0.35]),
        ({"CLIP_VALUE": 0.1, "ENABLED": False}, [3.0, -4.0]),
    ],
)
def test_the_gradient_of_a_parameter(options, expected):
    clip, parameter = get_cfg().SOLVER.CLIP_GRADIENTS, nn.Parameter(torch.zeros(2))
    clip.update({"ENABLED": True, **options})
    clip_gradients(clip, parameter)
    assert parameter.grad is None
    parameter.grad = torch.tensor([3.0, -4.0])
    clip_gradients(clip, parameter)
    torch.testing.assert_close(parameter.grad, torch.tensor(expected))
