"""A loss inside torch.compile: one operator of the graph, which runs the loss as it runs without torch.compile."""

from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

LOSSES: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
"""Every loss of this package by its `id`, because operators take no modules."""

# The dispatch keys of an ordinary call. Those of a call inside an operator turn autograd off.
_INCLUDED, _EXCLUDED = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()


def run_as_operator(loss: nn.Module, embeddings: Tensor, labels: Tensor | None) -> Tensor:
    """Returns loss(embeddings, labels), a scalar, as one operator with first derivatives.

    So pairs and classes, which the loss counts, neither break the graph nor compile it again.
    """
    value: Tensor = _value_and_gradients(embeddings, labels, list(loss.parameters()), id(loss))[0]
    return value


# A CUDA graph cannot hold an operator that reads labels.
@torch.library.custom_op("pml_ext::loss", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _value_and_gradients(
    embeddings: Tensor, labels: Tensor | None, parameters: list[Tensor], loss: int
) -> list[Tensor]:
    module = LOSSES[loss]
    with torch._C._ForceDispatchKeyGuard(_INCLUDED, _EXCLUDED), torch.enable_grad():
        points = embeddings.detach().requires_grad_()
        value = module(points, labels)
        inputs = [points, *module.parameters()]
        wanted = [each for each in inputs if each.requires_grad]
        gradients = torch.autograd.grad(value, wanted, allow_unused=True, materialize_grads=True)
    by_input = dict(zip(map(id, wanted), gradients, strict=True))
    return [value.detach(), *(by_input.get(id(each), torch.zeros_like(each)).contiguous() for each in inputs)]


@_value_and_gradients.register_fake
def _(embeddings: Tensor, labels: Tensor | None, parameters: list[Tensor], loss: int) -> list[Tensor]:
    value = embeddings.new_empty((), dtype=torch.promote_types(embeddings.dtype, torch.float32))
    return [value, *(each.new_empty(each.shape) for each in (embeddings, *parameters))]


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(*output[1:])


def _times_gradients(ctx: Any, by_output: list[Tensor]) -> tuple[Any, ...]:
    by_embeddings, *by_parameters = ((each * by_output[0]).to(each.dtype) for each in ctx.saved_tensors)
    return by_embeddings, None, by_parameters, None


_value_and_gradients.register_autograd(_times_gradients, setup_context=_keep_gradients)
