"""The script that CI runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_ci_fails_without_a_browser(tmp_path: Path) -> None:
    """CI must not skip the tests of the dashboard without a notice."""
    for name in ("bash", "dirname", "id"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    done = subprocess.run(
        [ROOT / ".ci" / "run"],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "cannot install chromium" in done.stderr) == (1, True)
