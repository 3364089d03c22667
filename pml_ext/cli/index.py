"""`pml-ext index`: the index of a gallery, before the first search needs it."""

from argparse import ArgumentParser, Namespace

from pml_ext.cli.arguments import Command


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("gallery", metavar="GALLERY", help="Gallery of `pml-ext embed`")


def _index(options: Namespace) -> None:
    from pml_ext.search.gallery import Gallery
    from pml_ext.search.index import EXACT_UP_TO, build_index

    gallery = Gallery.open(options.gallery)
    about = f"{gallery.folder}: {gallery.rows:,} rows"
    if gallery.rows <= EXACT_UP_TO:
        print(f"{about}; no index is needed, as a search compares all rows of up to {EXACT_UP_TO:,}")
        return
    record = build_index(gallery)
    found = f"{record.recall:.1%} of the true ten neighbours"
    if record.probes is None:
        print(f"{about}; an index finds only {found}, so searches compare all rows")
    else:
        print(f"{about}; a query visits {record.probes:,} of {record.lists:,} lists, which hold {found}")


INDEX = Command(
    "index",
    "Build the search index of a large gallery; otherwise its first search builds it.",
    _add_arguments,
    _index,
    "pml-ext index gallery",
)
