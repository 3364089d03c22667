"""FastReID's RegNet and RepVGG in evaluation, computed from a state with FastReID's names."""

import re

from torch.nn import functional


def convolve(state, name, x, stride=1):
    """Padding keeps the size; the shape of the weights tells the groups."""
    weight = state[f"{name}.weight"]
    groups = x.shape[1] // weight.shape[1]
    return functional.conv2d(x, weight, state.get(f"{name}.bias"), stride, weight.shape[2] // 2, groups=groups)


def batch_norm(state, name, x):
    mean, variance, weight, bias = (state[f"{name}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
    return functional.batch_norm(x, mean, variance, weight, bias)


def regnet(state, x, last_stride):
    x = batch_norm(state, "stem.bn", convolve(state, "stem.conv", x, 2)).relu()
    for block in dict.fromkeys(name[: name.index(".f.")] for name in state if ".f." in name):
        stride = 1 if not block.endswith(".b1") else last_stride if block.startswith("s4") else 2
        out = batch_norm(state, f"{block}.f.a_bn", convolve(state, f"{block}.f.a", x)).relu()
        out = batch_norm(state, f"{block}.f.b_bn", convolve(state, f"{block}.f.b", out, stride)).relu()
        if f"{block}.f.se.f_ex.0.weight" in state:
            squeezed = convolve(state, f"{block}.f.se.f_ex.0", out.mean(dim=(2, 3), keepdim=True)).relu()
            out = out * convolve(state, f"{block}.f.se.f_ex.2", squeezed).sigmoid()
        out = batch_norm(state, f"{block}.f.c_bn", convolve(state, f"{block}.f.c", out))
        if f"{block}.proj.weight" in state:
            x = batch_norm(state, f"{block}.bn", convolve(state, f"{block}.proj", x, stride))
        x = (x + out).relu()
    return x


def repvgg(state, x, last_stride):
    for block in dict.fromkeys(name[: name.index(".rbr")] for name in state):
        first = re.fullmatch(r"stage0|stage\d\.0", block)
        stride = 1 if not first else last_stride if block.startswith("stage4") else 2
        out = sum(
            batch_norm(state, f"{block}.{part}.bn", convolve(state, f"{block}.{part}.conv", x, stride))
            for part in ("rbr_dense", "rbr_1x1")
        )
        if f"{block}.rbr_identity.weight" in state:
            out = out + batch_norm(state, f"{block}.rbr_identity", x)
        x = out.relu()
    return x
