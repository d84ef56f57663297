"""Public names are sorted, exist, and are not shadowed by modules."""

from __future__ import annotations

import importlib
import pkgutil
from importlib import metadata

import pytest

import gen_durable
from tests.adapters import site


@pytest.fixture(scope="module")
def modules() -> list[str]:
    site.set_up()  # modules of a Django app need a Django project
    found = pkgutil.walk_packages(gen_durable.__path__, prefix="gen_durable.")
    return sorted(module.name for module in found if not module.name.endswith("__main__"))


def test_public_names_are_sorted() -> None:
    assert list(gen_durable.__all__) == sorted(set(gen_durable.__all__))


def test_version_is_the_package_version() -> None:
    assert gen_durable.__version__ == metadata.version("gen_durable")


def test_no_public_name_is_also_a_submodule(modules: list[str]) -> None:
    submodules = {name.split(".")[1] for name in modules}
    assert not submodules & set(gen_durable.__all__)


def test_every_exported_name_exists(modules: list[str]) -> None:
    for name in ("gen_durable", *modules):
        module = importlib.import_module(name)
        offered = getattr(module, "__all__", [])
        assert [each for each in offered if not hasattr(module, each)] == [], name
