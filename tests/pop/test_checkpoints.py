"""What is in flight, and how far it lets a group go (F9)."""

from __future__ import annotations

from ternmq.pop.checkpoints import CheckPoint, CheckPoints, PopWindow

KEY = ("group", "orders", 0)


def check_point(table: CheckPoints, start: int, end: int, *, pop_time_ms: int = 1000) -> CheckPoint:
    """Messages ``start`` to ``end`` (without) were popped."""
    made = CheckPoint(
        table.queue(KEY),
        start_offset=start,
        pop_time_ms=pop_time_ms,
        invisible_ms=60_000,
        offsets=range(start, end),
        revive_queue_id=0,
    )
    table.popped(made, end)
    return made


def test_a_window_passes_steps_in_their_order_only() -> None:
    """F9"""
    window = PopWindow()
    first, second, third = (window.add(end) for end in (10, 20, 30))

    second.is_settled = True
    assert window.advance(0) is None
    first.is_settled = True
    assert 20 == window.advance(0)
    third.is_settled = True
    assert 30 == window.advance(0)
    assert (0, None) == (len(window), window.waits_for)


def test_a_step_that_rests_on_a_record_waits_for_the_disk() -> None:
    """F9: the largest of several."""
    window = PopWindow()
    step = window.add(10)
    for end_offset in (500, 700, 600):
        step.rest_on(end_offset)
    before = window.waits_for
    step.is_settled = True

    assert before is None
    assert 700 == window.waits_for
    assert window.advance(699) is None
    assert 10 == window.advance(700)


def test_pops_go_on_at_once_whatever_is_acked() -> None:
    """F9: and after a pull in between from where that was."""
    table = CheckPoints()
    assert 3 == table.next_offset(KEY, 3)
    check_point(table, 3, 8)

    assert 8 == table.next_offset(KEY, 3)
    assert 12 == table.next_offset(KEY, 12)


def test_acks_are_bits_of_offsets_with_gaps() -> None:
    """F9: a filter lets not all through."""
    table = CheckPoints()
    made = CheckPoint(
        table.queue(KEY), start_offset=5, pop_time_ms=1, invisible_ms=2, offsets=[5, 9, 30], revive_queue_id=0
    )

    made.acked |= made.bits([9, 6])

    assert [True, False, False] == [made.holds(offset) for offset in (5, 9, 6)]
    assert ([5, 30], False, 3) == (made.open_offsets(), made.is_acked, made.due_ms)


def test_what_has_ended_is_not_found_and_an_idle_queue_is_forgotten() -> None:
    """F9"""
    table = CheckPoints()
    made = check_point(table, 0, 5)
    assert (made, 1) == (table.find(KEY, 0, 1000), len(table))

    table.end(made)
    table.queue(KEY).window.advance(0)
    table.forget_if_idle(table.queue(KEY))

    assert (None, 0, []) == (table.find(KEY, 0, 1000), len(table), table.queue_keys())


def test_a_moved_group_pops_from_its_offset_while_old_pops_are_still_in_flight() -> None:
    """F9, D4: and what becomes of those moves nothing."""
    table = CheckPoints()
    made = check_point(table, 10, 20)

    table.detach(KEY)

    assert 3 == table.next_offset(KEY, 3)
    again = check_point(table, 3, 10, pop_time_ms=2000)
    table.end(made)
    table.end(again)
    assert 10 == table.queue(KEY).window.advance(0)


def test_two_check_points_of_one_name_are_one() -> None:
    """F9: a reset, and two pops of one offset within a millisecond."""
    table = CheckPoints()
    old = check_point(table, 0, 5)
    table.detach(KEY)

    new = check_point(table, 0, 5)

    assert (True, new, 1) == (old.is_over, table.find(KEY, 0, 1000), len(table))
