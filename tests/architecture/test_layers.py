"""Import contracts of pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.architecture.sources import ROOT, imports_of, name_of, python_files


def test_every_import_contract_is_kept() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_durable_data_is_never_pickled() -> None:
    for path in python_files():
        roots = {name.partition(".")[0] for name in imports_of(path)}
        assert not roots & {"cloudpickle", "dill", "marshal", "pickle", "shelve"}, name_of(path)


def test_test_modules_are_not_imported() -> None:
    """Helpers of several modules are in `tests/support` or in a module of their folder."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        assert not [name for name in imports_of(path) if ".test_" in name], name_of(path)
