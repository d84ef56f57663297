"""The pages of the dashboard, as its shell lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import gen_durable.dashboard

__all__ = ["PAGES", "PageRoute"]

_STATIC: Final = Path(gen_durable.dashboard.__file__).with_name("static")
_ROUTE: Final = re.compile(r'^  \["(?P<path>\w*)", "(?P<name>\w+)", "(?P<title>[^"]+)", "\w"', re.MULTILINE)
_MODULE: Final = re.compile(r'(\w+): "(\w+)"')
_INNER: Final = re.compile(r'(?P<path>\w+): \["(?P<name>\w+)", "\w+"\]')


class PageRoute(NamedTuple):
    """A page that an address of the dashboard opens."""

    name: str
    path: str
    """Of an inner page, with the place of its parameter: /m/{}."""
    exists: bool

    def at(self, **names: str) -> str:
        """The path with the parameter of this page: at(machine="shop.checkout", instance="1")."""
        return self.path.format(quote(names.get(self.name, ""), safe=""))


def _found() -> list[PageRoute]:
    text = (_STATIC / "js" / "app.js").read_text(encoding="utf-8")
    inner, modules = (
        text[text.index(f"const {name} = ") :].partition("\n")[0] for name in ("INNER", "MODULES")
    )
    found = [(one["name"], f"/{one['path']}") for one in _ROUTE.finditer(text)]
    found += [(one["name"], f"/{one['path']}/{{}}") for one in _INNER.finditer(inner)]
    module_of = dict(_MODULE.findall(modules))
    files = {
        file.stem
        for file in (_STATIC / "js" / "pages").glob("*.js")
        if "export default" in file.read_text("utf-8")
    }
    # A page that these patterns do not find would be in no test.
    left_out = files - {module_of.get(name, name) for name, _ in found}
    if left_out:
        raise LookupError(f"no route of app.js leads to {', '.join(sorted(left_out))}")
    return [PageRoute(name, path, module_of.get(name, name) in files) for name, path in found]


PAGES: Final = _found()
