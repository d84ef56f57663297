"""Hide secrets in states, results and payloads before they leave the process."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from .problems import ProblemError

__all__ = [
    "HIDDEN",
    "Redact",
    "decoded",
    "hide_secrets",
    "is_secret",
    "restored",
    "shown",
    "without_defaults",
]

HIDDEN: Final = "[hidden]"
"""What stands for a value that is not shown."""

Redact: TypeAlias = Callable[[Any], Any]
"""A function of a JSON value that returns what the dashboard shows of it."""

# Of keys in lower case whose words are separated by one underscore: `X-API-Key` is x_api_key.
_SECRET: Final = re.compile(
    r"passw(or)?d|passphrase|passcode|(?<!com)(?<!by)pass$|^pwd|pwd$|secret|token|jwt|credential|authorization|cookie|"
    r"(api|access|private|secret|signing|encryption|ssh)_?keys?(_|$)|(^|_)bearer(_|$)|session_?(id|key)s?$|"
    r"credit_?card|card_?(no|number)s?$|(^|_)pan$|cvc|cvv|iban|(^|_)ssn|ssn$|(^|_)t?otp(_|$)|(^|_)pin(_?(code|number|hash))?$"
)
# Numbers of tokens, such as max_tokens and token_count; token_type is Bearer.
_COUNT: Final = re.compile(
    r"(^|_)(max|min|total|prompt|completion|input|output|reasoning|cached|used|num|remaining)_tokens$|"
    r"^tokens?_(count|limit|budget|usage|used|type|per_\w+|left)$"
)
_NEW_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATOR: Final = re.compile(r"[\W_]+")

# Keywords of JSON Schema whose keys are names of users, such as "default".
_BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs"})


@lru_cache(maxsize=10_000)
def is_secret(key: str) -> bool:
    """Whether the values of a key are hidden."""
    words = _SEPARATOR.sub("_", _NEW_WORD.sub("_", key)).strip("_").lower()
    return _SECRET.search(words) is not None and _COUNT.search(words) is None


def hide_secrets(value: Any) -> Any:
    """Replace the values of keys like `password` and `api_key`, at any depth."""
    # Without recursion: values may be nested more deeply than calls.
    found = [value]
    places: list[dict[str, Any] | list[Any]] = [found]
    while places:
        place: Any = places.pop()
        for key, inner in place.items() if isinstance(place, dict) else enumerate(place):
            if isinstance(key, str) and inner is not None and is_secret(key) and not _is_count(key, inner):
                place[key] = HIDDEN
            elif isinstance(inner, dict | list):
                place[key] = inner.copy()
                places.append(place[key])
    return found[0]


def _is_count(key: str, value: Any) -> bool:
    """Whether a value is how many tokens there are."""
    return key.lower() == "tokens" and isinstance(value, int | float) and not isinstance(value, bool)


def shown(redact: Redact, value: Any) -> Any:
    """Return what the dashboard shows of a stored value.

    Reads return JSON that cannot be decoded, such as one that is nested too deeply, as its text. The secrets in it are
    unknown, so all of it is hidden.
    """
    try:
        return HIDDEN if _is_undecoded(value) else redact(value)
    except RecursionError:
        return HIDDEN


def _is_undecoded(value: Any) -> bool:
    if not isinstance(value, str) or not value.startswith(("{", "[")):
        return False
    try:
        msgspec.json.decode(value)
    except (RecursionError, msgspec.ValidationError):  # too deep, or a number that is too long
        return True
    except msgspec.DecodeError:
        pass  # a text
    return False


def without_defaults(schema: Any) -> Any:
    """Remove the default values from a JSON Schema: one of them may be a secret."""
    if isinstance(schema, dict):
        return {
            key: {name: without_defaults(each) for name, each in inner.items()}
            if key in _BY_NAME and isinstance(inner, dict)
            else without_defaults(inner)
            for key, inner in schema.items()
            if key != "default"
        }
    if isinstance(schema, list):
        return [without_defaults(inner) for inner in schema]
    return schema


def decoded(text: str, what: str) -> Any:
    """Read JSON text that a user has entered.

    Raises:
        ProblemError: it is not JSON.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProblemError(
            422, "This is not JSON", f"{what}: {error}", facts={"field": what.removeprefix("the ")}
        ) from None


def restored(edited: Any, stored: Any, redact: Redact) -> Any:
    """Put the stored values back where an edited value still has what was shown instead of them.

    Raises:
        ProblemError: a value is hidden, and it is not known which one it is.
    """
    seen = shown(redact, stored)
    if _is_undecoded(stored):
        stored = seen = None
    return _restored(edited, stored, seen)


def _restored(edited: Any, stored: Any, seen: Any) -> Any:
    if isinstance(edited, dict):
        is_same = isinstance(stored, dict) and isinstance(seen, dict)
        before, after = (stored, seen) if is_same else ({}, {})
        unseen = {key: value for key, value in before.items() if key not in after}
        return unseen | {
            key: _restored(value, before.get(key), after.get(key)) for key, value in edited.items()
        }
    if isinstance(edited, list):
        is_same = isinstance(stored, list) and isinstance(seen, list) and len(stored) == len(seen)
        return _restored_items(edited, stored, seen) if is_same else _restored_items(edited, [], [])
    if seen != stored and (edited, type(edited)) == (seen, type(seen)):
        return stored
    if edited == HIDDEN and stored != HIDDEN:
        raise ProblemError(
            422,
            "A hidden value has no stored one",
            f"{HIDDEN} stands where no value is stored, or in a list whose items were moved or removed.",
            "Enter the value.",
        )
    return edited


def _restored_items(edited: Sequence[Any], stored: Sequence[Any], seen: Sequence[Any]) -> list[Any]:
    """Restore the items of a list: each is the stored one that looked the same, or the one at its place."""
    texts, shown_texts = _texts(edited), _texts(seen)
    is_as_long = len(edited) == len(seen)
    found = []
    for place, (item, text) in enumerate(zip(edited, texts, strict=True)):
        same = [one for one, seen_text in zip(stored, shown_texts, strict=True) if seen_text == text]
        if is_as_long and (shown_texts[place] == text or shown_texts[place] not in texts):
            found.append(_restored(item, stored[place], seen[place]))
        elif same and all(one == same[0] for one in same):
            found.append(same[0])
        else:
            found.append(_restored(item, None, None))
    return found


def _texts(values: Sequence[Any]) -> list[bytes]:
    return [msgspec.json.encode(value, order="sorted") for value in values]
