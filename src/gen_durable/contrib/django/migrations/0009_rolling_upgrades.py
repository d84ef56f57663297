from typing import ClassVar

from django.db import migrations

from ..increments import Increment


class Migration(migrations.Migration):
    dependencies: ClassVar = [("gen_durable", "0008_audit")]
    operations: ClassVar = [Increment(9)]
