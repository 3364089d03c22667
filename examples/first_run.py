"""Run the README's first command on one thread and write its results to examples/first_run.json.

    python examples/first_run.py

`python examples/readme_tables.py` then writes the README's table.
"""

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "fastreid_configs" / "Glyphs" / "smoothap_tcm.yml"
OUTPUT = ROOT / "logs" / "first_run"
RESULTS = Path(__file__).with_name("first_run.json")


def main() -> None:
    command = [sys.executable, "-m", "pml_ext.cli", "train", "--config-file", str(CONFIG), "--overwrite"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "OUTPUT_DIR", str(OUTPUT)], env=environment, check=True)
    found = json.loads((OUTPUT / "metrics.json").read_text(encoding="utf-8"))
    about = {"date": date.today().isoformat(), "torch": torch.__version__, "threads": 1}
    kept = about | {"baselines": found["baselines"], "results": found["results"]}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(RESULTS)


if __name__ == "__main__":
    main()
