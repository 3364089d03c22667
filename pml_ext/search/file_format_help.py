"""The formats of files of embeddings, in words for `pml-ext threshold --help`."""

LAYOUT = """Embeddings, labels, cameras and paths of pictures from a file that any program can write.

A file holds one set of N samples:

- `.npz`: arrays `embeddings` (N, D), `labels` (N,) and, optionally, `cameras` (N,) and `paths` (N,) of pictures. No
  pickled objects.
- `.pt`, `.pth`: a dict of tensors with these names; labels, cameras and paths may be lists of strings.
- `.safetensors`: tensors with these names.
- `.parquet`: one row per sample; columns `label`, `camera` and `path` (both optional), and either `embedding` (a list
  of numbers) or one numeric column per dimension: `e0`, `e1`, … Needs pyarrow.

Other names are ignored, except misspelt cameras, which are an error. Embeddings are finite floating-point numbers, and
no row is zero. Labels and cameras are integers or strings. With cameras, samples of label −1 are junk and ignored.
Paths are relative to the file's folder, and no picture outside it is opened.
"""
