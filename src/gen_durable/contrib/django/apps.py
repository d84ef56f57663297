"""The app configuration."""

from __future__ import annotations

from django.apps import AppConfig

from . import conf

__all__ = ["DurableConfig"]


class DurableConfig(AppConfig):
    """The app config of `gen_durable.contrib.django`."""

    name = "gen_durable.contrib.django"
    label = "gen_durable"
    verbose_name = "Durable machines"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Check `GEN_DURABLE` when the project starts."""
        conf.read()
