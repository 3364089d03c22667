import random

import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pml_ext._shared.errors import UserError
from pml_ext.runner.checks.check import require_supported
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.data.transforms import (
    AutoAugment,
    RandomPatch,
    build_transform,
)
from pml_ext.runner.registry import TRANSFORM_REGISTRY

SIZE = [32, 16]


def config(channels=3, **options):
    """The default INPUT with some switches on, and values of their nodes."""
    node = get_cfg().INPUT
    node.update({"SIZE_TRAIN": SIZE, "SIZE_TEST": SIZE})
    node.CROP.SIZE, node.REA.VALUE = [24, 24], [124.0, 116.0, 104.0][:channels]
    for key, value in options.items():
        if isinstance(value, dict):
            node[key].update({"ENABLED": True} | value)
        else:
            node[key] = value
    return node


def colour_image(height=40, width=30, channels=3):
    """An image of every colour, in memory as decoders give it."""
    noise = torch.rand(1, channels, 5, 4, generator=torch.Generator().manual_seed(height * width)) * 300 - 20
    smooth = torch.nn.functional.interpolate(noise, (height, width), mode="bicubic").clamp(0, 255).to(torch.uint8)[0]
    return smooth.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def test_tests_only_resize_as_pillow_does_and_keep_the_range():
    image = colour_image()
    result = build_transform(config(FLIP={"PROB": 1.0}, REA={"PROB": 1.0}), training=False)(image)
    assert result.dtype == torch.uint8
    expected = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((16, 32), Image.Resampling.BICUBIC)
    assert (result.int() - F.pil_to_tensor(expected).int()).abs().max() <= 1
    for size, shape in (([20], (3, 26, 20)), ([0], (3, 40, 30))):  # the shorter side; as it is
        assert build_transform(config(SIZE_TEST=size), training=False)(image).shape == shape


def test_crop_is_random_in_training_and_central_in_tests():
    cfg = config(SIZE_TRAIN=[30], SIZE_TEST=[30], CROP={"SIZE": [24]})
    train = build_transform(cfg, training=True)
    assert train(colour_image()).shape == (3, 24, 24)
    assert not torch.equal(train(colour_image()), train(colour_image()))
    expected = F.center_crop(F.resize(colour_image(), [30], interpolation=F.InterpolationMode.BICUBIC), [24, 24])
    assert torch.equal(build_transform(cfg, training=False)(colour_image()), expected)


def test_a_crop_of_one_share_and_ratio_is_cut_out_and_not_resized():
    """227²/256² of 256×256 at ratio 1, as LoOp's configs have it."""
    crop = {"SIZE": [227, 227], "SCALE": [0.7863, 0.7863], "RATIO": [1.0, 1.0]}
    options = config(SIZE_TRAIN=[256, 256], CROP=crop)
    image = torch.randint(0, 256, (3, 256, 256), dtype=torch.uint8)
    cut = build_transform(options, training=True)(image)
    assert cut.shape == (3, 227, 227)
    places = [(row, column) for row in range(30) for column in range(30)]
    assert sum(torch.equal(image[:, row : row + 227, column : column + 227], cut) for row, column in places) == 1


@pytest.mark.parametrize("name", TRANSFORM_REGISTRY)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_switch_acts_in_training_only_and_follows_the_seed(name, channels):
    options = config(channels, **{name: {"PROB": 1.0} if "PROB" in config()[name] else {}})
    image, runs = colour_image(channels=channels), []
    for _ in range(2):
        train = build_transform(options, training=True)
        torch.manual_seed(0)
        runs.append([train(image) for _ in range(RandomPatch.ENOUGH + 20)])
    plain = build_transform(config(channels), training=True)(image)
    assert any(result.shape != plain.shape or not torch.equal(result, plain) for result in runs[0])
    assert all(result.min() >= 0 and result.max() <= 255 for result in runs[0])
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))
    if name != "CROP":
        assert torch.equal(build_transform(options, training=False)(image), plain)


def by_torchvision(options, image):
    """What torchvision's classes alone make of an image, and of the random numbers."""
    jitter = v2.ColorJitter(options.CJ.BRIGHTNESS, options.CJ.CONTRAST, options.CJ.SATURATION, options.CJ.HUE)
    steps = {
        "PADDING": [v2.Pad(options.PADDING.SIZE, padding_mode=options.PADDING.MODE), v2.RandomCrop(SIZE)],
        "FLIP": [v2.RandomHorizontalFlip(options.FLIP.PROB)],
        "CJ": [v2.RandomApply([jitter], options.CJ.PROB)],
        "REA": [v2.ToDtype(torch.float32), v2.RandomErasing(options.REA.PROB, value=list(options.REA.VALUE))],
    }
    chosen = [step for name, its in steps.items() if options[name].ENABLED for step in its]
    return v2.Compose([v2.Resize(SIZE, interpolation=v2.InterpolationMode.BICUBIC), *chosen])(image.contiguous())


@pytest.mark.parametrize(("mode", "channels"), [("constant", 1), ("edge", 3), ("reflect", 3), ("symmetric", 1)])
def test_shifts_mirror_images_jitter_and_erasing_are_torchvisions(mode, channels):
    options = config(channels, PADDING={"MODE": mode}, FLIP={}, CJ={"PROB": 0.8}, REA={})
    transform, image = build_transform(options, training=True), colour_image(channels=channels)
    for seed in range(20):
        torch.manual_seed(seed)
        expected = by_torchvision(options, image)
        after = torch.rand(1)
        torch.manual_seed(seed)
        assert torch.equal(transform(image), expected)
        assert torch.rand(1) == after, "as many random numbers"


def test_random_patch_waits_for_its_pool_then_pastes_parts_of_other_images():
    torch.manual_seed(0)
    patch = RandomPatch(1.0)
    for value in range(RandomPatch.ENOUGH - 1):
        assert (patch(torch.full((3, 20, 10), float(value))) == value).all()
    given = torch.full((3, 20, 10), -1.0)
    pasted = patch(given)
    assert (given == -1).all(), "the image that was handed in stays as it is"
    others = pasted[pasted != -1].unique()
    assert len(others) == 1
    assert others.item() in range(RandomPatch.ENOUGH)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"SIZE_TRAIN": [1, 2, 3]}, r"INPUT.SIZE_TRAIN = \[1, 2, 3\]: must be \[height, width\]"),
        ({"FLIP": {"PROB": 1.5}}, r"INPUT.FLIP.PROB must be in \[0, 1\]; got 1.5"),
        (
            {"PADDING": {"MODE": "wrap"}},
            "INPUT.PADDING: Padding mode should be either constant, edge, reflect or symmetric",
        ),
        ({"PADDING": {}, "SIZE_TRAIN": [0]}, "INPUT.PADDING: crops to INPUT.SIZE_TRAIN"),
        ({"PADDING": {"SIZE": -1}}, "INPUT.PADDING.SIZE must be at least 0; got -1"),
        ({"PADDING": {"MODE": "reflect", "SIZE": 40}}, "INPUT.PADDING.SIZE must be below INPUT.SIZE_TRAIN"),
        ({"CROP": {"SCALE": [1.0, 0.5]}}, r"INPUT.CROP.SCALE = \[1.0, 0.5\]: must be two ascending numbers above 0"),
        ({"CJ": {"HUE": 0.7}}, r"INPUT.CJ: hue values should be between \(-0.5, 0.5\)"),
        ({"REA": {"VALUE": [0.0]}}, r"REA.VALUE = \[0.0\]: must have one value for each of the 3 channels"),
    ],
)
def test_errors(options, message):
    cfg = get_cfg()
    cfg.MODEL.BACKBONE.update({"NAME": "build_convnet_backbone", "DEPTH": "2x", "FEAT_DIM": 6})
    cfg.INPUT = config(**options)
    with pytest.raises(UserError, match=message):
        require_supported(cfg)


def test_autoaugment_fills_with_grey_and_follows_the_samples_seed():
    """With black fill, 18.7 % of person images have more than 5 % black pixels; in FastReID 2.2 %."""
    augment = AutoAugment(prob=1.0)
    state = random.getstate()
    torch.manual_seed(0)
    image = torch.randint(60, 200, (3, 64, 32), dtype=torch.uint8)
    changed = []
    for seed in range(200):
        torch.manual_seed(seed)
        changed.append(augment(image))
    black = torch.stack([each.eq(0).all(dim=0).float().mean() for each in changed])
    grey = torch.stack([each.eq(128).all(dim=0).float().mean() for each in changed])
    assert (black > 0.05).float().mean() < 0.03 and (grey > 0.05).float().mean() > 0.05
    torch.manual_seed(3)
    assert torch.equal(augment(image), changed[3]) and random.getstate() == state
    torch.manual_seed(0)
    assert torch.equal(AutoAugment(prob=0.0)(image), image)
    assert augment(image[:1]).shape == (1, 64, 32)
