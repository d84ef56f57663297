"""JavaScript without comments and needless spaces. The tests of all pages run what this makes of the real files."""

from __future__ import annotations

import pytest

from gen_durable.dashboard.compact import compact


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("// words\nconst a = 1;\n\n  /* more\n  words */ let b = a + +1 - -a;\n", "const a=1;let b=a+ +1- -a;"),
        ("f(a,\n  b)\n  .then(c)", "f(a,b).then(c)"),
        ("a = b\n(c)", "a=b\n(c)"),
        ("return {\n  a,\n  b: x => x,\n};", "return{a,b:x=>x,};"),
        ("const url = 'http://x'; // y", "const url='http://x';"),
        ("x = a / b / c; y = /[/\\s]+ \\/ /g.test(z)", "x=a/b/c;y=/[/\\s]+ \\/ /g.test(z)"),
        ("return /a b/.test(c)", "return/a b/.test(c)"),
        ("`a  ${ b } \n  c`", "`a  ${b} \n  c`"),
        ("html`<p>\n    ${ a ? html`<b> // x </b>` : '' }  y\n  </p>`", "html`<p>${a?html`<b> // x </b>`:''}  y</p>`"),
        ('html`<p id="a-1" class="b c" title="d">${x}\n  </p>`', 'html`<p id=a-1 class="b c" title=d>${x}</p>`'),
        ('html`<${P} a="b" c=${d} e="f"\n  g>h="i" j\n  k<//>`', 'html`<${P} a=b c=${d} e=f\ng>h="i" j\nk<//>`'),
        ("`${ {a: `}`} }` + 1", "`${{a:`}`}}`+1"),
        ("if (a) b();\nelse c();\nd", "if(a)b();else c();d"),
        ("if (a) { b();\n}\n() => { c; };", "if(a){b()}\n()=>{c};"),
        ("let a\nlet b\nx++\ny", "let a\nlet b\nx++\ny"),
    ],
)  # fmt: skip
def test_source_keeps_its_meaning(source: str, expected: str) -> None:
    assert compact(source) == expected + "\n"
