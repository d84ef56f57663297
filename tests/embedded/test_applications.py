"""Applications with their own tables on the embedded server, as docs and examples show them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gen_durable.embedded import EmbeddedPostgres
from tests.docs.pages import ROOT, Page
from tests.embedded.processes import is_running, query

GUIDE = Page(ROOT / "docs" / "guides" / "frameworks.md")
RECIPE = Page(ROOT / "docs" / "recipes" / "fastapi.md")
# Runs a block with top-level await.
SNIPPET = """
import ast, asyncio, inspect, sys
code = compile(open(sys.argv[1]).read(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
space = {"__name__": "snippet"}
asyncio.run(eval(code, space))
"""
PSQL = """#!{python}
import sys
import psycopg
dsn, option, command = sys.argv[1:]
assert option == "-c"
psycopg.connect(dsn, autocommit=True).execute(command)
"""

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of an application; its embedded server has data and does not run."""
    for variable in [name for name in os.environ if name.startswith("GEN_DURABLE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("GEN_DURABLE_HOME", str(made))
    # The commands of the pages.
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gen-durable").write_text(f'#!/bin/sh\nexec {sys.executable} -m gen_durable "$@"\n')
    (programs / "psql").write_text(PSQL.format(python=sys.executable))
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path


def run(project: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.clause("ADAPT-14")
def test_sqlalchemy_example_runs_without_a_dsn(project: Path, made: Path) -> None:
    printed = run(project, sys.executable, str(ROOT / "examples" / "sqlalchemy_app.py"))
    assert printed.splitlines() == [
        "refused: the price must be at least 1",
        "order 2: 30 charged",
        "in the tables: 1 paid order, 1 instance",
    ]
    with EmbeddedPostgres(made) as server:
        assert query(server.ensure(), "select array_agg(price || ' ' || is_paid) from orders") == ["30 true"]


@pytest.mark.clause("ADAPT-14")
def test_fastapi_recipe_runs_without_a_dsn(project: Path) -> None:
    (project / "shop.py").write_text(RECIPE.files()["shop.py"])
    (requests,) = [block.text for block in RECIPE.blocks if block.language == "python" and not block.file]
    (project / "requests.py").write_text(f"{requests}    print((await requests.get('/orders')).json())\n")
    assert run(project, sys.executable, "-c", SNIPPET, "requests.py") == "{'paid': 1}\n"


@pytest.mark.clause("EMB-1", "EMB-2")
def test_commands_of_the_guide_work(project: Path, made: Path) -> None:
    (commands,) = [block.text for block in GUIDE.blocks if block.language == "sh" and block.reason]
    lines = commands.splitlines()
    assert lines[-1] == "gen-durable db stop"
    run(project, "sh", "-ec", "\n".join(["set -x", *lines[:-2], "gen-durable db migrate", *lines[-2:]]))
    assert not is_running(made)
    with EmbeddedPostgres(made) as server:
        assert query(server.ensure(), "select count(*) from orders") == 0


@pytest.mark.clause("ADAPT-14")
def test_django_settings_of_the_guide_work(
    project: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = GUIDE.files()
    (project / "shop.py").write_text(files["shop.py"])
    (project / "settings.py").write_text(f"{files['settings.py']}\nSECRET_KEY = 'x'\n")
    monkeypatch.setenv("GEN_DURABLE_DSN", run(project, "gen-durable", "db", "start").strip())
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
    monkeypatch.setenv("PYTHONPATH", str(project))
    manage = (sys.executable, "-m", "django")
    run(project, *manage, "migrate", "-v", "0")
    with subprocess.Popen(
        [*manage, "gen_durable", "worker"], cwd=project, stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            assert f" runs Checkout v1 on the embedded PostgreSQL in {made}, " in worker.stdout.readline()
            assert worker.pid in [each.pid for each in EmbeddedPostgres(made).status().clients]
            run(project, *manage, "gen_durable", "insert", "Checkout", "4")
            assert '"order 4 charged"' in run(project, *manage, "gen_durable", "wait", "1", "--json")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(20) == 0
        finally:
            worker.kill()
    run(project, "gen-durable", "db", "stop")
