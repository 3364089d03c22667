"""FastReID's initial weights, to be given to `Module.apply`."""

from torch import nn

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d)


def weights_init_kaiming(module: nn.Module) -> None:
    """Kaiming normal weights of linear layers and convolutions, zero biases; norms of scale N(1, 0.02²)."""
    if isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, mode="fan_out")
    elif isinstance(module, (nn.Conv1d, nn.Conv2d)):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, _NORMS) and module.affine:
        nn.init.normal_(module.weight, 1.0, 0.02)
    else:
        return
    if module.bias is not None:
        nn.init.zeros_(module.bias)


def weights_init_classifier(module: nn.Module) -> None:
    """Normal weights of deviation 0.001 of linear layers, zero biases."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.001)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
