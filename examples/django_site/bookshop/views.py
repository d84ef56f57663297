from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from gen_durable.contrib.django import DjangoClient

from .machines import Checkout
from .models import Order

durable = DjangoClient()


@csrf_exempt
@transaction.atomic
def place(request: HttpRequest) -> JsonResponse:
    order = Order.objects.create(title=request.POST["title"])
    durable.insert(Checkout, order.pk, correlation_key=f"order:{order.pk}")  # in the same transaction
    if not order.title:
        raise ValueError("the title is empty")
    return JsonResponse({"number": order.pk})


@csrf_exempt
@transaction.atomic
def pay(request: HttpRequest, number: int) -> JsonResponse:
    Order.objects.filter(pk=number).update(status="paid")
    durable.signal(f"order:{number}", Checkout.paid, dedup_key="paid")
    return JsonResponse({"number": number})
