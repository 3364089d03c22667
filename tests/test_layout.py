"""The rules of the source tree: imports run down, names are unique, one module imports PML."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pml_ext"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}

# From the bottom up: a folder imports from itself and from those before it. The longest matching name counts.
FLOORS = [
    tuple(
        f"pml_ext._{module}"
        for module in ["version", "errors", "checks", "pml", "files", "identities", "names", "progress", "text"]
    ),
    ("pml_ext._ops",),
    ("pml_ext.functional",),
    ("pml_ext.distances",),
    ("pml_ext.losses",),
    ("pml_ext.miners",),
    ("pml_ext.registration", "pml_ext.inspection", "pml_ext.large_batch", "pml_ext.distributed"),
    ("pml_ext.metrics",),
    ("pml_ext.runner.config", "pml_ext.runner.rank_store"),
    ("pml_ext.runner.data",),
    ("pml_ext.runner.launch", "pml_ext.runner.address", "pml_ext.runner.failures"),
    ("pml_ext.runner.modeling",),
    ("pml_ext.runner.solver",),
    ("pml_ext.runner.evaluation",),
    ("pml_ext.reports",),
    ("pml_ext.runner.checks",),
    ("pml_ext.search",),
    ("pml_ext.runner.engine",),
    (
        "pml_ext",
        "pml_ext.runner",
        "pml_ext.cli",
        "pml_ext.commands",
        "pml_ext.integrations",
        "pml_ext.__main__",
    ),
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


# Modules that share a name: a formula and its wrapper, or the same part of several folders.
SAME_PART = {
    "_base": "what the classes of a room share",
    "load": "reads what a file has into what is there: a config, a network",
    "loop": "LoOp for losses, for miners, as a distance",
    "names": "the names that a room knows",
    "rules": "what the config values of a room must be",
}
# Rooms whose functions build from their own part of the config. What reads the whole of it: the config itself, checks
# across its parts, the engine that hands them out, and the record of a model.
OF_THEIR_PART = tuple(f"pml_ext.runner.{room}." for room in ("data", "modeling", "solver", "evaluation"))
# What may be imported inside a function: another library, where it is optional or takes seconds to load. Of this
# package only what loads such a library; by these modules.
LATE = {
    "pml_ext.commands",
    "pml_ext.metrics.threshold.report",
    "pml_ext.runner.checks.listing",
    "pml_ext.runner.data.datasets.face_pairs",
    "pml_ext.runner.data.datasets.ijb",
    "pml_ext.runner.data.datasets.retrieval",
    "pml_ext.search.evaluate_command",
}


def floor_of(module: str) -> int:
    parts = module.split(".")
    return next(FLOOR[room] for n in range(len(parts), 0, -1) if (room := ".".join(parts[:n])) in FLOOR)


def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imports_of(module: str) -> Iterator[tuple[str, int]]:
    """Modules of this package that a module imports, with the line; inside functions too, unless it is in LATE."""
    tree = tree_of(module)
    for node in tree.body if module in LATE else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{MODULES[module]}:{node.lineno}: write the whole path of an import"
            for alias in node.names:
                for found in (f"{node.module}.{alias.name}", node.module):
                    if found in MODULES:
                        yield found, node.lineno
                        break
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name in MODULES)


def exported_by(module: str) -> set[str]:
    """Functions and classes that a module defines and others may use."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in tree_of(module).body if isinstance(node, kinds) and not node.name.startswith("_")}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_run_down(module: str) -> None:
    up = [f"line {line}: {found}" for found, line in imports_of(module) if floor_of(found) > floor_of(module)]
    assert not up, f"{module} imports from a room above its own"


def test_no_import_cycles() -> None:
    arrows = {module: {found for found, _ in imports_of(module)} - {module} for module in MODULES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, "a circle of imports: " + " → ".join([*path[path.index(module) :], module])
        if module not in done:
            for found in sorted(arrows[module]):
                visit(found, (*path, module))
            done.add(module)

    for module in sorted(MODULES):
        visit(module, ())


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_module_is_named_like_its_exports(module: str) -> None:
    # Otherwise the order of imports decides which of the two a name refers to.
    assert module.rsplit(".", 1)[-1] not in exported_by(module)


def test_shared_module_names_mean_one_thing() -> None:
    found: dict[str, list[str]] = {}
    for module in MODULES:
        room, _, name = module.rpartition(".")
        if not MODULES[module].name.startswith("__"):
            found.setdefault(name, []).append(room.removeprefix("pml_ext."))
    shared = {name for name, rooms in found.items() if len(rooms) > 1}
    formulas = {name for name in shared if sorted(found[name]) == ["functional.losses", "losses"]}
    assert sorted(shared - formulas) == sorted(SAME_PART)


@pytest.mark.parametrize("module", sorted(m for m in MODULES if m.startswith(OF_THEIR_PART)))
def test_builders_take_their_own_config_node(module: str) -> None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    whole = [
        f"line {node.lineno}: {node.name}({argument.arg})"
        for node in ast.walk(tree_of(module))
        if isinstance(node, kinds)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if argument.arg in ("cfg", "config") and argument.annotation and ast.unparse(argument.annotation) == "CN"
    ]
    assert not whole, f"{module} takes the whole config where its own node would do"


def test_late_imports_are_listed() -> None:
    inside = {
        module
        for module in MODULES
        for function in ast.walk(tree_of(module))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pml_ext")
    }
    assert inside == LATE


def test_public_names_do_not_hide_modules() -> None:
    """`from pml_ext.functional import x` does not depend on earlier imports."""
    import pml_ext.functional
    import pml_ext.losses
    import pml_ext.metrics
    import pml_ext.miners

    for package in (pml_ext.functional, pml_ext.losses, pml_ext.metrics, pml_ext.miners):
        rooms = {m.rsplit(".", 1)[-1] for m in MODULES if m.rpartition(".")[0] == package.__name__}
        assert not rooms & set(package.__all__)


def test_only_one_module_imports_pytorch_metric_learning() -> None:
    assert [m for m in sorted(MODULES) if "pytorch_metric_learning" in imported_libraries(m)] == ["pml_ext._pml"]


def test_rows_are_normalised_by_one_module() -> None:
    for module in MODULES:
        # Networks use torch's layers like the projects whose weights they load, and exporters support them.
        if module.startswith("pml_ext.runner.modeling."):
            continue
        for node in ast.walk(tree_of(module)):
            imported = isinstance(node, ast.ImportFrom) and node.module == "torch.nn.functional"
            names = {alias.name for alias in node.names} if imported else set()
            called = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            wrong = "normalize" in names or called.endswith(("functional.normalize", "F.normalize"))
            assert not wrong, f"{module} line {node.lineno}: rows are normalised by pml_ext._ops.normalize"


def test_block_sizes_are_arguments_not_patches() -> None:
    constants = {
        target.id
        for module in MODULES
        if not module.startswith(("pml_ext.runner", "pml_ext.search", "pml_ext.reports"))
        for node in tree_of(module).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.isupper()
    } - {"_WORTH_LOADING"}  # which decides whether a library is loaded
    for test in (ROOT / "tests").rglob("test_*.py"):
        patched = re.findall(r"""setattr\([^"']*["'](?:[\w.]*\.)?(\w+)["']""", test.read_text(encoding="utf-8"))
        assert not constants & set(patched), f"{test}: give the kernel another size as an argument"


def test_no_meaningless_module_names() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}
    assert [m for m in sorted(MODULES) if m.rsplit(".", 1)[-1] in empty] == []


def test_test_folders_match_the_package() -> None:
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        room = ".".join(("pml_ext", *test.relative_to(ROOT / "tests").parts[:-1]))
        of_everything = room in ("pml_ext.properties", "pml_ext.campaign")
        assert room in MODULES or of_everything, f"{test} is in a folder that the package does not have"


def imported_libraries(module: str) -> set[str]:
    """The top-level packages that a module imports."""
    found = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found
