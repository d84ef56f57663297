"""Planted operators and functions of an attacker, which shadow those of PostgreSQL by unqualified names.

PostgreSQL prefers an operator or function whose argument types match exactly. Its own accept any enum and any array.
So planted ones for our types win even if pg_catalog comes first on the search_path.
"""

from __future__ import annotations

from typing import Any, Final

ENUMS: Final = ("gen_durable.durable_status", "gen_durable.audit_level")
ARRAYS: Final = ("text[]", "bigint[]", "int[]", "interval[]", "timestamptz[]", "boolean[]", "bytea[]")
COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=")
# These match as exactly as PostgreSQL's own, and win only if pg_catalog comes later on the path.
PLAIN: Final = ("bigint", "text", "int", "timestamptz", "smallint")
FUNCTIONS: Final = {
    "statement_timestamp()": "timestamptz",
    "split_part(text, text, int)": "text",
    "octet_length(text)": "int",
    "jsonb_strip_nulls(jsonb)": "jsonb",
    "hashtextextended(text, bigint)": "bigint",
    "current_setting(text)": "text",
    "to_regclass(text)": "regclass",
    "quote_ident(text)": "text",
}

CAUGHT: Final = """
create table public.caught (who text);
grant insert on public.caught to public;
create function public.spring() returns boolean language plpgsql volatile set search_path = pg_catalog as $$
begin
  insert into public.caught values (current_user);
  return true;
exception when read_only_sql_transaction then
  raise exception 'the trap has sprung';
end $$;
"""


def traps() -> str:
    """The statements that create them. Each does what the original does, and records the role that runs it."""
    made = [CAUGHT]
    for number, type_ in enumerate((*ENUMS, *ARRAYS, *PLAIN)):
        for place, sign in enumerate(COMPARISONS):
            name = f"public.compare_{number}_{place}"
            made.append(
                f"create function {name}({type_}, {type_}) returns boolean language plpgsql as "
                f"$$ begin return public.spring() and $1 operator(pg_catalog.{sign}) $2; end $$;"
                f"create operator public.{sign} (leftarg = {type_}, rightarg = {type_}, function = {name});"
            )
    made += [
        f"create function public.unnest({type_}) returns setof {type_.removesuffix('[]')} language plpgsql as "
        "$$ begin perform public.spring(); return query select pg_catalog.unnest($1); end $$;"
        f"create function public.cardinality({type_}) returns int language plpgsql as "
        "$$ begin perform public.spring(); return pg_catalog.cardinality($1); end $$;"
        for type_ in ARRAYS
    ]
    for signature, type_ in FUNCTIONS.items():
        name, _, arguments = signature.partition("(")
        given = ", ".join(f"${n}" for n, each in enumerate(arguments.rstrip(")").split(","), 1) if each)
        made.append(
            f"create function public.{signature} returns {type_} language plpgsql as "
            f"$$ begin perform public.spring(); return pg_catalog.{name}({given}); end $$;"
        )
    made.append(
        "create function public.concat_id(bigint, text) returns text language plpgsql as "
        "$$ begin perform public.spring(); return pg_catalog.concat($1, $2); end $$;"
        "create operator public.|| (leftarg = bigint, rightarg = text, function = public.concat_id);"
    )
    return "".join(made)


async def caught(sql: Any, attacker: str) -> set[str]:
    """The roles that have run a planted object."""
    rows = await sql.fetch("select distinct who from public.caught where who <> $1", attacker)
    return {row["who"] for row in rows}
