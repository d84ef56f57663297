from django.db import models


class Order(models.Model):
    title = models.TextField()
    status = models.TextField(default="placed")
