"""Small copies of published data sets: their exact folders, file names and list formats."""

import io
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

MAGIC = 0xCED7230A


def picture(value: int = 128, kind: str = "JPEG", size: tuple[int, int] = (6, 12)) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.full((size[1], size[0], 3), value, dtype=np.uint8)).save(content, kind)
    return content.getvalue()


def write(folder: Path, *names: str, content: bytes | None = None) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture() if content is None else content)


def market1501(root: Path) -> None:
    folder = root / "Market-1501-v15.09.15"
    train = [f"{pid:04}_c{cam}s1_{10 * pid:06}_0{cam}.jpg" for pid in (2, 7, 10) for cam in (1, 2, 3, 6)]
    write(folder / "bounding_box_train", *train)
    write(folder / "query", "0003_c1s1_000451_00.jpg", "0004_c2s1_000551_00.jpg")
    gallery = ["0003_c1s1_000476_01.jpg", "0003_c4s2_001351_02.jpg", "0004_c5s1_001401_03.jpg"]
    write(folder / "bounding_box_test", *gallery, "0000_c1s1_000151_01.jpg", "-1_c2s1_000401_03.jpg")
    write(folder / "bounding_box_test", "Thumbs.db", content=b"not an image")


def dukemtmc(root: Path) -> None:
    folder = root / "DukeMTMC-reID"
    write(folder / "bounding_box_train", "0001_c2_f0046182.jpg", "0001_c1_f0044158.jpg", "0005_c2_f0051341.jpg")
    write(folder / "query", "0033_c1_f0057706.jpg")
    write(folder / "bounding_box_test", "0033_c2_f0058250.jpg", "7017_c8_f0204278.jpg")


def cuhk03(root: Path) -> None:
    folder = root / "cuhk03-np/labeled"
    write(folder / "bounding_box_train", "0003_c1_21.png", "0003_c2_26.png")
    write(folder / "query", "0001_c1_1.png")
    write(folder / "bounding_box_test", "0001_c2_6.png", "0002_c1_11.png")


def occluded_reid(root: Path) -> None:
    write(root / "Occluded_REID" / "occluded_body_images", "001/001_01.tif", "002/002_01.tif")
    write(root / "Occluded_REID" / "whole_body_images", "001/001_01.tif", "002/002_05.tif")


def veri(root: Path) -> None:
    folder = root / "veri"
    write(folder / "image_train", "0001_c001_00016450_0.jpg", "0003_c020_00016460_1.jpg")
    write(folder / "image_query", "0002_c002_00030600_0.jpg")
    write(folder / "image_test", "0002_c004_00085280_0.jpg")


def msmt17(root: Path, version: int = 1) -> None:
    folder = root / f"MSMT17_V{version}"
    train, test = ("train", "test") if version == 1 else ("mask_train_v2", "mask_test_v2")
    lists = {
        "train": (train, ["0000/0000_000_01_0303morning_0008_0.jpg 0", "0001/0001_002_14_0303noon_0095_1.jpg 1"]),
        "val": (train, ["0000/0000_004_12_0303morning_0020_0.jpg 0"]),
        "query": (test, ["0000/0000_013_14_0302afternoon_1155_1.jpg 0"]),
        "gallery": (test, ["0000/0000_000_05_0302noon_0180_2.jpg 0", "0001/0001_001_01_0302noon_0018_0.jpg 1"]),
    }
    for part, (images, lines) in lists.items():
        write(folder / images, *(line.split()[0] for line in lines))
        (folder / f"list_{part}.txt").write_text("\n".join(lines) + "\n")


def vehicle_id(root: Path) -> None:
    folder = root / "vehicleid"
    train = ["0000001 1", "0000002 1", "0000003 5"]
    test = [f"{100 + i:07} {50 + i // 3}" for i in range(9)]
    write(folder / "image", *(f"{line.split()[0]}.jpg" for line in train + test))
    splits = folder / "train_test_split"
    splits.mkdir(parents=True)
    (splits / "train_list.txt").write_text("\n".join(train))
    for count in (800, 1600, 2400, 13164):
        (splits / f"test_list_{count}.txt").write_text("\n".join(test))


def veri_wild(root: Path) -> None:
    folder = root / "VERI-Wild"
    lists = {"train_list": ["00001/000001.jpg", "00002/000009.jpg"]}
    for count in (3000, 5000, 10000):
        lists |= {
            f"test_{count}_query": ["00003/000011.jpg"],
            f"test_{count}": ["00003/000012.jpg", "00004/000020.jpg"],
        }
    names = sorted({name for lines in lists.values() for name in lines})
    write(folder / "images", *names)
    splits = folder / "train_test_split"
    splits.mkdir(parents=True)
    for name, lines in lists.items():
        (splits / f"{name}.txt").write_text("\n".join(lines))
    heading = "id/image;Camera ID;Time;Model;Type;Color"
    rows = [f"{name.removesuffix('.jpg')};{7 * i + 1};2018-03-10 11:28:18;;;Black" for i, name in enumerate(names)]
    (splits / "vehicle_info.txt").write_text("\n".join([heading, *rows]))


def cub(root: Path) -> None:
    folder = root / "CUB_200_2011"
    rows = [(1, 1, "001.Black_footed_Albatross/a.jpg"), (2, 100, "100.Brown_Pelican/b.jpg")]
    rows += [(6, 9, "009.Brewer_Blackbird/f.jpg"), *((7 + i, 10, f"010.Rusty_Blackbird/{i}.jpg") for i in range(2))]
    rows += [
        (3, 101, "101.White_Pelican/c.jpg"),
        (4, 101, "101.White_Pelican/d.jpg"),
        (5, 200, "200.Yellowthroat/e.jpg"),
    ]
    rows += [(9 + i, 10, f"010.Rusty_Blackbird/{2 + i}.jpg") for i in range(2)]
    rows += [(11 + i, 101, f"101.White_Pelican/{i}.jpg") for i in range(2)]
    write(folder / "images", *(path for _, _, path in rows))
    (folder / "images.txt").write_text("".join(f"{i} {path}\n" for i, _, path in rows))
    (folder / "image_class_labels.txt").write_text("".join(f"{i} {label}\n" for i, label, _ in rows))
    (folder / "train_test_split.txt").write_text("".join(f"{i} {i % 2}\n" for i, _, _ in rows))


def sop(root: Path) -> None:
    folder = root / "Stanford_Online_Products"
    for part, first in (("train", 1), ("test", 11319)):
        paths = [f"bicycle_final/1116960{first}_{i}.JPG" for i in range(3)]
        write(folder, *paths)
        rows = [f"{i + 1} {first + i // 2} 1 {path}" for i, path in enumerate(paths)]
        (folder / f"Ebay_{part}.txt").write_text("\n".join(["image_id class_id super_class_id path", *rows]) + "\n")


def cars196(root: Path) -> None:
    folder = root / "Cars196"
    names = [f"Make {i}" for i in range(1, 197)]
    names[0] = "AM General/Hummer SUV 2000"
    folder.mkdir(parents=True)
    (folder / "names.csv").write_text("\n".join(names))
    for part in ("train", "test"):
        rows = [(f"{i:05}.jpg", label) for i, label in enumerate((1, 98, 99, 196, 1, 98, 99), start=1)]
        (folder / f"anno_{part}.csv").write_text("".join(f"{name},0,0,9,9,{label}\n" for name, label in rows))
        images = folder / "car_data" / "car_data" / part
        write(images, *(f"{names[label - 1].replace('/', '-')}/{name}" for name, label in rows))


def in_shop(root: Path) -> None:
    folder = root / "InShop"
    rows = [
        ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "train"),
        ("img/WOMEN/Dresses/id_00000001/02_1_front.jpg", "id_00000001", "query"),
        ("img/WOMEN/Dresses/id_00000001/02_2_side.jpg", "id_00000001", "gallery"),
        ("img/MEN/Denim/id_00000004/01_1_front.jpg", "id_00000004", "gallery"),
    ]
    write(folder, *(row[0] for row in rows))
    lines = [str(len(rows)), "image_name item_id evaluation_status", *("      ".join(row) for row in rows)]
    (folder / "list_eval_partition.txt").write_text("\n".join(lines))


def face_folders(root: Path, name: str = "CASIA-WebFace") -> None:
    write(root / name, "0000045/001.jpg", "0000045/002.jpg", "0000099/001.jpg")


def records(path: Path, contents: list[bytes], labels: list[float], *, identities: int = 2) -> None:
    """insightface's layout: record 0 says where images end; then the images; then a record for each identity."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = len(contents)
    bodies = [struct.pack("<IfQQ", 2, 0.0, 0, 0) + struct.pack("<2f", count + 1, count + 1 + identities)]
    bodies += [
        struct.pack("<IfQQ", 0, label, i, 0) + content
        for i, (content, label) in enumerate(zip(contents, labels, strict=True), start=1)
    ]
    bodies += [struct.pack("<IfQQ", 2, 0.0, 0, 0) + struct.pack("<2f", 1, 2) for _ in range(identities)]
    index, written = [], bytearray()
    for key, body in enumerate(bodies):
        index.append(f"{key}\t{len(written)}\n")
        parts = body.split(struct.pack("<I", MAGIC))
        for i, part in enumerate(parts):
            kind = 0 if len(parts) == 1 else 1 if i == 0 else 3 if i == len(parts) - 1 else 2
            written += struct.pack("<II", MAGIC, kind << 29 | len(part)) + part + b"\0" * (-len(part) % 4)
    path.write_bytes(bytes(written))
    path.with_suffix(".idx").write_text("".join(index))


def face_bin(path: Path, same: list[bool], *, as_arrays: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    images: list = [picture(10 * i, size=(8, 8)) for i in range(2 * len(same))]
    if as_arrays:
        images = [np.frombuffer(image, dtype=np.uint8) for image in images]
    path.write_bytes(pickle.dumps((images, same), protocol=2))


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "Market1501": market1501,
    "DukeMTMC": dukemtmc,
    "MSMT17": msmt17,
    "CUHK03": cuhk03,
    "VeRi": veri,
    **{f"{size}VehicleID": vehicle_id for size in ("", "Small", "Medium", "Large")},
    **{f"{size}VeRiWild": veri_wild for size in ("", "Small", "Medium", "Large")},
    **{f"CUB{kind}": cub for kind in ("", "SharedClasses", "Validation")},
    "SOP": sop,
    **{f"Cars196{kind}": cars196 for kind in ("", "SharedClasses")},
    "InShop": in_shop,
}


def ijb(root: Path, name: str = "IJBC") -> None:
    """Two templates of each of two people, enrolled and a probe; template 1 has a video of two frames."""
    folder, lower = root / name, name.lower()
    rows = [("1.jpg", 1, 10), ("2.jpg", 1, 11), ("3.jpg", 1, 11), ("4.jpg", 2, 12), ("5.jpg", 3, 13), ("6.jpg", 4, 14)]
    write(folder / "loose_crop", *(row[0] for row in rows), content=picture(size=(120, 130)))
    meta = folder / "meta"
    meta.mkdir(parents=True)
    (meta / f"{lower}_face_tid_mid.txt").write_text("".join(f"{a} {b} {c}\n" for a, b, c in rows))
    (meta / f"{lower}_template_pair_label.txt").write_text("1 2 1\n1 3 0\n2 3 0\n")
    points = "38.3 51.7 73.5 51.5 56.0 71.7 41.5 92.4 70.7 92.2"
    (meta / f"{lower}_name_5pts_score.txt").write_text("".join(f"{row[0]} {points} 0.99\n" for row in rows))
    letter = "S" if name == "IJBB" else "G"
    lists = {"probe_mixed": ((2, 7), (4, 8)), f"gallery_{letter}1": ((1, 7),), f"gallery_{letter}2": ((3, 8),)}
    for part, templates in lists.items():
        lines = "".join(f"{template},{subject},img/{template}.png,1,1\n" for template, subject in templates)
        (meta / f"{lower}_1N_{part}.csv").write_text(f"TEMPLATE_ID,SUBJECT_ID,FILENAME,FACE_X,FACE_Y\n{lines}")


def lfw(root: Path) -> None:
    """pairs.txt of two folds with one pair of each kind."""
    names = ["Aaron_Eckhart", "Abel_Pacheco", "Akbar_Al_Baker"]
    write(root / "lfw", *(f"{name}/{name}_{i:04}.jpg" for name in names for i in (1, 2)))
    lines = ["2\t1", "Aaron_Eckhart\t1\t2", "Abel_Pacheco\t1\tAkbar_Al_Baker\t2"]
    lines += ["Abel_Pacheco\t1\t2", "Aaron_Eckhart\t2\tAkbar_Al_Baker\t1"]
    (root / "lfw" / "pairs.txt").write_text("\n".join(lines) + "\n")
