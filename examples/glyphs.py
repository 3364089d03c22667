"""Train every config of fastreid_configs/Glyphs with several seeds, and keep the metrics in examples/glyphs.json.

    python examples/glyphs.py --seeds 0 1 2

Runs that are done (logs/glyphs_seeds) are not run again; as many run at a time as there are cores, one thread each.
`python examples/readme_tables.py` then writes the README's tables.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(path for path in (ROOT / "fastreid_configs" / "Glyphs").glob("*.yml") if path.stem[:5] != "Base-")
RESULTS = Path(__file__).with_name("glyphs.json")


def run(config: Path, seed: int) -> dict[str, object]:
    """What a run leaves in its metrics.json."""
    output = ROOT / "logs" / "glyphs_seeds" / f"{config.stem}_{seed}"
    metrics = output / "metrics.json"
    if not metrics.is_file():
        command = [sys.executable, "-m", "pml_ext.training.cli", "train", "--config-file", str(config)]
        command += ["OUTPUT_DIR", str(output), "SEED", str(seed)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{config.name} with seed {seed} failed:\n{done.stderr[-3000:]}")
        print(f"{config.stem}, seed {seed}: done", flush=True)
    found: dict[str, object] = json.loads(metrics.read_text(encoding="utf-8"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    jobs = [(config, seed) for seed in seeds for config in CONFIGS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda job: run(*job), jobs))
    runs = [{"config": config.stem, "seed": seed} | result for (config, seed), result in zip(jobs, found, strict=True)]
    about = {"date": date.today().isoformat(), "torch": torch.__version__, "threads": 1}
    RESULTS.write_text(json.dumps(about | {"runs": runs}, indent=1) + "\n", encoding="utf-8")
    print(RESULTS)


if __name__ == "__main__":
    main()
