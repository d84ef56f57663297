"""A bookshop.

python manage.py migrate
python manage.py runserver
python manage.py gen_durable worker
"""

import os
from datetime import timedelta

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("PGDATABASE", "bookshop"),
        "USER": os.environ.get("PGUSER", ""),
        "PASSWORD": os.environ.get("PGPASSWORD", ""),
        "HOST": os.environ.get("PGHOST", ""),
        "PORT": os.environ.get("PGPORT", ""),
    }
}
GEN_DURABLE = {
    "WORKER": "bookshop.machines",  # default target of `manage.py gen_durable worker`
    "LEASE": timedelta(seconds=90),
}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "gen_durable.contrib.django",
    "bookshop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "bookshop.urls"
SECRET_KEY = os.environ.get("SECRET_KEY", "insecure: for development only")
ALLOWED_HOSTS = ["*"]
STATIC_URL = "static/"
USE_TZ = True
