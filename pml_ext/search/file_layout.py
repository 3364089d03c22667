"""What a file of embeddings holds, in words for `pml-ext threshold --help`."""

LAYOUT = """Embeddings, labels, cameras and pictures from a file that any program can write; untrusted files stay data.

A file holds one set of N samples:

- `.npz`: arrays `embeddings` (N, D), `labels` (N,) and, optionally, `cameras` (N,) and `paths` (N,) of pictures. No
  pickled objects.
- `.pt`, `.pth`: a dict of tensors with these names; labels, cameras and paths may be lists of strings.
- `.safetensors`: tensors with these names.
- `.parquet`: a row a sample; columns `label`, `camera` and `path` (both optional), and either `embedding` (a list of
  numbers) or one numeric column a dimension: `e0`, `e1`, … Needs pyarrow.

Other names are ignored, but for misspelt cameras. Embeddings are floating and finite, no row is zero. Labels and
cameras are integers or strings.
With cameras, the label −1 is junk and left out. Paths are relative to the file's folder, and no picture outside of it
is opened.
"""
