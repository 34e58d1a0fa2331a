//! The way in of messages with a delivery time (`delay.timer`): what the properties ask for, and their text as it is
//! stored.

use pyo3::prelude::*;
use pyo3::types::PyString;

use memchr::memchr;

use crate::guard::or_doubt;

/// The properties that ask for a time, in the order in which they count, and the unit in ms of the relative ones.
const WISHES: [(&[u8], Option<i64>); 4] = [
    (b"TIMER_DELAY_SEC", Some(1_000)),
    (b"TIMER_DELAY_MS", Some(1)),
    (b"TIMER_DELIVER_MS", None),
    (b"__STARTDELIVERTIME", None),
];
/// Properties with which there is more to decide.
const UNUSUAL: [&[u8]; 5] = [
    b"TIMER_OUT_MS",
    b"REAL_TOPIC",
    b"REAL_QID",
    b"TIMER_ROLL_TIMES",
    b"DELAY",
];
const DIGITS_MAX: usize = 18;
pub const SLOT_MS: i64 = 1_000;

/// Which property asks for a time, and its value in ms; None if none does, or the Python version must look.
pub fn wish(properties: &[u8]) -> Option<(usize, i64)> {
    let mut found = None;
    let mut rest = properties;
    while !rest.is_empty() {
        let end = memchr(2, rest).unwrap_or(rest.len());
        let pair = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        // All names that matter begin with one of these.
        if !matches!(pair.first(), Some(b'T' | b'_' | b'R' | b'D')) {
            continue;
        }
        let Some(name_end) = memchr(1, pair) else {
            continue;
        };
        let (name, value) = (&pair[..name_end], &pair[name_end + 1..]);
        if UNUSUAL.contains(&name) {
            return None;
        }
        if let Some(number) = WISHES.iter().position(|(wish, _)| *wish == name) {
            if found.is_some() {
                return None;
            }
            found = Some((number, value));
        }
    }
    let (number, digits) = found?;
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits
        .iter()
        .fold(0i64, |value, digit| value * 10 + i64::from(digit - b'0'));
    Some((number, value.checked_mul(WISHES[number].1.unwrap_or(1))?))
}

/// The time that is asked for by property `number`, of a message that comes at `now_ms`.
pub fn due(number: usize, ms: i64, now_ms: i64) -> Option<i64> {
    match WISHES[number].1 {
        Some(_) => now_ms.checked_add(ms),
        None => Some(ms),
    }
}

/// The slot of a message that is to wait; None if it is due already, or asks for too much.
pub fn slot(number: usize, ms: i64, now_ms: i64, max_delay_ms: i64) -> Option<i64> {
    let due_ms = due(number, ms, now_ms)?;
    let delay_ms = due_ms.checked_sub(now_ms)?;
    if delay_ms <= 0 || delay_ms > max_delay_ms {
        return None;
    }
    Some((due_ms - 1).div_euclid(SLOT_MS) * SLOT_MS)
}

/// The properties that tell where a message waits, and for which queue.
pub fn place_text(slot_ms: i64, topic: &str, queue_id: i64) -> String {
    format!("TIMER_OUT_MS\x01{slot_ms}\x02REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02")
}

/// The text, slot and wish of a message that is to wait. See `ternmq/_native.pyi`.
#[pyfunction]
pub fn timed<'py>(
    py: Python<'py>,
    properties: &Bound<'py, PyString>,
    topic: &Bound<'py, PyString>,
    queue_id: i64,
    now_ms: i64,
    max_delay_ms: i64,
) -> Option<(Bound<'py, PyString>, i64, usize, i64)> {
    or_doubt(
        || None,
        || stored(py, properties, topic, queue_id, now_ms, max_delay_ms),
    )
}

fn stored<'py>(
    py: Python<'py>,
    properties: &Bound<'py, PyString>,
    topic: &Bound<'py, PyString>,
    queue_id: i64,
    now_ms: i64,
    max_delay_ms: i64,
) -> Option<(Bound<'py, PyString>, i64, usize, i64)> {
    // A text with half a surrogate pair has no UTF-8.
    let (text, topic) = (properties.to_cow().ok()?, topic.to_cow().ok()?);
    let (number, ms) = wish(text.as_bytes())?;
    let slot_ms = slot(number, ms, now_ms, max_delay_ms)?;
    let end = if text.ends_with('\x02') { "" } else { "\x02" };
    let place = place_text(slot_ms, &topic, queue_id);
    let stored = format!("{text}{end}{place}");
    Some((PyString::new(py, &stored), slot_ms, number, ms))
}

#[cfg(test)]
mod tests {
    use super::wish;

    #[test]
    fn one_property_asks_for_a_time() {
        assert_eq!(
            wish(b"A\x01b\x02TIMER_DELAY_SEC\x0190\x02"),
            Some((0, 90_000))
        );
        assert_eq!(wish(b"TIMER_DELIVER_MS\x0117"), Some((2, 17)));
        assert_eq!(
            wish(b"__STARTDELIVERTIME\x0117\x02T\x02_\x02"),
            Some((3, 17))
        );
        assert_eq!(wish(b"XTIMER_DELAY_MS\x0117\x02"), None);
        assert_eq!(wish(b""), None);
    }

    #[test]
    fn what_is_unusual_is_left_to_python() {
        for text in [
            &b"TIMER_DELAY_MS\x01\x02"[..],
            b"TIMER_DELAY_MS\x01-1\x02",
            b"TIMER_DELAY_MS\x011\x02TIMER_DELAY_MS\x012\x02",
            b"TIMER_DELAY_MS\x011\x02TIMER_DELAY_SEC\x012\x02",
            b"TIMER_DELAY_MS\x011\x02DELAY\x013\x02",
            b"REAL_TOPIC\x01t\x02TIMER_DELAY_MS\x011\x02",
            b"TIMER_DELAY_MS\x011\x02TIMER_OUT_MS\x013\x02",
            b"TIMER_DELAY_SEC\x01999999999999999999\x02",
        ] {
            assert_eq!(wish(text), None);
        }
    }
}
