"""Build the documentation site: `./run docs [DIRECTORY]`.

Stage the pages of docs/, the Markdown files of the root and an API reference in a temporary directory, run Zensical
on them, check every link and anchor of the result, and write llms.txt, llms-full.txt and the Markdown of each page.
"""

from __future__ import annotations

import ast
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from docs.site.generate import write_pages

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
CONFIG: Final = DOCS / "site" / "zensical.toml"
PACKAGE: Final = ROOT / "src" / "gen_durable"

# Files of the root that are pages of the site.
ROOT_PAGES: Final = {
    "ARCHITECTURE.md": "internals/architecture.md",
    "CHANGELOG.md": "internals/changelog.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "PERFORMANCE.md": "internals/performance.md",
    "SECURITY.md": "internals/security.md",
}

# Pages of the API reference: title, modules whose public names `gen_durable` exports, modules to show completely.
API: Final[dict[str, tuple[str, list[str], list[str]]]] = {
    "clients": ("Clients", ["async_client", "client"], []),
    "worker": ("Worker", ["worker"], []),
    "machines": ("Machines and jobs", ["machine", "jobs", "retry", "_graph"], []),
    "outcomes": ("Outcomes", ["outcome"], []),
    "context": ("Context", ["context"], []),
    "signals": ("Signals and streams", ["signals", "streams"], []),
    "inserting": ("Inserting", ["refs"], []),
    "instances": ("Instances", ["instance", "search", "progress", "timeline", "_core.records"], []),
    "schedules": ("Schedules", ["schedules"], []),
    "limits": ("Limits", ["limits"], []),
    "events": ("Events, sinks, webhooks", ["events"], ["sinks", "inbound"]),
    "operations": ("Operations", ["operations", "batches", "findings", "audit", "_schema"], ["reasons"]),
    "telemetry": ("Telemetry", [], ["telemetry", "contrib.opentelemetry", "contrib.prometheus"]),
    "settings": ("Settings", ["config"], []),
    "errors": ("Errors", [], ["errors"]),
    "testing": ("Testing", [], ["testing"]),
    "frameworks": ("Frameworks", [], ["contrib.django", "contrib.fastapi", "contrib.starlette"]),
    "dashboard": ("Dashboard", [], ["dashboard", "contrib.django.dashboard"]),
}

_LINK: Final = re.compile(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")
_FENCED: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)


def main(target: Path) -> None:
    """Build the site in `target`; exit with an error if a link is broken."""
    write_pages()
    with tempfile.TemporaryDirectory() as directory:
        stage = StagedPages(Path(directory))
        stage.fill()
        build = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
        if subprocess.run([*build, "-f", str(stage.config)], check=False, cwd=directory).returncode:
            sys.exit("the site was not built")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(stage.root / "site", target)
        write_llms(stage, target)
    if broken := sorted(broken_links(target)):
        sys.exit("broken links:\n" + "\n".join(broken))
    print(f"built {target}: {sum(1 for _ in target.rglob('*.html'))} pages")


class StagedPages:
    """The directory that Zensical builds from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.docs = root / "docs"
        self.config = root / "zensical.toml"
        self.sources: set[str] = set()
        """Files and directories of the repository that a page links to, and that are not pages."""

    def fill(self) -> None:
        shutil.copyfile(CONFIG, self.config)
        (self.root / "src").symlink_to(ROOT / "src")
        for source, page in pages().items():
            self._write(page, self._staged(source, page))
        for file in DOCS.rglob("*"):
            if file.is_file() and file.suffix not in (".md", ".py", ".toml", ".pyc"):
                self._write_bytes(file.relative_to(DOCS).as_posix(), file.read_bytes())
        for name in API:
            self._write(f"reference/api/{name}.md", api_page(name))
        for source in sorted(self.sources):
            self._write(source_page(source), source_listing(source))

    def _staged(self, source: str, page: str) -> str:
        """Return a page as the site needs it: without comments, with links to pages of the site."""

        def link(found: re.Match[str]) -> str:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
            return f"]({posixpath.relpath(self._place(path), posixpath.dirname(page))}{found[2] or ''})"

        text = _COMMENT.sub("", (ROOT / source).read_text(encoding="utf-8"))
        parts = _FENCED.split(text)
        return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)

    def _place(self, path: str) -> str:
        """Return the page or file of the site that shows this file of the repository."""
        known = pages()
        for candidate in (path, f"{path}/README.md"):
            if candidate in known:
                return known[candidate]
        if path == "README.md":
            return "index.md"
        if path.startswith("docs/") and (ROOT / path).is_file():
            return path.removeprefix("docs/")
        self.sources.add(path)
        return source_page(path)

    def _write(self, page: str, text: str) -> None:
        self._write_bytes(page, text.encode())

    def _write_bytes(self, page: str, content: bytes) -> None:
        file = self.docs / page
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def pages() -> dict[str, str]:
    """Return the Markdown files that are pages: path in the repository → path in the site."""
    found = {
        path.relative_to(ROOT).as_posix(): path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")
    }
    found = {source: page.replace("README.md", "index.md") for source, page in sorted(found.items())}
    return found | {source: page for source, page in ROOT_PAGES.items() if (ROOT / source).exists()}


def navigation() -> list[tuple[str, list[str]]]:
    """Return the sections of the site, each with its pages in order."""
    nav = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]["nav"]
    return [(title, list(_leaves(entry))) for item in nav for title, entry in item.items()]


def _leaves(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from _leaves(each)


def exports() -> dict[str, list[str]]:
    """Return the public names of `gen_durable` by the module that defines them."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    public = set(_all_of(""))
    found = {
        node.module: [alias.name for alias in node.names if alias.name in public]
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
    }
    return {module: names for module, names in found.items() if names}


def api_page(name: str) -> str:
    """Return the Markdown of one page of the API reference."""
    title, exporters, modules = API[name]
    public = exports()
    names = [f"gen_durable.{module}.{each}" for module in exporters for each in public[module]]
    names += [f"gen_durable.{module}.{each}" for module in modules for each in _all_of(module)]
    options = "    options:\n      show_bases: true\n" if name == "errors" else ""
    return f"# {title}\n\n" + "\n".join(f"::: {each}\n{options}" for each in names)


def _all_of(module: str) -> list[str]:
    path = PACKAGE.joinpath(*filter(None, module.split(".")))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(each) for each in ast.literal_eval(node.value)]
    raise SystemExit(f"{file} has no __all__")


def source_page(path: str) -> str:
    """Return the page that shows a file or directory of the repository."""
    return f"sources/{path}.md" if (ROOT / path).is_file() else f"sources/{path}/index.md"


def source_listing(path: str) -> str:
    """Return a page with the text of a file, or of the Python files of a directory."""
    place = ROOT / path
    if not place.exists():
        sys.exit(f"a page links to {path}, which does not exist")
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    shown = [f"# {path}\n"]
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        language = {".py": "python", ".sql": "sql", ".toml": "toml"}.get(file.suffix, "text")
        shown.append(f'````{language} title="{name}"\n{file.read_text(encoding="utf-8").strip()}\n````\n')
    return "\n".join(shown)


def write_llms(stage: StagedPages, target: Path) -> None:
    """Write llms.txt, an index of all pages; llms-full.txt, their text; and each page as Markdown."""
    project = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]
    index = [f"# {project['site_name']}\n\n> {project['site_description']}\n"]
    full = []
    for section, names in navigation():
        index.append(f"## {section}\n")
        for name in names:
            text = (stage.docs / name).read_text(encoding="utf-8")
            is_written = not name.startswith("reference/api/")  # generated pages exist as HTML only
            index.append(f"- [{title_of(text)}]({name if is_written else name[:-3] + '/'}){summary_of(text)}")
            if is_written:
                full.append(text)
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (target / name).write_text(text, encoding="utf-8")
        index.append("")
    (target / "llms.txt").write_text("\n".join(index), encoding="utf-8")
    (target / "llms-full.txt").write_text("\n\n".join(full), encoding="utf-8")


def title_of(text: str) -> str:
    """Return the title of a Markdown page."""
    return text.split("\n", 1)[0].removeprefix("# ")


def summary_of(text: str) -> str:
    """Return the first sentence below the title, if the page starts with prose."""
    paragraph = " ".join("".join(text.split("\n\n", 2)[1:2]).split())
    if not paragraph.removeprefix("`")[:1].isalpha():
        return ""
    sentence = re.split(r"(?<=\.) ", _LINK.sub("]", paragraph))[0]
    return ": " + sentence.translate({ord("["): None, ord("]"): None})


class _Html(HTMLParser):
    """Collect the links and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value and tag != "base":
                self.links.add(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yield every link of the site to a missing file or anchor."""
    parsed: dict[Path, _Html] = {}
    for file in site.rglob("*.html"):
        parsed[file] = _Html()
        parsed[file].feed(file.read_text(encoding="utf-8"))
    for file, page in parsed.items():
        if file.name == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            place = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            place = place / "index.html" if place.is_dir() else place
            where = file.relative_to(site).as_posix()
            if not place.exists():
                yield f"{where}: {link}"
            elif parts.fragment and place in parsed and unquote(parts.fragment) not in parsed[place].anchors:
                yield f"{where}: {link} (no such anchor)"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs")
