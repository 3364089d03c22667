"""How many configs run and how many are refused, into examples/FASTREID_CONFIGS.md.

python -m tests.runner.checks.config_table [FOLDER]

counts the configs that the tests vary, and those of FastReID where FOLDER is a checkout of it.
"""

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from pml_ext.runner.checks.check import problems
from pml_ext.runner.config.load import read_config
from tests.runner.checks.varied_configs import checked, each_network_once, last_configs, old_configs

TABLE = Path(__file__).parents[3] / "examples" / "FASTREID_CONFIGS.md"
STOCK, VARIED = "stock configs", "varied configs"
_MOST = 3  # reasons planted in one config


def varied_table() -> str:
    """Rows of groups of varied configs."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    incomplete: Counter[str] = Counter()
    with TemporaryDirectory() as folder, each_network_once():
        for config in (*old_configs(), *last_configs()):
            _, lines, complete = checked(config, Path(folder))
            counts[config.group][len(lines)] += 1
            incomplete[config.group] += not complete
    heading = (
        "| varied configs | files | run | refused for one reason | for two | for three | named in part or wrongly |"
    )
    rows = [heading, "|---|---|---|---|---|---|---|"]
    for group, of in counts.items():
        numbers = [sum(of.values()), *(of[reasons] for reasons in range(_MOST + 1)), incomplete[group]]
        rows.append(f"| {group} | {' | '.join(map(str, numbers))} |")
    return "\n".join(rows)


def stock_table(checkout: Path) -> str:
    """Rows of the folders of FastReID's configs."""
    rows = ["| FastReID's configs | files | run | refused | for |", "|---|---|---|---|---|"]
    folders = [checkout / "configs", *sorted(path for path in checkout.glob("projects/*/configs"))]
    total, runs = 0, 0
    with each_network_once():
        for folder in folders:
            files = sorted(folder.rglob("*.yml"))
            why: Counter[str] = Counter()
            refused = 0
            for file in files:
                read = read_config(file)
                lines = read.lines + problems(read.cfg, wrong=read.wrong)
                refused += bool(lines)
                why.update({_short(line) for line in lines})
            if files:
                reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(why.items()))
                name = folder.relative_to(checkout).as_posix()
                rows.append(f"| `{name}` | {len(files)} | {len(files) - refused} | {refused} | {reasons} |")
                total, runs = total + len(files), runs + len(files) - refused
    return "\n".join([*rows, f"| all | {total} | {runs} | {total - runs} | |"])


def _short(line: str) -> str:
    """The key, and a name that is its value."""
    unknown = re.search(r"unknown key ([A-Z._]*[A-Z])", line)
    if unknown:
        return f"the key `{unknown[1]}`"
    named = re.match(r"([A-Z._]+) = (.+?): ", line)
    if not named:
        return f"`{line.split()[0]}`"
    key, value = named.groups()
    return f"`{key}`" if value.startswith("[") else f"`{key}` {value.strip(chr(39))}"


def section(text: str, name: str) -> str:
    """What stands between the marks of a name."""
    return _split(text, name)[1]


def _split(text: str, name: str) -> tuple[str, str, str]:
    before, mark, rest = text.partition(f"<!-- {name} -->\n")
    found, end, after = rest.partition("\n<!-- end -->")
    return before + mark, found, end + after


def main(checkout: str | None) -> None:
    """Writes the tables."""
    text = TABLE.read_text()
    tables = {VARIED: varied_table()} | ({STOCK: stock_table(Path(checkout))} if checkout else {})
    for name, table in tables.items():
        before, _, after = _split(text, name)
        text = before + table + after
    TABLE.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
