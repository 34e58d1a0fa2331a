//! A range of the log, checked record by record and folded into queue entries and index entries
//! (`store.derived.follower`).

use std::collections::HashMap;

use memchr::memchr;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::entries::{Header, HEADER_BYTES};
use crate::guard::or_doubt;
use crate::index;
use crate::packed::Codes;
use crate::properties::{tags_code, topic_hash};
use crate::record::{get_i32, get_i64, plain_parts};

/// Hosts of IPv6, and the kinds of transactions that have no queue entry or another meaning.
const SPECIAL: i32 = 0x10 | 0x20 | 0xC;

/// A record of the ordinary kind.
pub struct Plain<'a> {
    pub size: usize,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub log_offset: i64,
    pub store_time_ms: i64,
    /// The topic with its length in front.
    pub topic_field: &'a [u8],
    pub properties: &'a [u8],
}

/// The record at `at`, whose log offset must be `log_offset`; None if it is not plain, damaged or not whole.
pub fn plain(data: &[u8], at: usize, log_offset: i64, check_crc: bool) -> Option<Plain<'_>> {
    let rest = data.get(at..)?;
    let size = usize::try_from(i32::from_be_bytes(rest.get(..4)?.try_into().ok()?)).ok()?;
    let record = rest.get(..size)?;
    let parts = plain_parts(record, log_offset)?;
    if get_i32(record, 36) & SPECIAL != 0
        || get_i64(record, 76) != 0
        || (check_crc && !parts.is_sound(record))
    {
        return None;
    }
    let properties = parts.properties;
    // Zeros may be a sector that never reached the disk.
    if memchr(0, properties).is_some() {
        return None;
    }
    Some(Plain {
        size,
        queue_id: get_i32(record, 12),
        queue_offset: get_i64(record, 20),
        log_offset,
        store_time_ms: get_i64(record, 56),
        topic_field: parts.topic_field,
        properties,
    })
}

/// The header of a Raft entry that belongs to `record` and stands in front of it.
fn header_of(data: &[u8], at: usize, record: &Plain<'_>) -> Option<Header> {
    let header = Header::read(&data[at.checked_sub(HEADER_BYTES)?..at])?;
    (header.position == record.log_offset - HEADER_BYTES as i64
        && header.size == record.size + HEADER_BYTES)
        .then_some(header)
}

/// A Raft entry that others follow.
struct Before {
    index: i64,
    term: i64,
}

impl Before {
    fn of(header: &Header) -> Self {
        Self {
            index: header.index,
            term: header.term,
        }
    }

    fn is_followed_by(&self, header: &Header) -> bool {
        self.index.checked_add(1) == Some(header.index) && header.term >= self.term
    }
}

/// What records of one queue add to it.
struct Run<'py> {
    known: Bound<'py, PyAny>,
    topic_hash: i32,
    /// Log offset behind the queue's last entry, and the queue offset of the next one.
    log_end: i64,
    next_offset: i64,
    entries: Vec<u8>,
    tags_codes: Codes,
}

type Scanned<'py> = (
    usize,
    usize,
    usize,
    i64,
    Bound<'py, PyList>,
    Bound<'py, PyBytes>,
    i64,
);

/// Fold the plain records of known queues that follow each other from `at` on. See `ternmq/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (data, at, *, begin, has_headers, before, check_crc, known, indexed))]
#[allow(clippy::too_many_arguments)]
pub fn scan<'py>(
    py: Python<'py>,
    data: &[u8],
    at: usize,
    begin: i64,
    has_headers: bool,
    before: Option<(i64, i64)>,
    check_crc: bool,
    known: &Bound<'py, PyDict>,
    indexed: i64,
) -> PyResult<Scanned<'py>> {
    or_doubt(
        || Ok((at, at, 0, 0, PyList::empty(py), PyBytes::new(py, b""), -1)),
        || {
            let lead = if has_headers { HEADER_BYTES } else { 0 };
            let (mut at, mut last_at) = (at, at);
            let checks_entries = before.is_some();
            // A negative index is that of none.
            let mut before = before
                .filter(|(index, _)| *index >= 0)
                .map(|(index, term)| Before { index, term });
            let mut runs: Vec<Run<'py>> = Vec::new();
            let mut numbers: HashMap<(&[u8], i32), usize> = HashMap::new();
            let mut last: Option<((&[u8], i32), usize)> = None;
            let mut keys: Vec<u8> = Vec::new();
            let (mut count, mut store_time_ms, mut keyed) = (0, 0, -1);
            while let Some(record) = plain(data, at, begin + at as i64, check_crc) {
                let mut following = None;
                if has_headers {
                    let Some(header) = header_of(data, at, &record) else {
                        break;
                    };
                    if checks_entries {
                        let may_follow = before
                            .as_ref()
                            .is_none_or(|before| before.is_followed_by(&header));
                        if !may_follow || !header.is_of(&data[at..at + record.size]) {
                            break;
                        }
                        following = Some(Before::of(&header));
                    }
                }
                let key = (record.topic_field, record.queue_id);
                let number = match last {
                    Some((before, number)) if before == key => number,
                    _ => match numbers.get(&key) {
                        Some(number) => *number,
                        None => {
                            let found = known.get_item((
                                PyBytes::new(py, record.topic_field),
                                record.queue_id,
                            ))?;
                            let Some(found) = found.filter(|found| !found.is_none()) else {
                                break;
                            };
                            let queue = found.cast::<PyTuple>()?.get_item(0)?;
                            let Ok(topic_hash) = topic_hash(&record.topic_field[1..]) else {
                                break;
                            };
                            runs.push(Run {
                                topic_hash,
                                log_end: queue.getattr("log_end")?.extract()?,
                                next_offset: queue.getattr("next_offset")?.extract()?,
                                known: found,
                                entries: Vec::new(),
                                tags_codes: Codes::default(),
                            });
                            numbers.insert(key, runs.len() - 1);
                            runs.len() - 1
                        }
                    },
                };
                last = Some((key, number));
                let run = &mut runs[number];
                let is_new = record.log_offset >= run.log_end;
                if is_new && record.queue_offset != run.next_offset {
                    break;
                }
                let Ok(code) = (if is_new {
                    tags_code(record.properties)
                } else {
                    Ok(0)
                }) else {
                    break;
                };
                if record.log_offset > indexed {
                    if index::make(
                        &mut keys,
                        record.properties,
                        run.topic_hash,
                        record.log_offset,
                        record.store_time_ms,
                    )
                    .is_err()
                    {
                        break;
                    }
                    keyed = record.log_offset;
                }
                if is_new {
                    run.entries
                        .extend_from_slice(&record.log_offset.to_be_bytes());
                    run.entries
                        .extend_from_slice(&(record.size as i32).to_be_bytes());
                    run.entries.extend_from_slice(&code.to_be_bytes());
                    run.tags_codes.add(code);
                    run.log_end = record.log_offset + record.size as i64;
                    run.next_offset += 1;
                }
                store_time_ms = record.store_time_ms;
                count += 1;
                last_at = at;
                at += record.size + lead;
                before = following.or(before);
            }
            let made = PyList::empty(py);
            for run in runs {
                if !run.entries.is_empty() {
                    let queue = run.known.cast::<PyTuple>()?.get_item(0)?;
                    made.append((
                        queue,
                        PyBytes::new(py, &run.entries),
                        run.log_end,
                        run.tags_codes.list,
                    ))?;
                }
            }
            Ok((
                at,
                last_at,
                count,
                store_time_ms,
                made,
                PyBytes::new(py, &keys),
                keyed,
            ))
        },
    )
}
