from typing import ClassVar

from django.db import migrations

from ..increments import Increment, Views


class Migration(migrations.Migration):
    initial = True
    operations: ClassVar = [Increment(1), Views()]
