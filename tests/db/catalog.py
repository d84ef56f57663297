"""Dump a schema from the catalog, with its name replaced by `$schema`, to compare two schemas."""

from __future__ import annotations

from typing import Any

_QUERIES = {
    "relations": """
        select c.relname, c.relkind::text, c.relpersistence::text, c.reloptions, pg_get_viewdef(c.oid) as definition
          from pg_class c where c.relnamespace = $1::text::regnamespace order by 1, 2""",
    "columns": """
        select c.relname, row_number() over (partition by c.oid order by a.attnum), a.attname,
               format_type(a.atttypid, a.atttypmod) as type, a.attnotnull,
               a.attidentity::text, a.attgenerated::text, a.attstorage::text, pg_get_expr(d.adbin, d.adrelid) as value
          from pg_attribute a join pg_class c on c.oid = a.attrelid
          left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
         where c.relnamespace = $1::text::regnamespace and a.attnum > 0 and not a.attisdropped order by 1, 2""",
    "indexes": """
        select indexname, indexdef from pg_indexes
         where quote_ident(schemaname) = $1 order by 1""",
    "constraints": """
        select conname, contype::text, pg_get_constraintdef(oid) as definition from pg_constraint
         where connamespace = $1::text::regnamespace order by 1, 2, 3""",
    "functions": """
        select p.proname, pg_get_functiondef(p.oid) as definition, p.proacl::text as acl from pg_proc p
         where p.pronamespace = $1::text::regnamespace order by 1, 2""",
    "types": """
        select t.typname, t.typtype::text, (select array_agg(e.enumlabel order by e.enumsortorder)
                 from pg_enum e where e.enumtypid = t.oid) as labels
          from pg_type t where t.typnamespace = $1::text::regnamespace order by 1""",
    "sequences": """
        select sequencename, data_type::text, start_value, increment_by, max_value, cache_size, cycle
          from pg_sequences where quote_ident(schemaname) = $1 order by 1""",
    "triggers": """
        select t.tgname, pg_get_triggerdef(t.oid) as definition from pg_trigger t join pg_class c on c.oid = t.tgrelid
         where c.relnamespace = $1::text::regnamespace and not t.tgisinternal order by 1""",
}


async def dump(connection: Any, schema: str) -> dict[str, list[tuple[object, ...]]]:
    """Dump all objects of an installed schema."""
    quoted = await connection.fetchval("select quote_ident($1)", schema)
    versions = await connection.fetch(f"select version from {quoted}.migrations order by 1")
    found = {"increments": [tuple(row) for row in versions]}
    for kind, query in _QUERIES.items():
        rows = await connection.fetch(query, quoted)
        found[kind] = [tuple(_neutral(value, quoted, schema) for value in row) for row in rows]
    return found


async def leftovers(connection: Any, schema: str) -> list[str]:
    """The names of all objects in a schema, of any kind."""
    rows = await connection.fetch(
        """select relname::text as name from pg_class where relnamespace = quote_ident($1)::regnamespace
           union all select proname::text from pg_proc where pronamespace = quote_ident($1)::regnamespace
           union all select typname::text from pg_type where typnamespace = quote_ident($1)::regnamespace""",
        schema,
    )
    return sorted(row["name"] for row in rows)


def _neutral(value: object, quoted: str, schema: str) -> object:
    if isinstance(value, list):
        return [_neutral(one, quoted, schema) for one in value]
    if not isinstance(value, str):
        return value
    for written in dict.fromkeys([f'"{schema}"', quoted]):
        value = value.replace(f"{written}.", "$schema.")
    return value
