"""Parse and describe DSNs. Messages show parsed fields only, never the text, which may contain a password."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final
from urllib.parse import quote, unquote

from ..errors import UsageError

__all__ = [
    "DsnError",
    "described",
    "fields_of",
    "hosts_of",
    "redacted",
    "rotated",
    "split_query",
    "without_password",
]

_URI: Final = re.compile(
    r"postgres(?:ql)?://(?P<authority>[^/?#\s]*)(?:/(?P<dbname>[^/?#@\s]*))?(?:\?(?P<query>[^#]*))?"
)
_HOST: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[\w.~%-]*)(?::(?P<port>\d{1,5})?)?")
_SECRET: Final = re.compile(r"passw(or)?d|secret|token|scram", re.IGNORECASE)
# Users, databases and hosts that are shown. A user with a colon may be `user:password`.
_PLAIN: Final = re.compile(r"[\w.$+-]+(@[\w.-]+)?")
_PLAIN_HOST: Final = re.compile(r"[\w.:~-]*|/[\w./+-]*")
_ITEM: Final = re.compile(
    r"\s*(?P<key>\w+)\s*=\s*(?:'(?P<quoted>(?:[^'\\]|\\.)*)'(?=\s|$)|(?P<bare>(?:[^\s\\']|\\.)(?:[^\s\\]|\\.)*)?(?=\s|$))",
    re.DOTALL,
)
# The hosts of a URI: between the last "@" of the authority and the path.
_HOSTS: Final = re.compile(
    r"(?P<before>postgres(?:ql)?://(?:[^/?#]*@)?)(?P<hosts>[^/?#@]*)(?P<after>.*)", re.DOTALL
)
_SEPARATORS: Final = re.compile(r"[:/@?#&=\s'\"\\,]+")
_QUOTED: Final = re.compile(r"\"([^\"]*)\"|'([^']*)'")
# Shorter pieces of a password are part of too many words.
_SHORTEST_PIECE: Final = 3


class DsnError(UsageError):
    """The text is not a DSN. The message does not quote it."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"invalid DSN: {reason}", "write it as postgresql://user:password@host:5432/database"
        )
        self.reason = reason


def fields_of(dsn: str) -> Mapping[str, str]:
    """Parse a URI or a list of key=value pairs; return the parameters under their libpq names.

    Raises:
        DsnError: the text is neither.
    """
    return dict(_uri(dsn)) if "://" in dsn else dict(_pairs(dsn))


def described(dsn: str) -> str:
    """Describe a DSN: user, host, port and database, as far as they contain plain characters only."""
    try:
        fields = fields_of(dsn)
    except DsnError:
        return "an invalid DSN"
    plain = {
        name: fields[name] for name in ("user", "dbname", "service") if _PLAIN.fullmatch(fields.get(name, ""))
    }
    hosts, ports = fields.get("host", "").split(","), fields.get("port", "").split(",")
    if not all(map(_PLAIN_HOST.fullmatch, hosts)) or not all(
        re.fullmatch(r"\d{0,5}", port) for port in ports
    ):
        hosts, ports = [""], [""]
    ports = ports * len(hosts) if len(ports) == 1 else ports
    user = quote(plain["user"], safe="$+") + "@" if "user" in plain else ""
    database = f"/{plain['dbname']}" if "dbname" in plain else ""
    if any(host.startswith("/") for host in hosts):
        return f"postgresql://{user}{database or '/'}?host={','.join(hosts)}{_port(ports[0], '&port=')}"
    where = ",".join(
        f"{f'[{host}]' if ':' in host else host}{_port(port, ':')}"
        for host, port in zip(hosts, ports, strict=False)
    )
    service = f"?service={plain['service']}" if "service" in plain else ""
    return f"postgresql://{user}{where}{database}{service}"


def redacted(text: str, dsn: str) -> str:
    """Redact secrets of the DSN in an error text of a driver."""
    try:
        fields = fields_of(dsn)
    except DsnError as error:
        return error.reason
    secrets = {value for name, value in fields.items() if _SECRET.search(name)}
    known = {value for name, value in fields.items() if not _SECRET.search(name)}
    known |= {part for value in known for part in value.split(",")}

    def hide(found: re.Match[str]) -> str:
        quoted = found[1] or found[2] or ""
        is_of_dsn = quoted in dsn or quoted in unquote(dsn) or any(quoted in secret for secret in secrets)
        return found[0] if not quoted or quoted in known or not is_of_dsn else '"***"'

    for secret in secrets:
        for piece in (secret, quote(secret, safe=""), *_SEPARATORS.split(secret)):
            if len(piece) >= _SHORTEST_PIECE:
                text = text.replace(piece, "***")
    return _QUOTED.sub(hide, text)


def without_password(dsn: str) -> str:
    """The DSN without its secrets; usable with PGPASSWORD or ~/.pgpass.

    Raises:
        DsnError: the text is not a DSN.
    """
    fields = fields_of(dsn)
    if "://" not in dsn:
        return " ".join(
            f"{name}={_value(value)}" for name, value in fields.items() if not _SECRET.search(name)
        )
    start, _, query = dsn.partition("?")
    scheme, _, rest = start.partition("//")
    authority, slash, path = rest.partition("/")
    user, at, hosts = authority.rpartition("@")
    items = [item for item in query.split("&") if item and not _SECRET.search(item.partition("=")[0])]
    query = f"?{'&'.join(items)}" if items else ""
    # An encoded colon was probably meant as the one before the password.
    user = re.split(":|%3A", user, maxsplit=1, flags=re.IGNORECASE)[0]
    return f"{scheme}//{user}{at}{hosts}{slash}{path}{query}"


def split_query(dsn: str, names: Collection[str]) -> tuple[str, Mapping[str, str]]:
    """Split a URI: without these query parameters, and their values."""
    start, _, query = dsn.partition("?")
    items = [item.partition("=") for item in query.split("&") if item]
    rest = "&".join("".join(item) for item in items if item[0] not in names)
    return f"{start}{'?' if rest else ''}{rest}", {name: value for name, _, value in items if name in names}


def hosts_of(dsn: str) -> int:
    """Count the hosts of a URI."""
    found = _HOSTS.fullmatch(dsn)
    return 1 if found is None else found["hosts"].count(",") + 1


def rotated(dsn: str, times: int) -> str:
    """Move the first host of the DSN to the end, this many times."""
    found = _HOSTS.fullmatch(dsn)
    if found is None:
        return dsn
    hosts = found["hosts"].split(",")
    times %= len(hosts)
    return found["before"] + ",".join(hosts[times:] + hosts[:times]) + found["after"]


def _uri(dsn: str) -> Iterator[tuple[str, str]]:
    found = _URI.fullmatch(dsn.strip())
    if found is None:
        if re.match(r"postgres(ql)?://", dsn.strip()) is None:
            raise DsnError("a URI must begin with postgresql://")
        raise DsnError("percent-encode the characters / ? # @ and spaces in user and password")
    account, _, hosts = found["authority"].rpartition("@")
    user, _, password = account.partition(":")
    addresses = [_HOST.fullmatch(host) for host in hosts.split(",")]
    if not all(addresses):
        raise DsnError("the host, or the port after its colon, is not valid")
    yield from _given(
        user=user,
        password=password,
        host=",".join(address["host"].strip("[]") for address in addresses if address),
        port=",".join(address["port"] or "" for address in addresses if address).strip(","),
        dbname=found["dbname"] or "",
    )
    for item in (found["query"] or "").split("&"):
        name, equals, value = item.partition("=")
        if item and not equals:
            raise DsnError("a parameter after the question mark has no value")
        yield from _given(**{unquote(name): value})


def _given(**fields: str) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if name and value:
            yield name, unquote(value)


def _pairs(dsn: str) -> Iterator[tuple[str, str]]:
    place = 0
    while dsn[place:].strip():
        item = _ITEM.match(dsn, place)
        if item is None:
            raise DsnError(
                "it is neither a URI nor a list of key=value pairs; quote values with spaces: 'a b'"
            )
        yield item["key"], re.sub(r"\\(.)", r"\1", item["quoted"] or item["bare"] or "", flags=re.DOTALL)
        place = item.end()


def _port(port: str, before: str) -> str:
    return f"{before}{port}" if port else ""


def _value(value: str) -> str:
    if re.fullmatch(r"[^\s'\\]+", value):
        return value
    return "'{}'".format(value.replace("\\", "\\\\").replace("'", "\\'"))
