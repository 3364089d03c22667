"""Good files of every kind that is read, damaged at random and read in this process under a time limit."""

import io
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from safetensors.torch import save_file

from pml_ext.metrics import ThresholdReport, read_lfw_pairs, read_template_media, read_template_pairs
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import load_config
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.face_pairs import read_bin
from pml_ext.runner.data.datasets.record_io import record_set
from pml_ext.runner.data.datasets.table import table_set
from pml_ext.runner.engine.checkpoints import CONFIG, check_resumable
from pml_ext.runner.modeling.weights.read import read_state_dict
from pml_ext.search.embedding_set import read_embeddings
from tests.campaign.calls import HangError, is_clear, time_limit, where
from tests.campaign.tally import Tally
from tests.runner.data.published_layouts import picture, records

_LONGEST = 20.0  # seconds

_TEXTS = (b"nan", b"1e999", b"-1", b"9" * 30, b"[[[", b"\xff\xfe", b"'", b": ", b"\n", b"*a")

Kind = tuple[Callable[[Path], Path], Callable[[Path], Any], bool]


def run_files(folder: Path, count: int, *, seed: int, only: str = "") -> Tally:
    """Damage good files of every kind, so many times in all, and read them.

    Args:
        folder: for the files; empty.
        only: kinds whose name holds this.
    """
    tally = Tally()
    warnings.simplefilter("ignore")
    names = [name for name in KINDS if only in name]
    good = {name: KINDS[name][0](_made(folder / str(i))) for i, name in enumerate(names)}
    for number in range(count):
        name = names[number % len(names)]
        read_damaged(name, good[name], seed + number, tally)
    return tally


def read_damaged(name: str, good: Path, seed: int, tally: Tally) -> None:
    """One damaged copy, the same for the same name and seed, beside the good file."""
    draw = Random(f"{name} {seed}")
    whole = good.read_bytes()
    content, how = damaged(draw, whole)
    what = f"{name}, seed {seed}: {how}"
    read, is_checked = KINDS[name][1:]
    try:
        good.write_bytes(content)
        with time_limit(_LONGEST):
            value = read(good)
    except HangError:
        tally.add("hang", what)
    except Exception as error:
        if is_clear(error):
            tally.add(f"clear error: {type(error).__name__}", what)
        else:
            tally.add("foreign traceback", what, where(error))
    else:
        good.write_bytes(whole)
        if is_checked and not _equal(value, read(good)):
            tally.add("wrong value", what, "read, with another content")
        else:
            tally.add("accepted", what)
    finally:
        good.write_bytes(whole)


def damaged(draw: Random, whole: bytes) -> tuple[bytes, str]:
    """A copy with bytes flipped, cut off, put in, doubled or zeroed."""
    content, at = bytearray(whole), draw.randrange(len(whole))
    kind = draw.choice(["flip", "flip", "flips", "cut", "insert", "remove", "double", "zero", "text"])
    length = draw.choice([1, 4, 64, 1024])
    if kind == "flip":
        content[at] ^= 1 << draw.randrange(8)
    elif kind == "flips":
        for _ in range(draw.choice([2, 8, 64])):
            content[draw.randrange(len(content))] = draw.randrange(256)
    elif kind == "cut":
        del content[at:]
    elif kind == "insert":
        content[at:at] = draw.randbytes(length)
    elif kind == "remove":
        del content[at : at + length]
    elif kind == "double":
        content[at:at] = content[at : at + length]
    elif kind == "zero":
        content[at : at + length] = bytes(len(content[at : at + length]))
    else:
        content[at : at + 1] = draw.choice(_TEXTS)
    return bytes(content), f"{kind} at {at}"


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(value, b[key]) for key, value in a.items())
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _written(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


# --- the good files ---


def _encoded(kind: str, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    pixels = np.arange(9 * 7 * 3, dtype=np.uint8).reshape(9, 7, 3)
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def _table(folder: Path) -> Path:
    for name in ("a", "b"):
        (folder / f"{name}.png").write_bytes(picture())
    file = folder / "people.csv"
    file.write_text(
        "path,identity,camera,split\na.png,1,1,train\nb.png,2,1,train\na.png,3,1,query\nb.png,3,2,gallery\n"
    )
    return file


def _records(folder: Path) -> Path:
    records(folder / "train.rec", [picture(10 * i) for i in range(4)], [0.0, 0.0, 1.0, 1.0])
    return folder / "train.rec"


def _weights(folder: Path) -> Path:
    torch.save({"state_dict": {"a.weight": torch.randn(4, 3), "a.bias": torch.arange(4)}}, folder / "weights.pth")
    return folder / "weights.pth"


def _old_weights(folder: Path) -> Path:
    torch.save({"a": torch.randn(4, 3)}, folder / "old.pth", _use_new_zipfile_serialization=False)
    return folder / "old.pth"


def _safetensors(folder: Path) -> Path:
    save_file({"a": torch.randn(4, 3)}, folder / "weights.safetensors")
    return folder / "weights.safetensors"


def _checkpoint(folder: Path) -> Path:
    content = {
        CONFIG: get_cfg().dump(),
        "loops": {"fit_loop": {"epoch_progress": {"current": {"processed": 3}}}},
        "state_dict": {"a": torch.randn(4)},
    }
    torch.save(content, folder / "last.ckpt")
    return folder / "last.ckpt"


_EMBEDDINGS = {"embeddings": torch.randn(6, 3), "ids": torch.arange(6) // 2, "cameras": torch.arange(6) % 2}


def _npz(folder: Path) -> Path:
    np.savez(folder / "e.npz", **{name: value.numpy() for name, value in _EMBEDDINGS.items()})
    return folder / "e.npz"


def _pt(folder: Path) -> Path:
    torch.save(_EMBEDDINGS, folder / "e.pt")
    return folder / "e.pt"


def _embedded_safetensors(folder: Path) -> Path:
    save_file(_EMBEDDINGS, folder / "e.safetensors")
    return folder / "e.safetensors"


def _parquet(folder: Path) -> Path:
    columns = {"embedding": _EMBEDDINGS["embeddings"].tolist(), "ids": list(range(6)), "cameras": [0, 1] * 3}
    pq.write_table(pa.table(columns), folder / "e.parquet")
    return folder / "e.parquet"


def _threshold(folder: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(24, 5, generator=generator), torch.arange(6).repeat(4)
    report = ThresholdReport.from_embeddings(x, labels, far=0.1, splits=2)
    report.save(folder / "threshold.json")
    return folder / "threshold.json"


def _first_image(images: Any) -> Any:
    return len(images), images[0]


_FACES = pickle.dumps(([picture(), picture(50), picture(60), picture(70)], [True, False]))
_IMAGES = (("PNG", "RGB"), ("PNG", "P"), ("JPEG", "RGB"), ("TIFF", "L"), ("WEBP", "RGB"), ("BMP", "RGB"))
_MEDIA = b"a.jpg 1 10\nb.jpg 1 11\nc.jpg 2 12\n"
_YAML = b"MODEL:\n  HEADS: {EMBEDDING_DIM: 64}\nSOLVER:\n  STEPS: [10, 20]\n  BASE_LR: 3e-4\nOUTPUT_DIR: 'x'\n"

KINDS: dict[str, Kind] = {
    "YAML": (_written("config.yml", _YAML), lambda file: load_config(file).dump(), False),
    "table": (_table, lambda file: _first_image(table_set(file, False).train.images), False),
    "records": (_records, lambda file: _first_image(record_set(file, False).images), False),
    "faces": (_written("lfw.bin", _FACES), lambda file: _first_image(read_bin(file, False).images.images), False),
    **{
        f"image: {kind} {mode}": (
            _written("image", _encoded(kind, mode)),
            lambda file: decode_image(file.read_bytes(), file.name, False),
            False,
        )
        for kind, mode in (
            ("PNG", "RGB"),
            ("PNG", "P"),
            ("JPEG", "RGB"),
            ("TIFF", "L"),
            ("WEBP", "RGB"),
            ("BMP", "RGB"),
        )
    },
    "weights": (_weights, read_state_dict, True),
    "weights before torch 1.6": (_old_weights, read_state_dict, False),
    "weights: safetensors": (_safetensors, read_state_dict, False),
    "checkpoint": (_checkpoint, lambda file: check_resumable(get_cfg().SOLVER, file), False),
    "embeddings: npz": (_npz, read_embeddings, False),
    "embeddings: pt": (_pt, read_embeddings, False),
    "embeddings: safetensors": (_embedded_safetensors, read_embeddings, False),
    "embeddings: parquet": (_parquet, read_embeddings, False),
    "threshold": (_threshold, lambda file: json.dumps(ThresholdReport.load(file).cosine), True),
    "list: LFW": (
        _written("pairs.txt", b"2\t1\nAnn\t1\t2\nAnn\t1\tBob\t3\nEve\t1\t2\nAnn\t2\tBob\t1\n"),
        read_lfw_pairs,
        False,
    ),
    "list: template pairs": (_written("pairs.txt", b"1 2 1\n1 3 0\n2 3 0\n"), read_template_pairs, False),
    "list: template media": (
        _written("media.txt", _MEDIA),
        read_template_media,
        False,
    ),
}
"""name -> (a maker of a good file, its reader, whether other content must be noticed)."""
