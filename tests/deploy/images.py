"""Photographs as files: crops of the two photographs that scikit-learn has."""

from PIL import Image
from sklearn.datasets import load_sample_images


def extract(folder, count):
    """The first crops, of 64 × 64, as JPEG files below the folder: photographs/crops/000.jpg, …"""
    crops = []
    for pixels in load_sample_images().images:
        rows, columns = (range(0, size - 64, 40) for size in pixels.shape[:2])
        crops += [pixels[row : row + 64, column : column + 64] for row in rows for column in columns]
    assert count <= len(crops)
    paths = [folder / "photographs" / "crops" / f"{number:03}.jpg" for number in range(count)]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    spread = [crops[place * len(crops) // count] for place in range(count)]  # from both photographs
    for path, crop in zip(paths, spread, strict=True):
        Image.fromarray(crop).save(path, quality=95)
    return paths
