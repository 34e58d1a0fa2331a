//! Waiting records written again under their own topics, many at a time (`delay.quick`).

use std::collections::HashMap;

use memchr::{memchr, memmem};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::guard::or_doubt;
use crate::index;
use crate::packed::{Added, Codes};
use crate::page::{readable, writable};
use crate::properties::{tags_code, topic_hash};
use crate::record::{get_i32, get_i64, plain_parts, Parts, FIXED_V4_BYTES, MAGIC_V1};

const OUT: &[u8] = b"\x02TIMER_OUT_MS\x01";
const TAKES_BACK: &[u8] = b"TIMER_DEL_UNIQKEY\x01";
const ENQUEUED: &[u8] = b"TIMER_ENQUEUE_MS\x01";
const HOUR_MS: i64 = 3_600_000;
/// Flags of hosts that are not IPv4.
const HOST_FLAGS: i32 = 0x10 | 0x20;
const TRANSACTION_MASK: i32 = 0xC;
/// What closes the record at log offset 0.
const FIRST: i64 = 1;
const SLOT_DIGITS_MAX: usize = 14;
/// Of properties: what is added to them cannot make them too long.
const PROPERTIES_BYTES_MAX: usize = 32_767 - 200;

/// An entry in the index of an hour, and the checksum at its end.
const ENTRY_BYTES: usize = 48;
const ENTRY_CRC_AT: usize = 44;

/// A waiting record, as `Timer` wrote it.
struct Waiting<'a> {
    parts: Parts<'a>,
    /// Its own topic and queue, as the properties have them.
    own: &'a [u8],
}

/// The waiting record; None if the Python version must look at it.
fn waiting(record: &[u8], log_offset: i64, hour: i64) -> Option<Waiting<'_>> {
    let parts = plain_parts(record, log_offset)?;
    let properties = parts.properties;
    if get_i32(record, 36) & HOST_FLAGS != 0
        || properties.len() > PROPERTIES_BYTES_MAX
        || !parts.is_sound(record)
        || std::str::from_utf8(properties).is_err()
        || memmem::find(properties, TAKES_BACK).is_some()
    {
        return None;
    }
    let slot_at = memmem::rfind(properties, OUT)? + OUT.len();
    let rest = &properties[slot_at..];
    let (slot, own) = rest.split_at(memchr(2, rest)?);
    if slot.is_empty() || slot.len() > SLOT_DIGITS_MAX || !slot.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let slot_ms = slot
        .iter()
        .fold(0i64, |value, digit| value * 10 + i64::from(digit - b'0'));
    if slot_ms / HOUR_MS != hour {
        return None;
    }
    Some(Waiting {
        parts,
        own: &own[1..],
    })
}

/// What delivered records add to one queue.
struct Run<'py> {
    queue: Bound<'py, PyAny>,
    queue_id: i32,
    next_offset: i64,
    topic_part: Vec<u8>,
    topic_hash: i32,
    added: Added,
    codes: Codes,
}

impl<'py> Run<'py> {
    /// The run of a queue; None if the Python version must make or look at the queue.
    fn find(table: &Bound<'py, PyDict>, key: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let Some(queue) = table.get_item(key)? else {
            return Ok(None);
        };
        let topic_part: Vec<u8> = queue.getattr("topic_part")?.extract()?;
        let is_special = queue.getattr("needs_facts")?.is_truthy()?
            || queue.getattr("has_due_times")?.is_truthy()?;
        if is_special || topic_part.is_empty() {
            return Ok(None);
        }
        let Ok(topic_hash) = topic_hash(&topic_part[1..]) else {
            return Ok(None);
        };
        Ok(Some(Run {
            queue_id: queue.getattr("queue_id")?.extract()?,
            next_offset: queue.getattr("assigned")?.extract()?,
            queue,
            topic_part,
            topic_hash,
            added: Added::default(),
            codes: Codes::default(),
        }))
    }

    fn add(&mut self, log_offset: i64, size: usize, code: i64, body_bytes: usize) {
        self.added.add_entry(log_offset, size, code, body_bytes);
        self.codes.add(code);
        self.next_offset += 1;
    }
}

/// What all records of a call share.
struct Shared<'a> {
    store_time_ms: i64,
    store_host: &'a [u8],
    /// Behind the time when a record began to wait.
    delivered: &'a [u8],
    record_bytes_max: usize,
}

/// Append the delivery of a record to `out`; its size. None if it is too large, and then `out` is as before.
fn write(
    out: &mut Vec<u8>,
    old: &[u8],
    parts: &Parts<'_>,
    run: &Run<'_>,
    log_offset: i64,
    shared: &Shared<'_>,
) -> Option<usize> {
    // A negative time has a sign, as in Python; a record that is so wrong is delivered nevertheless.
    let waited = get_i64(old, 56).to_string();
    let properties_bytes =
        parts.properties.len() + ENQUEUED.len() + waited.len() + shared.delivered.len();
    let size = FIXED_V4_BYTES + parts.body.len() + run.topic_part.len() + 2 + properties_bytes;
    if size > shared.record_bytes_max || properties_bytes > PROPERTIES_BYTES_MAX + 200 {
        return None;
    }
    let closes = match get_i64(old, 28) {
        0 => FIRST,
        offset => offset,
    };
    out.extend_from_slice(&i32::try_from(size).ok()?.to_be_bytes());
    out.extend_from_slice(&MAGIC_V1.to_be_bytes());
    // An empty body has a checksum of 0, whatever its record says.
    let crc = if parts.body.is_empty() {
        0
    } else {
        get_i32(old, 8)
    };
    out.extend_from_slice(&crc.to_be_bytes());
    out.extend_from_slice(&run.queue_id.to_be_bytes());
    out.extend_from_slice(&old[16..20]);
    out.extend_from_slice(&run.next_offset.to_be_bytes());
    out.extend_from_slice(&log_offset.to_be_bytes());
    out.extend_from_slice(&(get_i32(old, 36) & !TRANSACTION_MASK).to_be_bytes());
    // When and where it was born.
    out.extend_from_slice(&old[40..56]);
    out.extend_from_slice(&shared.store_time_ms.to_be_bytes());
    out.extend_from_slice(shared.store_host);
    // How often it was consumed.
    out.extend_from_slice(&old[72..76]);
    out.extend_from_slice(&closes.to_be_bytes());
    out.extend_from_slice(&old[84..88]);
    out.extend_from_slice(parts.body);
    out.extend_from_slice(&run.topic_part);
    out.extend_from_slice(&(properties_bytes as i16).to_be_bytes());
    out.extend_from_slice(parts.properties);
    out.extend_from_slice(ENQUEUED);
    out.extend_from_slice(waited.as_bytes());
    out.extend_from_slice(shared.delivered);
    Some(size)
}

type Delivered<'py> = (
    usize,
    (i64, i64),
    Bound<'py, PyList>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Option<Bound<'py, PyBytes>>,
);

/// Write waiting records again under their own topics. See `ternmq/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (page, at, end, source, places, sizes, waiting_at, *, log_offset, lead, store_time_ms, store_host, delivered,
    hour, record_bytes_max, own, table))]
#[allow(clippy::too_many_arguments)]
pub fn deliver<'py>(
    py: Python<'py>,
    page: PyBuffer<u8>,
    at: usize,
    end: usize,
    source: PyBuffer<u8>,
    places: Vec<i64>,
    sizes: Vec<i64>,
    waiting_at: Vec<i64>,
    log_offset: i64,
    lead: usize,
    store_time_ms: i64,
    store_host: &[u8],
    delivered: &[u8],
    hour: i64,
    record_bytes_max: usize,
    own: &Bound<'py, PyDict>,
    table: &Bound<'py, PyDict>,
) -> PyResult<Delivered<'py>> {
    or_doubt(
        || {
            let none = || PyBytes::new(py, b"");
            let places = (log_offset, log_offset);
            Ok((0, places, PyList::empty(py), none(), none(), None))
        },
        || {
            let room_bytes = end.saturating_sub(at);
            let shared = Shared {
                store_time_ms,
                store_host,
                delivered,
                record_bytes_max: record_bytes_max.min(i32::MAX as usize),
            };
            let mut out: Vec<u8> = Vec::new();
            let mut runs: Vec<Run<'py>> = Vec::new();
            let mut keys: Vec<u8> = Vec::new();
            let mut marks: Vec<u8> = Vec::new();
            let mut count = 0;
            let (mut last_offset, mut end_offset) = (log_offset, log_offset);
            let mut unknown = None;
            // All is made apart and copied to the page at the end: the source may be the same page.
            let data = readable(py, &source)?;
            let mut numbers: HashMap<&[u8], usize> = HashMap::new();
            for ((&place, &size), &old_offset) in places.iter().zip(&sizes).zip(&waiting_at) {
                let Some(record) = slice(data, place, size) else {
                    break;
                };
                let Some(found) = waiting(record, old_offset, hour) else {
                    break;
                };
                let number = match numbers.get(found.own) {
                    Some(number) => *number,
                    None => {
                        let Some(key) = own.get_item(PyBytes::new(py, found.own))? else {
                            unknown = Some(PyBytes::new(py, found.own));
                            break;
                        };
                        let Some(run) = Run::find(table, &key)? else {
                            break;
                        };
                        // Two texts may name one queue («1» and «01»): then the second must see what the first has added.
                        let same = runs.iter().position(|other| other.queue.is(&run.queue));
                        let number = same.unwrap_or(runs.len());
                        if same.is_none() {
                            runs.push(run);
                        }
                        numbers.insert(found.own, number);
                        number
                    }
                };
                let run = &mut runs[number];
                let Ok(code) = tags_code(found.parts.properties) else {
                    break;
                };
                let (before, keys_before) = (out.len(), keys.len());
                if count > 0 {
                    // The log fills these.
                    out.resize(before + lead, 0);
                }
                let new_offset = log_offset + out.len() as i64;
                let made = index::make(
                    &mut keys,
                    found.parts.properties,
                    run.topic_hash,
                    new_offset,
                    store_time_ms,
                );
                let size = made
                    .ok()
                    .and_then(|()| write(&mut out, record, &found.parts, run, new_offset, &shared));
                let Some(size) = size.filter(|_| out.len() <= room_bytes) else {
                    out.truncate(before);
                    keys.truncate(keys_before);
                    break;
                };
                run.add(new_offset, size, code, found.parts.body.len());
                (last_offset, end_offset) = (new_offset, new_offset + size as i64);
                marks.extend_from_slice(&new_offset.to_be_bytes());
                marks.extend_from_slice(&old_offset.to_be_bytes());
                count += 1;
            }
            drop(numbers);
            if count > 0 {
                let Some(room) = writable(py, &page)?.get_mut(at..at + out.len()) else {
                    return Err(pyo3::exceptions::PyValueError::new_err(
                        "the window is larger than its page",
                    ));
                };
                room.copy_from_slice(&out);
            }
            let made = PyList::empty(py);
            for mut run in runs {
                run.added.tags = run.codes.with_end(run.next_offset);
                if let Some(added) = run.added.into_python(py) {
                    made.append((run.queue, added))?;
                }
            }
            Ok((
                count,
                (end_offset, last_offset),
                made,
                PyBytes::new(py, &keys),
                PyBytes::new(py, &marks),
                unknown,
            ))
        },
    )
}

/// Whether all entries of an hour's index have the checksum that they tell.
#[pyfunction]
pub fn has_sound_entries(data: &[u8]) -> bool {
    let entries = data.chunks_exact(ENTRY_BYTES);
    entries.remainder().is_empty()
        && or_doubt(
            || false,
            || {
                entries.into_iter().all(|entry| {
                    crc32fast::hash(&entry[..ENTRY_CRC_AT]) == get_i32(entry, ENTRY_CRC_AT) as u32
                })
            },
        )
}

fn slice(data: &[u8], place: i64, size: i64) -> Option<&[u8]> {
    let (place, size) = (usize::try_from(place).ok()?, usize::try_from(size).ok()?);
    data.get(place..place.checked_add(size)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(properties: &[u8], sysflag: i32) -> Vec<u8> {
        let mut data = vec![0u8; FIXED_V4_BYTES];
        data.extend_from_slice(b"b\x01w");
        data.extend_from_slice(&(properties.len() as u16).to_be_bytes());
        data.extend_from_slice(properties);
        let size = data.len() as i32;
        data[0..4].copy_from_slice(&size.to_be_bytes());
        data[4..8].copy_from_slice(&MAGIC_V1.to_be_bytes());
        data[8..12].copy_from_slice(&(crc32fast::hash(b"b") & 0x7FFF_FFFF).to_be_bytes());
        data[28..36].copy_from_slice(&7i64.to_be_bytes());
        data[36..40].copy_from_slice(&sysflag.to_be_bytes());
        data[84..88].copy_from_slice(&1i32.to_be_bytes());
        data
    }

    const TEXT: &[u8] =
        b"A\x01b\x02TIMER_OUT_MS\x017200000\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02";

    #[test]
    fn a_record_tells_its_own_queue() {
        let data = record(TEXT, 0);
        let found = waiting(&data, 7, 2).unwrap();
        assert_eq!(found.own, b"REAL_TOPIC\x01t\x02REAL_QID\x010\x02");
        assert!(waiting(&data, 8, 2).is_none(), "another place");
        assert!(waiting(&data, 7, 1).is_none(), "another hour");
        assert!(waiting(&record(TEXT, 0x10), 7, 2).is_none(), "an IPv6 host");
        assert!(waiting(&record(b"A\x01b\x02", 0), 7, 2).is_none());
    }

    #[test]
    fn any_cut_and_any_changed_body_is_refused() {
        let data = record(TEXT, 0);
        for cut in 0..data.len() {
            assert!(waiting(&data[..cut], 7, 2).is_none(), "{cut}");
        }
        let mut damaged = data;
        damaged[FIXED_V4_BYTES] ^= 1;
        assert!(waiting(&damaged, 7, 2).is_none());
    }
}
