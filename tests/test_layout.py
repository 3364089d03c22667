"""Imports run down, without circles, and the core knows nothing of the trainer."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.glob("pml_ext/**/*.py")
}
# From the bottom up. Modules that no floor names, such as pml_ext._shared.files, are for all.
FLOORS = ["functional", "metrics", "reports", "losses", "miners", "thresholds", "runner", "deploy", "cli"]
FLOOR = {room: floor for floor, room in enumerate(FLOORS)}
CORE = ("functional", "losses", "miners", "metrics", "thresholds")


def room_of(module):
    return module.split(".")[1] if "." in module else ""


def imports_of(module):
    """The modules that a module imports, inside functions too; not those for type checkers only."""
    found = set()
    nodes = [ast.parse(MODULES[module].read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys() or {node.module}
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            nodes += ast.iter_child_nodes(node)
    return (found & MODULES.keys()) - {module}


def test_imports_run_down_without_circles():
    arrows = {module: imports_of(module) for module in MODULES}
    tuple(TopologicalSorter(arrows).static_order())  # a CycleError names the circle
    floors = {module: FLOOR.get(room_of(module), -1) for module in MODULES}
    up = [(module, found) for module in MODULES for found in arrows[module] if floors[found] > floors[module] >= 0]
    assert not up, "imports from a room above"


def folders_where_they_part(module, other):
    """Where the folders of two modules differ first, such as runner/data and runner/engine; None below one folder."""
    parts = zip(MODULES[module].relative_to(ROOT).parts[:-1], MODULES[other].relative_to(ROOT).parts[:-1], strict=False)
    common = []
    for one, two in parts:
        if one != two:
            return (*common, one), (*common, two)
        common.append(one)
    return None


def test_folders_import_each_other_in_one_direction_only():
    arrows = {folders_where_they_part(module, other) for module in MODULES for other in imports_of(module)} - {None}
    assert not {(one, other) for one, other in arrows if (other, one) in arrows}


def test_the_core_never_imports_the_trainer():
    core = [module for module in MODULES if room_of(module) in CORE]
    imported = {found for module in core for found in imports_of(module)}
    assert not {found for found in imported if room_of(found) in ("runner", "deploy", "cli")}


def test_import_pml_ext_is_light():
    code = "import sys, pml_ext; sys.exit(bool({'torch', 'numpy', 'pytorch_metric_learning'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
