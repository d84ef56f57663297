"""Mutants of registrations."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import Change, number
from tests.interleavings.scenarios import registrations

_RENEWS = f"{number('register', 'renews')}::boolean"
_LOST = "the code of the worker that started last is not registered"

MUTANTS = [
    Mutant(
        name="a worker does not look whether another one was the first to register the machine",
        scenario=registrations.first_starts(),
        reason=_LOST,
        changes=[Change("announce", "coalesce(bool_or(true), false) as differs", "false as differs")],
    ),
    Mutant(
        name="registrations are not locked before the live workers are read",
        scenario=registrations.start_and_renewal(),
        reason=_LOST,
        changes=[Change("lock_registered", "for no key update", "")],
    ),
    Mutant(
        name="a renewal replaces the registration of a live worker",
        scenario=registrations.start_and_renewal(),
        reason=_LOST,
        changes=[Change("register", f"({_RENEWS} or ", f"(not {_RENEWS} and ")],
    ),
]
