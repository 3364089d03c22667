"""Small copies of published data sets: their exact folders, file names and list formats."""

import io
import pickle
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from PIL import Image

MAGIC = 0xCED7230A


def encoded_image(value=128, kind="JPEG", size=(6, 12)):
    content = io.BytesIO()
    Image.fromarray(np.full((size[1], size[0], 3), value, dtype=np.uint8)).save(content, kind)
    return content.getvalue()


def write(folder, *names, content=None):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded_image() if content is None else content)


class Row(NamedTuple):
    """An image of a set: its path in the layout's folder, its identity and its camera, or - for one of its own."""

    path: str
    identity: str
    camera: str


class Layout:
    """An entry of published_layouts.yml."""

    def __init__(self, entry):
        self.folder, self.lists = entry["folder"], entry.get("lists", {})
        self.others = entry.get("others", "").splitlines()
        self.sets: dict[str, list[list[Row]]] = {}
        for names, parts in entry["sets"].items():
            rows = []
            for part in parts.values():
                rows.append([Row(*line.rsplit(maxsplit=2)) for line in part.splitlines()])
            self.sets |= dict.fromkeys(names.split(), rows)

    def __call__(self, root):
        folder, parts = root / self.folder, [part for parts in self.sets.values() for part in parts]
        write(folder, "readme.txt", *self.others, *(row.path for part in parts for row in part))
        for name, text in self.lists.items():
            write(folder, name, content=text.encode())
        if self.folder == "Cars196":
            makes = ["AM General/Hummer SUV 2000", *(f"Make {i}" for i in range(2, 197))]
            write(folder, "names.csv", content="\n".join(makes).encode())


ALL_LAYOUTS = [Layout(entry) for entry in yaml.safe_load(Path(__file__).with_suffix(".yml").read_text("utf-8"))]
LAYOUTS = {name: layout for layout in reversed(ALL_LAYOUTS) for name in layout.sets}
"""Name of a set -> the first of its layouts."""


def records(path, contents, labels, *, identities=2):
    """insightface's layout: record 0 says where images end; then the images; then a record for each identity."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = len(contents)
    bodies = [([count + 1, count + 1 + identities], b"")]
    bodies += [([label], content) for content, label in zip(contents, labels, strict=True)]
    offsets = write_records(path, [*bodies, *[([1.0, 2.0], b"")] * identities])
    path.with_suffix(".idx").write_text("".join(f"{key}\t{offset}\n" for key, offset in enumerate(offsets)))


def write_records(path, bodies):
    """Writes records of (labels, image) and returns their offsets."""
    content, offsets = bytearray(), []
    for labels, image in bodies:
        offsets.append(len(content))
        further = labels if len(labels) > 1 else []
        body = struct.pack("<IfQQ", len(further), labels[0] if not further else 9.0, 0, 0)
        body += struct.pack(f"<{len(further)}f", *further) + image
        parts = body.split(struct.pack("<I", MAGIC))
        kinds = [1, *[2] * (len(parts) - 2), 3] if len(parts) > 1 else [0]
        for kind, part in zip(kinds, parts, strict=True):
            content += struct.pack("<II", MAGIC, kind << 29 | len(part)) + part + b"\0" * (-len(part) % 4)
    path.write_bytes(content)
    return offsets


def face_bin(path, same):
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [encoded_image(10 * i, size=(8, 8)) for i in range(2 * len(same))]
    path.write_bytes(pickle.dumps((images, same), protocol=2))


def ijb(root, name="IJBC"):
    """Two templates of each of two people, enrolled and a probe; template 1 has a video of two frames."""
    folder, lower = root / name, name.lower()
    rows = [("1.jpg", 1, 10), ("2.jpg", 1, 11), ("3.jpg", 1, 11), ("4.jpg", 2, 12), ("5.jpg", 3, 13), ("6.jpg", 4, 14)]
    write(folder / "loose_crop", *(row[0] for row in rows), content=encoded_image(size=(120, 130)))
    meta = folder / "meta"
    meta.mkdir(parents=True)
    (meta / f"{lower}_face_tid_mid.txt").write_text("".join(f"{a} {b} {c}\n" for a, b, c in rows))
    (meta / f"{lower}_template_pair_label.txt").write_text("1 2 1\n1 3 0\n2 3 0\n")
    points = "38.3 51.7 73.5 51.5 56.0 71.7 41.5 92.4 70.7 92.2"
    (meta / f"{lower}_name_5pts_score.txt").write_text("".join(f"{row[0]} {points} 0.99\n" for row in rows))
