"""What must hold when the shop is closed and all is done, whatever was killed meanwhile. Read from the database alone.

=========  =============================================================================================================
Money      Of each order: captured - refunded = its price if it is shipped, else 0. The account has the sum.
Stock      Of each item: initial = free + reserved + sold; nothing is reserved; sold is what shipped orders took.
States     Each order is in one final state. Orders of the partner that refuses are never shipped, those of the good one
           never given up.
Once       The history has each step of each order once, the partner has one parcel for each shipped order.
Order      The history of each order has its steps in their order, and they are a way that leads to its state.
Messages   Nothing waits in the outbox, nothing is dead, and no step is told of an order that does not exist.
=========  =============================================================================================================
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session

from shop.partner import CLOSED
from shop.schema import Account, Capture, Item, Order, Parcel, Refund, State, Step

#: The ways of an order, by its final state and whether money was captured.
WAYS = {
    (State.SHIPPED, True): ["placed", "paid", "shipped"],
    (State.REFUNDED, True): ["placed", "paid", "refunded"],
    (State.CANCELLED, False): ["placed", "cancelled"],
    (State.CANCELLED, True): ["placed", "cancelled", "refunded"],
}


@dataclass(slots=True, frozen=True)
class Ledger:
    """The sums of a closed shop."""

    states: dict[str, int]
    captured_cents: int
    refunded_cents: int
    account_cents: int
    free: int
    reserved: int
    sold: int
    initial: int
    #: What does not hold.
    faults: tuple[str, ...]

    def __str__(self) -> str:
        orders = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        lines = [
            f"orders    {sum(self.states.values())}: {orders}",
            f"money     {_money(self.captured_cents)} captured - {_money(self.refunded_cents)} refunded"
            f" = {_money(self.account_cents)} in the account",
            f"stock     {self.initial} = {self.free} free + {self.reserved} reserved + {self.sold} sold",
            *self.faults,
            "the books do not balance" if self.faults else "the books balance",
        ]
        return "\n".join(lines)


def unfinished(engine: Engine) -> str:
    """What is still under way, as a sentence; empty when all is done."""
    with Session(engine) as session:
        open_orders = session.scalar(
            select(func.count()).select_from(Order).where(Order.state.in_([State.PLACED, State.PAID]))
        )
        # Captured, and neither the order's payment nor its refund has followed.
        booked = select(Refund.order_id)
        late = session.scalar(
            select(func.count())
            .select_from(Capture)
            .join(Order)
            .where(Order.state == State.CANCELLED, Order.id.not_in(booked))
        )
        waiting = session.scalar(text("SELECT COUNT(*) FROM ternmq_outbox WHERE state = 0"))
        told = session.scalar(select(func.coalesce(func.sum(Order.steps), 0)))
        known = session.scalar(select(func.count()).select_from(Step))
    assert told is not None
    assert known is not None
    untold = max(0, told - known)
    found = {
        "open orders": open_orders,
        "late payments": late,
        "messages in the outbox": waiting,
        "untold steps": untold,
    }
    return ", ".join(f"{count} {what}" for what, count in found.items() if count)


def audit(engine: Engine) -> Ledger:
    """Read everything, and say what does not hold."""
    with Session(engine) as session:
        orders = session.scalars(select(Order).order_by(Order.id)).all()
        items = session.scalars(select(Item).order_by(Item.name)).all()
        account_cents = session.get_one(Account, "shop").cents
        captured = {capture.order_id: capture.cents for capture in session.scalars(select(Capture))}
        refunded: Counter[str] = Counter()
        for refund in session.scalars(select(Refund)):
            refunded[refund.order_id] += refund.cents
        parcels = set(session.scalars(select(Parcel.order_id)))
        history: dict[str, list[Step]] = defaultdict(list)
        for step in session.scalars(select(Step).order_by(Step.id)):
            history[step.order_id].append(step)
        left = session.scalar(text("SELECT COUNT(*) FROM ternmq_outbox"))
    faults: list[str] = [f"{left} messages are left in the outbox"] if left else []
    sold: Counter[str] = Counter()
    for order in orders:
        paid = captured.get(order.id, 0)
        is_shipped = order.state == State.SHIPPED
        if is_shipped:
            sold[order.item] += order.quantity
        faults += _faults_of(order, paid, refunded[order.id], history.pop(order.id, []), order.id in parcels)
    faults += [f"order {order_id}: steps are told, and it does not exist" for order_id in history]
    kept = sum(order.cents for order in orders if order.state == State.SHIPPED)
    if kept != account_cents:
        faults.append(f"the account has {_money(account_cents)}, and shipped orders cost {_money(kept)}")
    for item in items:
        if item.initial != item.free + item.reserved + item.sold:
            faults.append(
                f"stock of {item.name}: {item.initial} is not {item.free} free + {item.reserved} reserved"
                f" + {item.sold} sold"
            )
        if item.reserved or item.sold != sold[item.name] or item.free < 0:
            faults.append(
                f"stock of {item.name}: {item.free} free, {item.reserved} reserved, {item.sold} sold, and shipped "
                f"orders took {sold[item.name]}"
            )
    return Ledger(
        states=dict(Counter(order.state for order in orders)),
        captured_cents=sum(captured.values()),
        refunded_cents=sum(refunded.values()),
        account_cents=account_cents,
        free=sum(item.free for item in items),
        reserved=sum(item.reserved for item in items),
        sold=sum(item.sold for item in items),
        initial=sum(item.initial for item in items),
        faults=tuple(faults),
    )


def _faults_of(order: Order, captured: int, refunded: int, history: list[Step], has_parcel: bool) -> list[str]:
    is_shipped = order.state == State.SHIPPED
    faults = []
    expected = order.cents if is_shipped else 0
    if captured - refunded != expected:
        faults.append(f"{captured} cents captured - {refunded} refunded is not {expected}")
    if has_parcel is not is_shipped:
        faults.append("a parcel that is not shipped" if has_parcel else "shipped without a parcel")
    if is_shipped and order.partner == CLOSED:
        faults.append("shipped by a partner that refuses")
    if order.state == State.REFUNDED and order.partner != CLOSED:
        faults.append("given up, and its partner refuses nothing")
    numbers = [step.number for step in history]
    if numbers != list(range(1, order.steps + 1)):
        faults.append(f"the history has the steps {numbers} of {order.steps}")
    way = WAYS.get((State(order.state), bool(captured)))
    steps = [step.step for step in history]
    if way is None:
        faults.append("not in a final state")
    elif steps != way:
        faults.append(f"the steps {steps} instead of {way}")
    return [f"order {order.id} ({order.state}): {fault}" for fault in faults]


def _money(cents: int) -> str:
    return f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02}"
