"""Templates, which combine several images of one subject into one embedding, and cosines of listed pairs."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._ops.numerics import unit_rows
from pml_ext._shared.checks import (
    check_embeddings,
    check_finite,
    check_finite_embeddings,
    check_labels,
    check_positions,
    check_tensor,
)
from pml_ext.functional.pairwise.pair_blocks import listed_cosines


class Templates(NamedTuple):
    """Template embeddings by id.

    Attributes:
        ids: (T,) int64 template ids, ascending.
        embeddings: (T, D) of length 1, float32 (float64 for float64).

    >>> templates = Templates(torch.tensor([3, 7]), torch.eye(2))
    >>> templates.rows(torch.tensor([7, 3, 7])).tolist()
    [1, 0, 1]
    """

    ids: Tensor
    embeddings: Tensor

    def rows(self, ids: Tensor) -> Tensor:
        """Returns the rows of template ids, of any shape.

        Raises:
            ValueError: an id without a template.
        """
        if not len(self.ids):
            raise ValueError("there are no templates: there is no image")
        check_tensor(ids, "ids", "(...)")
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise ValueError(f"ids must be integers; got {ids.dtype}")
        place = torch.searchsorted(self.ids, ids.to(self.ids)).clamp_max(len(self.ids) - 1)
        if bool((unknown := self.ids[place] != ids.to(self.ids)).any()):
            raise ValueError(f"template {int(ids[unknown.to(ids.device)][0])} is listed but has no image")
        return place


def template_embeddings(embeddings: Tensor, template_ids: Tensor, media_ids: Tensor) -> Templates:
    """Returns the normalised mean of each template's media; a medium is the mean of its images (or video frames).

    Args:
        embeddings: (N, D), finite, one per image, not normalised here: normalise them first to give all images the
            same weight.
        template_ids: (N,) integers.
        media_ids: (N,) integers, unique inside a template.
    Returns:
        Templates. A template whose mean is 0 stays 0, with cosine 0 to everything.
    Raises:
        ValueError: embeddings are not (N, D), floating and finite; ids of another length or not integer.
    Source: the IJB-A, IJB-B and IJB-C protocols' media pooling (Crosswhite et al. 2017).

    >>> # A photograph, and two frames of one video
    >>> images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> templates = template_embeddings(images, torch.tensor([3, 3, 3]), torch.tensor([0, 1, 1]))
    >>> [round(value, 3) for value in templates.embeddings[0].tolist()]
    [0.707, 0.707]
    """
    check_embeddings(embeddings)
    template_ids = check_labels(template_ids, len(embeddings), "template_ids")
    media_ids = check_labels(media_ids, len(embeddings), "media_ids")
    check_finite(embeddings)
    x = embeddings.detach()
    x = x if x.dtype == torch.float64 else x.float()
    both = torch.stack([template_ids, media_ids], dim=1).to(x.device)
    media, medium_of = torch.unique(both, dim=0, return_inverse=True)
    ids, template_of = torch.unique(media[:, 0], return_inverse=True)
    media_means = _means(x, medium_of, len(media))
    return Templates(ids, unit_rows(_means(media_means, template_of, len(ids))))


def _means(rows: Tensor, group: Tensor, groups: int) -> Tensor:
    sums = rows.new_zeros(groups, rows.shape[1]).index_add_(0, group, rows)
    return sums / torch.bincount(group, minlength=groups)[:, None]


def pair_cosines(embeddings: Tensor, ref_emb: Tensor, rows: Tensor, ref_rows: Tensor) -> Tensor:
    """Returns the cosines of the listed pairs (embeddings[rows[p]], ref_emb[ref_rows[p]]), in blocks of pairs.

    Args:
        embeddings, ref_emb: (N, D) and (R, D), finite; normalised here.
        rows, ref_rows: (P,) integer indices.
    Returns:
        (P,) cosines, float32 (float64 for float64 input).
    Raises:
        ValueError: embeddings are not (N, D), floating and finite, or differ in width; rows out of range or of
            different lengths.

    >>> x = torch.tensor([[2.0, 0.0], [3.0, 4.0]])
    >>> cosines = pair_cosines(x, x, torch.tensor([0, 1]), torch.tensor([1, 1]))
    >>> [round(cosine, 3) for cosine in cosines.tolist()]
    [0.6, 1.0]
    """
    for name, x in (("embeddings", embeddings), ("ref_emb", ref_emb)):
        check_finite_embeddings(x, name)
    if embeddings.shape[1] != ref_emb.shape[1]:
        raise ValueError(f"ref_emb must have the {embeddings.shape[1]} columns of embeddings; got {ref_emb.shape[1]}")
    check_positions(rows, len(embeddings), "rows")
    check_positions(ref_rows, len(ref_emb), "ref_rows", like=rows)
    unit, ref_unit = unit_rows(embeddings), unit_rows(ref_emb)
    return listed_cosines(unit, ref_unit, rows.to(unit.device).long(), ref_rows.to(unit.device).long())
