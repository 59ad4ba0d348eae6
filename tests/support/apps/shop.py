"""A small shop, for looking at the page: tasks that fail in three ways, one that hangs, one that nobody runs."""

from __future__ import annotations

from farm import app, pass_gate  # type: ignore[import-not-found]  # the worker stands beside it

app.conf.update(
    task_ignore_result=False,
    task_routes={
        "shop.charge": {"queue": "billing"},
        "shop.send_mail": {"queue": "mail"},
        "shop.sync_stock": {"queue": "stock"},
        "shop.monthly_report": {"queue": "reports"},
        "shop.*": {"queue": "orders"},
    },
    beat_schedule={
        "reminders": {"task": "shop.send_mail", "schedule": 2, "args": ("reminder", "all@example.org")},
        "clean carts": {"task": "shop.clean_carts", "schedule": 3},
    },
)


class CardDeclined(Exception):
    """A customer's card was declined."""


@app.task(name="shop.charge")
def charge(order: int, *, card_token: str) -> str:
    """Fails for one order in ten, in three ways."""
    match order % 30:
        case 9:
            raise CardDeclined(f"order {order}: the bank said no")
        case 19:
            raise ConnectionError(f"order {order}: payments.example.org does not answer")
        case 29:
            customers: dict[str, str] = {}
            return customers["nobody"]
    return f"paid {order}"


@app.task(name="shop.send_mail")
def send_mail(template: str, to: str) -> str:
    return f"{template} to {to}"


@app.task(name="shop.clean_carts")
def clean_carts() -> int:
    return 3


@app.task(name="shop.sync_stock")
def sync_stock(gate: str) -> str:
    """Hangs until the file exists."""
    pass_gate(gate)
    return "in step"


@app.task(name="shop.pack")
def pack(order: int) -> int:
    return order


@app.task(name="shop.wrap")
def wrap(order: int) -> int:
    return order


@app.task(name="shop.ship")
def ship(orders: list[int]) -> str:
    return f"shipped {sorted(orders)}"


@app.task(name="shop.monthly_report")
def monthly_report(month: str) -> str:
    return month
