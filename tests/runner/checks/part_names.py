"""Write the lists of `pml-ext list` that need no import of the parts.

python -m tests.runner.checks.part_names > pml_ext/runner/checks/names.json
"""

import json

from pml_ext.runner.checks.listing import FASTREID_NAMES, KINDS, LIBRARIES, public_version, registered_names


def part_names() -> dict[str, dict[str, str]]:
    """The versions of the libraries, and kind -> list."""
    kinds = [kind for kind in KINDS if kind not in (FASTREID_NAMES, "datasets", "evaluators", "callbacks")]
    versions = {library: public_version(library) for library in sorted(set(LIBRARIES.values()))}
    return {"versions": versions, "names": {kind: registered_names(kind) for kind in kinds}}


if __name__ == "__main__":
    print(json.dumps(part_names(), indent=1, ensure_ascii=False))
