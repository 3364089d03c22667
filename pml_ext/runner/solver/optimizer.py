"""Optimizer and gradient clipping, with FastReID's keys and semantics."""

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._ops.distributed import norm_over_ranks
from pml_ext.runner.config.part_keys import arguments_from, construct
from pml_ext.runner.registry import OPTIMIZER_REGISTRY

_NORM_TYPES = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)  # _NormBase: batch and instance norms

# All optimizers of torch.optim with rates and decays per group that train dense weights without a closure.
for _name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop"):
    OPTIMIZER_REGISTRY.register(_name)(getattr(torch.optim, _name))
OPTIMIZER_REGISTRY.register(flat="MOMENTUM NESTEROV")(torch.optim.SGD)

# A fused Adam step on ResNet-50 takes a fifth of the time on one core. Fused SGD saves 0.2 s of a step of 5 s or more,
# and fails on a parameter whose first gradient comes after those of others (FREEZE_LAYERS, a loss that starts later).
_FUSED = (torch.optim.Adam, torch.optim.AdamW)


def build_optimizer(options: CN, model: nn.Module) -> torch.optim.Optimizer:
    """Builds SOLVER.OPT for the trainable parameters, with separate rates and decays for biases, norms and heads.

    A norm's bias counts as a bias, as in FastReID. Parameters of losses count as heads, like FastReID's class weights.
    HEADS_LR_FACTOR has no effect on heads with other names (MGN's), as in FastReID. MOMENTUM and NESTEROV apply to SGD
    only. A node with the optimizer's name holds its other arguments.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            rate, decay = options.BASE_LR, options.WEIGHT_DECAY
            if name == "bias":
                rate, decay = rate * options.BIAS_LR_FACTOR, options.WEIGHT_DECAY_BIAS
            elif isinstance(module, _NORM_TYPES):
                decay = options.WEIGHT_DECAY_NORM
            if module_name.removeprefix("model.").split(".")[0] in ("heads", "losses"):
                rate *= options.HEADS_LR_FACTOR
            groups.setdefault((rate, decay), []).append(parameter)
    entry = OPTIMIZER_REGISTRY.entry(options.OPT)
    arguments = arguments_from(options, entry, {"lr": options.BASE_LR, "weight_decay": options.WEIGHT_DECAY})
    if entry.part in _FUSED:
        # A fused step would divide by the scaler's factor itself, after gradients are clipped and logged.
        arguments["fused"] = not (options.AMP.ENABLED and options.AMP.DTYPE == "float16")
    by_rate = [{"params": p, "lr": rate, "weight_decay": decay} for (rate, decay), p in groups.items()]
    optimizer = construct(entry, OPTIMIZER_REGISTRY.key, by_rate, **arguments)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(
            f"SOLVER.OPT: {entry.name} of {entry.module} must be a torch.optim.Optimizer; "
            f"it returns a {type(optimizer).__name__}"
        )
    return optimizer


def fit_restored_state(optimizer: torch.optim.Optimizer) -> None:
    """Gives each state the memory layout of its weights: fused steps assume equal layouts without checking.

    A checkpoint may have another layout, or come from a run with fused steps that this run cannot use.
    """
    for group in optimizer.param_groups:
        if not optimizer.defaults.get("fused"):
            group["fused"] = False
    for weights, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == weights.shape and value.stride() != weights.stride():
                state[name] = torch.empty_like(weights, dtype=value.dtype).copy_(value)


@torch.no_grad()
def clip_gradients(options: CN, parameter: nn.Parameter, *, ranks: ProcessGroup | None = None) -> None:
    """Clips the values or the norm of one parameter's gradient, as in FastReID (SOLVER.CLIP_GRADIENTS).

    ranks: process group whose ranks each hold a part of the parameter; the norm is over all parts.
    """
    if not options.ENABLED or parameter.grad is None:  # frozen, or not used by the loss
        return
    if parameter.grad.is_sparse:
        parameter.grad = parameter.grad.coalesce()
    values = parameter.grad.values() if parameter.grad.is_sparse else parameter.grad
    if options.CLIP_TYPE == "value":
        values.clamp_(-options.CLIP_VALUE, options.CLIP_VALUE)
    else:
        norm = norm_over_ranks(values, options.NORM_TYPE, ranks)
        values.mul_((options.CLIP_VALUE / (norm + 1e-6)).clamp(max=1))
