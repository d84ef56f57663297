"""Django: a client on Django's connection, migrations of the tables, and read-only pages in the admin.

    INSTALLED_APPS = [..., "gen_durable.contrib.django"]
    GEN_DURABLE = {"WORKER": "shop.machines"}    # settings in capitals; DATABASE, if it is not "default"

    durable = DjangoClient()
    with transaction.atomic():
        order = Order.objects.create(...)
        durable.insert(Checkout, order.pk)       # commits with the block

`manage.py migrate` creates the tables; `manage.py gen_durable worker` runs a worker. Needs the extra `django`.
"""

from __future__ import annotations

try:
    import django as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "gen_durable.contrib.django needs Django: pip install 'gen_durable[django]'", name="django"
    ) from error

from .client import DjangoClient, fresh_connections
from .conf import database_dsn

__all__ = ["DjangoClient", "database_dsn", "fresh_connections"]
