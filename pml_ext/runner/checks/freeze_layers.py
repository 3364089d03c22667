"""Whether MODEL.FREEZE_LAYERS name anything."""

import re
from collections.abc import Collection, Iterable


def patterns_without_parameters(patterns: Iterable[str], names: Collection[str]) -> list[str]:
    """A line for each pattern that no parameter's name begins with.

    Args:
        patterns: regular expressions; an empty one, FastReID's old "nothing", is passed over.
        names: of a model's parameters.
    """
    return [
        f"MODEL.FREEZE_LAYERS: {pattern!r} matches no parameter; names begin with "
        f"{', '.join(sorted({name.split('.')[0] for name in names}))}"
        for pattern in patterns
        if pattern and not any(re.match(pattern, name) for name in names)
    ]
