"""Run the code and commands of the pages, and write what they print below them.

    python examples/tools/page_outputs.py                      # README and all guides
    python examples/tools/page_outputs.py PAGE --check         # compare only; status 1 if something differs

The blocks of a page run from top to bottom in one empty folder, or in --folder:

- `python`: in a namespace of its own. The `text` block below it has the output. A block whose first line is `# NAME.py`
  is written to that file instead, and a block `# NAME.py, continued` is appended to it.
- `console`: lines that start with `$ ` are commands, a backslash continues them, and the lines below are their output.
  `mkdir -p NAME && cd NAME` holds for the rest of the page.
- `yaml` whose first line is `# NAME.yml`: is written to that file.
- All others (`sh`: installations, runs on several machines) are not run.

A line `…` stands for any lines, and `…` within a line for any text. Numbers may differ by 5 %, and runs of spaces in
length. An output that agrees is left as it is.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "examples" / "guides").glob("*.md"))]
PAGES += sorted((ROOT / "examples" / "site" / "pages").glob("*.md"))
TOLERANCE = 0.05
_LONGEST = 14  # lines of a new output; the rest becomes …
_BLOCK = re.compile(r"^```(python|console|yaml)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
_FILE = re.compile(r"# ([\w./-]+\.(?:py|yml))(, continued)?\n")
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.M)
_ENTER = re.compile(r"mkdir -p (\w+) && cd \1")
_NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def agree(expected: str, printed: str) -> bool:
    """Whether an output is the page's."""
    pattern, numbers = "", list[float]()
    for line in expected.rstrip().splitlines():
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
            continue
        words = re.sub(r"\s+", " ", line.rstrip())
        numbers += [_value(number) for number in _NUMBER.findall(words)]
        escaped = [re.escape(part).replace("…", ".*?") for part in _NUMBER.split(words)]
        pattern += r"([-−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)".join(escaped) + r"\n"
    lines = [re.sub(r"\s+", " ", line.rstrip()) for line in printed.rstrip().splitlines()]
    found = re.fullmatch(pattern, "".join(f"{line}\n" for line in lines))
    if found is None:
        return False
    pairs = zip(numbers, map(_value, found.groups()), strict=True)
    return all(abs(one - other) <= TOLERANCE * max(abs(one), abs(other)) for one, other in pairs)


def _value(number: str) -> float:
    return float(number.replace("−", "-"))


def update(page: str) -> tuple[str, list[str]]:
    """Returns the page with the outputs of its blocks, run in the current folder, and the blocks that did not agree."""
    differ = list[str]()

    def run(block: re.Match[str]) -> str:
        language, code, shown = block[1], block[2], block[3] or ""
        if named := _FILE.match(code):
            with open(named[1], "a" if named[2] else "w", encoding="utf-8") as file:
                file.write(code)
            return block[0]
        if language == "yaml":
            return block[0]
        if language == "console":
            text = _COMMAND.sub(lambda line: f"$ {line[1]}\n{kept(line[1], line[2], run_command(line[1]))}", code)
            return f"```console\n{text}```\n"
        output = kept(code, shown, run_python(code))
        below = f"\n```text\n{output}```\n" if output else ""
        return f"```python\n{code}```\n{below}"

    def kept(code: str, shown: str, printed: str) -> str:
        if agree(shown, printed):
            return shown
        differ.append(f"{code.strip()}\n--- the page:\n{shown}--- printed:\n{printed}")
        lines = [line.rstrip() for line in printed.rstrip().splitlines()]
        if len(lines) > _LONGEST:
            lines = [*lines[:_LONGEST], "…"]
        return "".join(f"{line}\n" for line in lines)

    return _BLOCK.sub(run, page), differ


def run_python(code: str) -> str:
    """Returns what a block prints."""
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "block", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def run_command(command: str) -> str:
    """Returns what a command prints to stdout; `pml-ext` runs in this process if it can."""
    if entered := _ENTER.fullmatch(command):
        os.makedirs(entered[1], exist_ok=True)
        os.chdir(entered[1])
        return ""
    line = command.replace("\\\n", " ")
    words = shlex.split(line, comments=True)
    if words[0] != "pml-ext" or "--import" in words:  # parts are registered once in a process
        functions = f'python() {{ "{sys.executable}" "$@"; }}; pml-ext() {{ python -m pml_ext "$@"; }}'
        shell = ["bash", "-c", f"{functions}; {line}"]
        return subprocess.run(shell, check=True, stdout=subprocess.PIPE, text=True).stdout
    from pml_ext.cli import main

    printed = StringIO()
    with redirect_stdout(printed):
        status = main(words[1:])
    if status == 2:
        raise RuntimeError(f"{command} failed")
    return printed.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="pages [default: README and all guides]")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if an output differs")
    parser.add_argument("--folder", type=Path, help="run the pages there [default: a new folder for each]")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    sys.path.insert(0, "")
    status = 0
    for path in map(Path.resolve, options.pages or PAGES):
        text = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(options.folder or folder)
            written, differ = update(text)
            os.chdir(ROOT)
        for block in differ:
            print(f"{path.relative_to(ROOT)}: {block}", file=sys.stderr)
        if differ and not options.check:
            path.write_text(written, encoding="utf-8")
        status = status or int(bool(differ))
    return status


if __name__ == "__main__":
    sys.exit(main())
