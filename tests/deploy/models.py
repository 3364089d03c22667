"""A small network with weights, as a run leaves them."""

from contextlib import redirect_stdout

import torch
from torch import nn

from pml_ext.cli import main
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.modeling.pixels_to_embedding import PixelsToEmbedding


def small_model(folder, **values):
    """config.yml and last.ckpt of a convnet with 6 channels on images of 12×8."""
    folder.mkdir(exist_ok=True)
    cfg = get_cfg()
    cfg.MODEL.DEVICE = "cpu"
    cfg.MODEL.BACKBONE.NAME, cfg.MODEL.BACKBONE.DEPTH, cfg.MODEL.BACKBONE.FEAT_DIM = "build_convnet_backbone", "2x", 6
    cfg.MODEL.HEADS.POOL_LAYER, cfg.MODEL.HEADS.WITH_BNNECK = "GeneralizedMeanPoolingP", True
    cfg.INPUT.SIZE_TRAIN = cfg.INPUT.SIZE_TEST = [12, 8]
    cfg.DATALOADER.NUM_WORKERS = 0
    cfg.merge_from_list([word for key, value in values.items() for word in (key.replace("__", "."), value)])
    torch.manual_seed(0)
    net = PixelsToEmbedding(cfg, flip=cfg.TEST.FLIP.ENABLED).eval()
    nn.init.normal_(net.model.heads.bottleneck[0].running_mean)  # type: ignore[arg-type]
    of_training = {"heads.weight": torch.ones(3, 6), "losses.LoOp.x": torch.ones(1)}
    torch.save({"state_dict": {**net.model.state_dict(), **of_training}}, folder / "last.ckpt")
    (folder / "config.yml").write_text(cfg.dump(), encoding="utf-8")
    return folder / "config.yml", folder / "last.ckpt"


def exported_model(folder):
    """model.onnx of a small model with the flip test, and printed.txt, the command's output; for `made_once`."""
    config, weights = small_model(folder)
    words = ["export", str(config), "--output", str(folder / "model.onnx")]
    with (folder / "printed.txt").open("w", encoding="utf-8") as printed, redirect_stdout(printed):
        assert main([*words, "MODEL.WEIGHTS", str(weights), "TEST.FLIP.ENABLED", "True"]) == 0


def network_of(config, weights):
    """The config and the network with its weights, put together without the package's loading."""
    cfg = get_cfg()
    cfg.merge_from_file(str(config))
    net = PixelsToEmbedding(cfg, flip=cfg.TEST.FLIP.ENABLED).eval()
    net.model.load_state_dict(torch.load(weights, weights_only=True)["state_dict"], strict=False)
    return cfg, net


def by_hand(cfg, net, images, *, flip=False):
    """Unit embeddings (B, D) of pixels (B, C, H, W) from 0 to 255; flip: the mean with the mirror image."""
    mean, std = (torch.tensor(value)[:, None, None] for value in (cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD))
    views = [images, images.flip(-1)] if flip else [images]
    with torch.no_grad():
        features = sum(net.model.heads(net.model.backbone((view.float() - mean) / std)) for view in views)
    return nn.functional.normalize(features)
