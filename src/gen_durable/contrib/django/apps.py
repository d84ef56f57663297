"""The app."""

from __future__ import annotations

from django.apps import AppConfig

from . import conf

__all__ = ["DurableConfig"]


class DurableConfig(AppConfig):
    """`gen_durable.contrib.django` in `INSTALLED_APPS`."""

    name = "gen_durable.contrib.django"
    label = "gen_durable"
    verbose_name = "Durable machines"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """What is wrong with `GEN_DURABLE` is said when the project starts, not when the first order comes."""
        conf.read()
