"""Public names, signatures, options and config keys match the committed list."""

import json
from pathlib import Path

from tests.api_surface import surface

COMMITTED = Path(__file__).with_name("api_surface.json")


def test_the_public_interface_matches_the_committed_list():
    before, now = json.loads(COMMITTED.read_text(encoding="utf-8")), surface()
    changed = [f"gone: {name} {before[name]}" for name in before if name not in now]
    changed += [f"new: {name} {now[name]}" for name in now if name not in before]
    changed += [f"changed: {n} {before[n]} -> {now[n]}" for n in now if n in before and before[n] != now[n]]
    assert not changed, (
        "the public interface has changed; where that is meant, say so in CHANGELOG.md and run "
        "`python -m tests.api_surface > tests/api_surface.json`:\n" + "\n".join(changed)
    )
