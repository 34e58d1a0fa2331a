//! Records of the timer topic, many at a time, as the files of their hours have them (`delay.schedule_log`).

use std::collections::HashMap;

use memchr::{memmem, memrchr};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::guard::or_doubt;
use crate::page::readable;
use crate::properties::java_hash;
use crate::record::{get_i32, get_i64, plain_parts};
use crate::timer::{due, wish, SLOT_MS};

const QUEUE_ENTRY_BYTES: usize = 20;
const HOUR_MS: i64 = 3_600_000;
const HOSTS_V6: i32 = 0x10 | 0x20;
const KIND_WAITS: u16 = 1;
/// Digits of a slot as `delay.due` reads it in place.
const SLOT_DIGITS_MAX: usize = 14;
const OUT: &[u8] = b"\x02TIMER_OUT_MS\x01";
const REAL_TOPIC: &[u8] = b"\x02REAL_TOPIC\x01";
const REAL_QUEUE: &[u8] = b"\x02REAL_QID\x01";
/// Names with which a record is of another kind, and Python looks.
const OTHER_KINDS: [&[u8]; 2] = [b"TIMER_DEL_UNIQKEY", b"TIMER_ROLL_TIMES"];

/// What a waiting record says.
#[derive(Debug, PartialEq, Eq)]
struct Waiting<'a> {
    slot_ms: i64,
    due_ms: i64,
    topic: &'a str,
}

/// The number of a text of digits, at most so many.
fn digits(text: &[u8], count_max: usize) -> Option<i64> {
    if text.is_empty() || text.len() > count_max || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// What the properties of a record say, if slot, topic and queue id stand at their end; None if Python must look.
fn waiting(properties: &[u8], store_time_ms: i64) -> Option<Waiting<'_>> {
    if OTHER_KINDS
        .iter()
        .any(|name| memmem::find(properties, name).is_some())
    {
        return None;
    }
    let out_at = memmem::rfind(properties, OUT)?;
    let rest = &properties[out_at + OUT.len()..];
    let topic_at = memmem::find(rest, REAL_TOPIC)?;
    let slot_ms = digits(&rest[..topic_at], SLOT_DIGITS_MAX)?;
    let rest = &rest[topic_at + REAL_TOPIC.len()..];
    let queue_at = memmem::find(rest, REAL_QUEUE)?;
    let (topic, queue) = (&rest[..queue_at], &rest[queue_at + REAL_QUEUE.len()..]);
    digits(queue.strip_suffix(b"\x02")?, usize::MAX)?;
    if topic.is_empty() || memrchr(1, topic).is_some() || memrchr(2, topic).is_some() {
        return None;
    }
    let (number, ms) = wish(&properties[..=out_at])?;
    let end_ms = slot_ms + SLOT_MS;
    let due_ms = due(number, ms, store_time_ms)?;
    Some(Waiting {
        slot_ms,
        due_ms: if slot_ms < due_ms && due_ms < end_ms {
            due_ms
        } else {
            end_ms
        },
        topic: std::str::from_utf8(topic).ok()?,
    })
}

/// What records add to the files of one hour.
struct Hour {
    hour: i64,
    /// Length of its file of records, and log offset of the newest in it.
    records_end: i64,
    last_offset: i64,
    lines: Vec<u8>,
    records: Vec<u8>,
}

impl Hour {
    fn add(&mut self, waits: &Waiting<'_>, record: &[u8], log_offset: i64, topic_hash: i32) {
        let begin = self.lines.len();
        let lines = &mut self.lines;
        lines.extend_from_slice(&waits.due_ms.to_be_bytes());
        lines.extend_from_slice(&log_offset.to_be_bytes());
        lines.extend_from_slice(&self.records_end.to_be_bytes());
        lines.extend_from_slice(&get_i64(record, 20).to_be_bytes());
        lines.extend_from_slice(&(record.len() as i32).to_be_bytes());
        lines.extend_from_slice(&topic_hash.to_be_bytes());
        lines.extend_from_slice(&((waits.due_ms - waits.slot_ms) as u16).to_be_bytes());
        lines.extend_from_slice(&KIND_WAITS.to_be_bytes());
        let crc = crc32fast::hash(&lines[begin..]);
        lines.extend_from_slice(&crc.to_be_bytes());
        self.records.extend_from_slice(record);
        self.records_end += record.len() as i64;
        self.last_offset = log_offset;
    }
}

type Folded<'py> = (
    usize,
    Vec<(i64, Bound<'py, PyBytes>, Bound<'py, PyBytes>, i64)>,
    Vec<(String, usize)>,
    Option<i64>,
);

/// Fold waiting records, given by their queue entries, into what the files of their hours get. See `ternmq/_native.pyi`.
#[pyfunction]
pub fn fold_waiting<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    begin: i64,
    entries: &[u8],
    topic_field: &[u8],
    hours: &Bound<'py, PyDict>,
) -> PyResult<Folded<'py>> {
    let data = readable(py, &data)?;
    or_doubt(
        || Ok((0, Vec::new(), Vec::new(), None)),
        || fold(py, data, begin, entries, topic_field, hours),
    )
}

fn fold<'py>(
    py: Python<'py>,
    data: &[u8],
    begin: i64,
    entries: &[u8],
    topic_field: &[u8],
    hours: &Bound<'py, PyDict>,
) -> PyResult<Folded<'py>> {
    let mut made: Vec<Hour> = Vec::new();
    let mut numbers: HashMap<i64, usize> = HashMap::new();
    // In the order in which they come: so they are counted, and written to files.
    let mut topics: Vec<(&str, usize)> = Vec::new();
    let mut topic_numbers: HashMap<&str, usize> = HashMap::new();
    let (mut taken, mut first_due_ms) = (0, None);
    for entry in entries.chunks_exact(QUEUE_ENTRY_BYTES) {
        let log_offset = get_i64(entry, 0);
        let Some(record) = record_at(data, begin, log_offset, get_i32(entry, 8)) else {
            break;
        };
        let Some(parts) = plain_parts(record, log_offset) else {
            break;
        };
        // A record that closes another one, or has hosts of IPv6, is left to Python.
        if parts.topic_field != topic_field
            || get_i32(record, 36) & HOSTS_V6 != 0
            || get_i64(record, 76) != 0
        {
            break;
        }
        let Some(waits) = waiting(parts.properties, get_i64(record, 56)) else {
            break;
        };
        let Ok(topic_hash) = java_hash(0, waits.topic.as_bytes()) else {
            break;
        };
        let hour = waits.slot_ms.div_euclid(HOUR_MS);
        let number = match numbers.get(&hour) {
            Some(&number) => number,
            None => {
                let (records_end, last_offset) = match hours.get_item(hour)? {
                    Some(files) => (
                        files.getattr("records_end")?.extract()?,
                        files.getattr("last_offset")?.extract()?,
                    ),
                    None => (0, -1),
                };
                made.push(Hour {
                    hour,
                    records_end,
                    last_offset,
                    lines: Vec::new(),
                    records: Vec::new(),
                });
                numbers.insert(hour, made.len() - 1);
                made.len() - 1
            }
        };
        taken += 1;
        let of_hour = &mut made[number];
        if log_offset <= of_hour.last_offset {
            // The files have it already.
            continue;
        }
        of_hour.add(&waits, record, log_offset, topic_hash);
        let topic_number = *topic_numbers.entry(waits.topic).or_insert(topics.len());
        if topic_number == topics.len() {
            topics.push((waits.topic, 0));
        }
        topics[topic_number].1 += 1;
        first_due_ms = Some(first_due_ms.map_or(waits.due_ms, |ms: i64| ms.min(waits.due_ms)));
    }
    let grown = made.into_iter().filter(|hour| !hour.lines.is_empty());
    Ok((
        taken,
        grown
            .map(|hour| {
                (
                    hour.hour,
                    PyBytes::new(py, &hour.lines),
                    PyBytes::new(py, &hour.records),
                    hour.last_offset,
                )
            })
            .collect(),
        topics
            .into_iter()
            .map(|(topic, count)| (topic.to_owned(), count))
            .collect(),
        first_due_ms,
    ))
}

/// The bytes of a record, if the data has them.
fn record_at(data: &[u8], begin: i64, log_offset: i64, size: i32) -> Option<&[u8]> {
    let at = usize::try_from(log_offset.checked_sub(begin)?).ok()?;
    data.get(at..at.checked_add(usize::try_from(size).ok()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_due_within_its_slot() {
        let text = |wish: &str| {
            format!(
                "K\x01v\x02{wish}\x02TIMER_OUT_MS\x015000\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02"
            )
        };
        for (wish, due_ms) in [
            ("TIMER_DELAY_MS\x01500", 5_500),
            ("TIMER_DELIVER_MS\x015999", 5_999),
            ("TIMER_DELIVER_MS\x016000", 6_000),
            ("TIMER_DELIVER_MS\x015000", 6_000),
            ("TIMER_DELAY_SEC\x012", 6_000),
        ] {
            let expected = Waiting {
                slot_ms: 5_000,
                due_ms,
                topic: "t",
            };
            assert_eq!(
                waiting(text(wish).as_bytes(), 5_000),
                Some(expected),
                "{wish}"
            );
        }
    }

    #[test]
    fn what_another_has_written_is_left_to_python() {
        for text in [
            "K\x01v\x02TIMER_OUT_MS\x015000\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02",
            "TIMER_DELAY_MS\x011\x02TIMER_OUT_MS\x015000\x02REAL_TOPIC\x01t\x02REAL_QID\x013",
            "TIMER_DELAY_MS\x011\x02TIMER_OUT_MS\x015000\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02A\x01b\x02",
            "TIMER_DELAY_MS\x011\x02TIMER_OUT_MS\x01-5\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02",
            "TIMER_DELAY_MS\x011\x02TIMER_OUT_MS\x01100000000000000\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02",
            "TIMER_DELAY_MS\x011\x02TIMER_OUT_MS\x015000\x02REAL_TOPIC\x01\x02REAL_QID\x013\x02",
            "TIMER_DELAY_MS\x011\x02TIMER_OUT_MS\x015000\x02REAL_TOPIC\x01a\x02b\x02REAL_QID\x013\x02",
            "TIMER_DELAY_MS\x011\x02TIMER_ROLL_TIMES\x011\x02TIMER_OUT_MS\x015000\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02",
            "TIMER_DELAY_MS\x011\x02TIMER_DEL_UNIQKEY\x01k\x02TIMER_OUT_MS\x015000\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02",
            "TIMER_OUT_MS\x015000\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02",
        ] {
            assert_eq!(waiting(text.as_bytes(), 5_000), None, "{text:?}");
        }
    }
}
