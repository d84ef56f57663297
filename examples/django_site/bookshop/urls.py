from django.contrib import admin
from django.urls import path

from . import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/", views.place),
    path("orders/<int:number>/pay/", views.pay),
]
