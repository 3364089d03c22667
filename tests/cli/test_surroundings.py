"""What systems add to folders of images and to galleries changes no result of a command."""

import shutil

import pytest

from pml_ext.cli import main
from pml_ext.deploy.gallery import Gallery
from pml_ext.deploy.readers import read_embeddings
from tests.cli.embedding_files import hits
from tests.surroundings import surround


@pytest.mark.filterwarnings("ignore:.*(nan|OPIS|copies)")
def test_folders_of_images_and_galleries(shop, tmp_path, monkeypatch, capfd):
    folder, gallery = tmp_path / "set", tmp_path / "g"
    paths = []
    for number, image in enumerate(shop.images[::4]):
        path = folder / "ab"[number % 2] / image.name
        path.parent.mkdir(parents=True, exist_ok=True)
        paths.append(str(shutil.copy(image, path).relative_to(tmp_path)))
    gallery.mkdir()
    surround(folder, monkeypatch)
    surround(gallery, monkeypatch)
    (gallery / "locked").rename(tmp_path / "locked")  # a folder of the user
    embed = ["embed", *shop.model, str(folder), "--output", str(gallery), "--label-by-folder"]
    assert main(embed) == 0
    surround(gallery / "parts", monkeypatch)
    assert main(embed) == 0
    assert Gallery.open(gallery).rows == len(paths)
    data = read_embeddings(gallery)
    assert data.paths is not None and sorted(data.paths.tolist()) == sorted(paths)
    capfd.readouterr()
    assert main(["search", str(folder), "--gallery", str(gallery), "-k", "1", "MODEL.DEVICE", "cpu"]) == 0
    assert sorted(path.split()[0] for _, _, path in hits(capfd.readouterr().out)) == sorted(paths)
    assert main(["metrics", str(gallery), "--output", str(tmp_path / "m")]) == 0
    assert main(["threshold", "choose", str(gallery), "--far", "0.5"]) == 0
