"""The benchmarks run; their results are not tested."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_metric_learning.losses

pytestmark = pytest.mark.skipif(not hasattr(pytorch_metric_learning.losses, "SmoothAPLoss"), reason="beside PML 2.9")
SCRIPT = Path(__file__).parents[1] / "examples" / "benchmarks" / "losses.py"


def output_of(script: str, *words: str) -> str:
    command = [sys.executable, str(SCRIPT.with_name(script)), *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "shown"),
    [
        ("losses.py", "--quick --sizes 16 32 --dim 8 --cases TCM --limit-gb 1e-4", "| skipped: about 0 GB |"),
        ("optimizer_steps.py", "--network test_resnet", "| AdamW | "),
        ("classifier.py", "--classes 300 --dim 8 --batch 4 --budget 0.01", "| PartialFC, rate 0.1 | "),
        ("large_batch.py", "--sizes 16 --chunks 8 --side 16 --budget 0.1", "| 16 | undivided | "),
        ("metrics.py", "--quick --cases OPIS", "opis(exact=True)"),
        ("ranks.py", "--size 32 --dim 8 --rounds 1 --losses CITLoss", "| CITLoss | "),
        ("search.py", "--rows 2000 --dim 8", "recall of 10 1,"),
        ("startup.py", "--rows 60000 --identities 6000 --lines 2000", " met |"),
        ("pipeline.py", "--images 2 --seconds 0.01 --rounds 1", "| "),
    ],
)
def test_the_script_runs(script: str, words: str, shown: str, tmp_path: Path) -> None:
    if script == "startup.py" and not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("memory is measured on Linux")
    out = ["--out", str(tmp_path)]
    folder = {"losses.py": out, "metrics.py": out, "search.py": ["--folder", str(tmp_path)]}
    assert shown in output_of(script, *words.split(), *folder.get(script, []))
