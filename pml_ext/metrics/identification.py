"""Metrics of IJB's 1:N identification protocol."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pml_ext._ops.numerics import unit_rows
from pml_ext._shared.checks import check_finite_embeddings, check_fraction, check_items, check_labels, check_whole
from pml_ext._shared.settings import CheckedSettings
from pml_ext.functional.open_set.gallery_blocks import GalleryScores, scores_in_blocks, tpir_at_fpir
from pml_ext.functional.verification.templates import template_embeddings
from pml_ext.metrics import keys
from pml_ext.metrics.protocol_files import SearchProtocol
from pml_ext.metrics.verification import StreamingVerification

FPIRS = (1e-1, 1e-2, 1e-3)


class IdentificationEvaluator(CheckedSettings):
    """Computes TPIR at FPIR and rank-k rates of 1:N searches, as in IJB-B and IJB-C.

    Every probe searches every gallery. A probe is mated if the gallery contains its subject, else non-mated.
    The rates are means over the galleries, as fractions:

    - tpir_at_fpir_1e-2 (one per rate): share of mated probes whose subject ranks first with a score at or above the
      lowest threshold at which at most 1 % of the non-mated probes have a match. nan if there are too few of these.
    - rank_5 (one per rank): share of mated probes whose subject is among the first 5.
    - mated, non_mated: numbers of searches, summed over the galleries.

    Ties count against a probe.

    Args:
        fpirs: false positive identification rates, in (0, 1).
        ranks: integers from 1.
    Raises:
        ValueError: rates or ranks out of range.
    Source: Maze et al., IARPA Janus Benchmark-C, ICB 2018; ISO/IEC 19795-1.

    >>> from pml_ext.metrics import SearchProtocol, TemplateSubjects
    >>> ids = torch.arange(4)
    >>> one, other = (TemplateSubjects(ids[row : row + 1], ids[row : row + 1]) for row in (0, 1))
    >>> protocol = SearchProtocol(TemplateSubjects(ids[2:], torch.tensor([0, 1])), (one, other))
    >>> faces = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8]])
    >>> IdentificationEvaluator(fpirs=(), ranks=(1,)).of_templates(faces, ids, ids, protocol)
    {'rank_1': 1.0, 'mated': 2.0, 'non_mated': 2.0}
    """

    def __init__(self, fpirs: Sequence[float] = FPIRS, ranks: Sequence[int] = (1, 5, 10)) -> None:
        check_items(fpirs, "fpirs", "false positive identification rates")
        check_items(ranks, "ranks", "ranks")
        for fpir in fpirs:
            check_fraction(fpir, "fpirs")
        for rank in ranks:
            check_whole(rank, "ranks", 1)
        self.fpirs, self.ranks = tuple(fpirs), tuple(ranks)

    def of_templates(
        self, embeddings: Tensor, template_ids: Tensor, media_ids: Tensor, protocol: SearchProtocol
    ) -> dict[str, float]:
        """Computes the rates of templates, which are averaged over each medium, then over the template.

        Args:
            embeddings, template_ids, media_ids: (N, D), (N,), (N,): see `functional.template_embeddings`.
            protocol: lists from `read_template_subjects`, or tensors.
        Raises:
            ValueError: see `functional.template_embeddings`; a list with a different number of subjects; a listed
                template without an image; a gallery with no probe's subject, or with every probe's subject.
        """
        if not protocol.galleries:
            raise ValueError("protocol must have at least one gallery; got none")
        check_labels(protocol.probes.subjects, len(protocol.probes.template_ids), "the subjects of the probes")
        templates = template_embeddings(embeddings, template_ids, media_ids)
        probes = templates.embeddings[templates.rows(protocol.probes.template_ids)]
        rates, counts = [], torch.zeros(2, dtype=torch.int64, device="cpu")
        for number, gallery in enumerate(protocol.galleries, 1):
            if not len(gallery.template_ids):
                raise ValueError(f"gallery {number} must list at least one template; got none")
            check_labels(gallery.subjects, len(gallery.template_ids), f"the subjects of gallery {number}")
            enrolled = templates.embeddings[templates.rows(gallery.template_ids)]
            scores = scores_in_blocks(
                probes, protocol.probes.subjects, [(enrolled, gallery.subjects)], most_before=max(self.ranks, default=1)
            )
            mated = int(scores.mated.sum())
            if not 0 < mated < len(probes):
                raise ValueError(
                    f"gallery {number} must have the subjects of some but not all probes; got those of {mated} "
                    f"of {len(probes)}"
                )
            counts += torch.tensor([mated, len(probes) - mated], device="cpu")
            rates.append(self._rates(scores))
        means = torch.tensor(rates, dtype=torch.float64, device="cpu").mean(dim=0).tolist()
        return self._named(means, *counts.tolist())

    def of_blocks(
        self,
        probes: Tensor,
        subjects: Tensor,
        gallery: Iterable[tuple[Tensor, ...]],
        *,
        cameras: Tensor | None = None,
        verification: StreamingVerification | None = None,
    ) -> dict[str, float]:
        """Computes the rates of one gallery, which may exceed memory (e.g. MegaFace's million distractors).

        Ranks count subjects; a subject's score is the best score of its rows. TPIR is nan if every probe is mated.

        Args:
            probes, subjects: (P, D) finite embeddings, normalised here, and (P,) integers.
            gallery: blocks of (n, D) embeddings, normalised here, and (n,) subjects; distractors have other
                subjects than the probes. With cameras, also (n,) cameras, which blocks of distractors may omit.
            cameras: (P,) integers. Rows of the probe's subject and camera are left out; a probe whose subject has no
                other row is non-mated. None: cameras are ignored.
            verification: also counts every pair of a probe and a gallery row; its `compute` returns TAR at FAR.
        Raises:
            ValueError: mismatched shapes, values that are not finite, a gallery without any probe's subject.
        Source: Kemelmacher-Shlizerman et al., The MegaFace Benchmark, CVPR 2016.

        >>> faces = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8]])
        >>> blocks = [(faces[:1], torch.tensor([0])), (faces[1:2], torch.tensor([7]))]
        >>> evaluator = IdentificationEvaluator(fpirs=(), ranks=(1,))
        >>> pairs = StreamingVerification(fars=(0.5,))
        >>> evaluator.of_blocks(faces[2:], torch.tensor([0, 1]), blocks, verification=pairs)
        {'rank_1': 1.0, 'mated': 1.0, 'non_mated': 1.0}
        >>> pairs.compute()["impostors"]
        3.0
        """
        check_finite_embeddings(probes, "probes")
        subjects = check_labels(subjects, len(probes), "subjects")
        cameras = None if cameras is None else check_labels(cameras, len(probes), "cameras")
        scores = scores_in_blocks(
            unit_rows(probes),
            subjects,
            gallery,
            most_before=max(self.ranks, default=1),
            cameras=cameras,
            count=None if verification is None else verification.update,
        )
        mated = int(scores.mated.sum())
        if not mated:
            raise ValueError(f"gallery must have the subject of at least one of the {len(probes)} probes; got none")
        return self._named(self._rates(scores), mated, len(probes) - mated)

    def _rates(self, scores: GalleryScores) -> list[float]:
        tpirs = [float(tpir_at_fpir(scores, fpir)) for fpir in self.fpirs]
        before = scores.before[scores.mated]
        return tpirs + [float((before < rank).double().mean()) for rank in self.ranks]

    def _named(self, rates: Sequence[float], mated: int, non_mated: int) -> dict[str, float]:
        names = [*map(keys.tpir_at_fpir, self.fpirs), *map(keys.rank, self.ranks)]
        return dict(zip(names, rates, strict=True)) | {keys.MATED: float(mated), keys.NON_MATED: float(non_mated)}
