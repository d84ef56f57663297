"""JavaScript without comments, indentation and needless spaces: browsers get that, people read the source."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["compact"]

_TOKEN: Final = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      |(?P<space>\s+)
      |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      |(?P<regex>/(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/\w*)
      |(?P<word>[\w$]+)
      |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_TEXT: Final = re.compile(r"(?:[^`\\$]|\\.|\$(?!\{))*", re.DOTALL)
_WORD: Final = re.compile(r"[\w$]")
# A slash behind one of these begins a regular expression; behind others, it divides.
_BEFORE_REGEX: Final = frozenset("([{,;:=!?&|+-*%<>~^\n")
_KEYWORDS_BEFORE_REGEX: Final = frozenset({"return", "typeof", "case", "in", "of", "else"})
_EDGE: Final = re.compile(r"^\n|\n$")
_QUOTED: Final = re.compile(r'="([\w-]+)"(?=\s|$)')
# A line break beside one of these cannot end a statement.
_NO_END_AFTER: Final = frozenset("([{,;:=?&|>")
_NO_END_BEFORE: Final = frozenset(")]},.:?&|")


def compact(source: str) -> str:
    """Return a module that does the same. Line breaks that may end a statement are kept."""
    return _Compact(source).result()


class _Compact:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._parts: list[str] = []
        # The last token, and the space since then.
        self._last = ";"
        self._space = ""

    def result(self) -> str:
        self._code()
        return "".join(self._parts) + "\n"

    def _code(self) -> None:
        """Copy code up to its end, or the brace that ends a substitution in a template."""
        depth = 0
        while self._at < len(self._source):
            if self._source[self._at] == "`":
                self._template()
                continue
            kind, text = self._match(_TOKEN)
            if kind == "regex" and not self._may_be_regex():
                kind, text = "other", "/"
            depth += (text == "{") - (text == "}")
            if depth < 0:
                return
            self._at += len(text)
            if kind in ("comment", "space"):
                self._space += "\n" if "\n" in text else " "
            else:
                self._put(text)

    def _match(self, pattern: re.Pattern[str]) -> tuple[str, str]:
        """Return kind and text of what is at the place. Both patterns match any text."""
        found = pattern.match(self._source, self._at)
        return ("", "") if found is None else (found.lastgroup or "", found[0])

    def _may_be_regex(self) -> bool:
        return self._last in _KEYWORDS_BEFORE_REGEX or self._last[-1] in _BEFORE_REGEX

    def _put(self, text: str) -> None:
        before, after = self._last[-1], text[0]
        if text == "}" and before == ";":
            # The last statement of a block ends without it. There are no empty statements, such as `while (next());`.
            self._parts.pop()
        if "\n" in self._space and before not in _NO_END_AFTER and after not in _NO_END_BEFORE:
            self._parts.append("\n")
        elif self._space and (
            (_WORD.match(before) and _WORD.match(after)) or (before == after and before in "+-/")
        ):
            self._parts.append(" ")
        self._parts.append(text)
        self._last, self._space = text, ""

    def _template(self) -> None:
        """Copy a template literal. In those of `html`, line breaks with indentation mean nothing."""
        is_html = self._last == "html" and not self._space
        is_in_tag = False
        self._at += 1
        self._put("`")
        while True:
            _, text = self._match(_TEXT)
            self._at += len(text)
            if is_html:
                text, is_in_tag = _markup(re.sub(r"\s*\n\s*", "\n", text), is_in_tag=is_in_tag)
            self._parts.append(text)
            if self._source[self._at] == "`":
                break
            self._at += 2
            self._parts.append("${")
            self._last, self._space = "{", ""
            self._code()
            self._at += 1
            self._parts.append("}")
            self._space = ""
        self._at += 1
        self._parts.append("`")
        self._last, self._space = "`", ""


def _markup(text: str, *, is_in_tag: bool) -> tuple[str, bool]:
    """Return a part of an `html` template without what htm ignores, and whether a tag continues behind it.

    htm trims line breaks at both ends of a text, and takes values of attributes without quotes.
    """
    parts = re.split("([<>])", text)
    for at, part in enumerate(parts):
        if part in ("<", ">"):
            is_in_tag = part == "<"
        else:
            parts[at] = _QUOTED.sub(r"=\1", part) if is_in_tag else _EDGE.sub("", part)
    return "".join(parts), is_in_tag
