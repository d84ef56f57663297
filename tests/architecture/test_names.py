"""The public names: sorted, real, and never hidden by a module of the same name."""

from __future__ import annotations

import importlib
import pkgutil
from importlib import metadata

import pytest

import gen_durable
from tests.adapters import site


@pytest.fixture(scope="module")
def modules() -> list[str]:
    site.set_up()  # the modules of a Django app are imported by a Django project only
    found = pkgutil.walk_packages(gen_durable.__path__, prefix="gen_durable.")
    return sorted(module.name for module in found if not module.name.endswith("__main__"))


def test_the_public_names_are_sorted() -> None:
    assert list(gen_durable.__all__) == sorted(set(gen_durable.__all__))


def test_the_version_is_that_of_the_package() -> None:
    assert gen_durable.__version__ == metadata.version("gen_durable")


def test_no_public_name_is_also_a_submodule(modules: list[str]) -> None:
    submodules = {name.split(".")[1] for name in modules}
    assert not submodules & set(gen_durable.__all__)


def test_what_a_module_offers_exists(modules: list[str]) -> None:
    for name in ("gen_durable", *modules):
        module = importlib.import_module(name)
        offered = getattr(module, "__all__", [])
        assert [each for each in offered if not hasattr(module, each)] == [], name
