"""Run the README's first command, and the same training without TCM, on one thread; write the results to a file.

    python examples/tools/first_run.py

Writes examples/tools/first_run.json. `python examples/tools/readme_tables.py` then writes the README's table.
"""

import json
import os
import resource
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "fastreid_configs" / "Glyphs"
OUTPUT = ROOT / "logs" / "first_run"
RESULTS = Path(__file__).with_name("first_run.json")
# row of the README's table -> config
TRAINED = {"SmoothAP": "smoothap.yml", "SmoothAP with TCM": "smoothap_tcm.yml"}


def train(config: str) -> dict[str, Any]:
    """Metrics of the raw pixels, the untrained and the trained network, and the run's CPU time in seconds."""
    folder = OUTPUT / config.removesuffix(".yml")
    command = [sys.executable, "-m", "pml_ext", "train", "--config-file", str(CONFIGS / config), "--overwrite"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([*command, "OUTPUT_DIR", str(folder)], env=environment, check=True)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    measured = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return {"user_seconds": round(seconds), "baselines": measured["baselines"], "results": measured["results"]}


def main() -> None:
    runs = {name: train(config) for name, config in TRAINED.items()}
    about = {"date": date.today().isoformat(), "torch": torch.__version__, "threads": 1}
    RESULTS.write_text(json.dumps(about | {"runs": runs}, indent=1) + "\n", encoding="utf-8")
    print(RESULTS)


if __name__ == "__main__":
    main()
