//! Entries of the hash index (`store.derived.index`, `wire.layouts.index_file`), many at a time.
//!
//! Between the function that makes entries and the one that writes them, an entry is 20 bytes, big-endian: 4 hash,
//! 8 log offset, 8 store time in ms.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::guard::or_doubt;
use crate::page::writable;
use crate::properties::{each_key_hash, topic_hash, NotPlain};
use crate::record::{get_i32, get_i64};

pub const MADE_BYTES: usize = 20;
const HEADER_BYTES: usize = 40;
const SLOT_BYTES: usize = 4;
const ENTRY_BYTES: usize = 20;

/// Append the entries of one record to `made`; on `NotPlain` it is as before.
pub fn make(
    made: &mut Vec<u8>,
    properties: &[u8],
    topic_hash: i32,
    log_offset: i64,
    store_time_ms: i64,
) -> Result<(), NotPlain> {
    let before = made.len();
    let result = each_key_hash(properties, topic_hash, |hash| {
        made.extend_from_slice(&hash.to_be_bytes());
        made.extend_from_slice(&log_offset.to_be_bytes());
        made.extend_from_slice(&store_time_ms.to_be_bytes());
    });
    if result.is_err() {
        made.truncate(before);
    }
    result
}

/// The entries of records (topic, properties, log offset, store time); None if one of them is not plain.
#[pyfunction]
pub fn index_entries<'py>(
    py: Python<'py>,
    records: &Bound<'py, PyList>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    or_doubt(
        || Ok(None),
        || {
            let mut made = Vec::with_capacity(records.len() * 2 * MADE_BYTES);
            let mut last: Option<(Bound<'py, PyAny>, i32)> = None;
            for record in records.iter() {
                let record = record.cast_into::<PyTuple>()?;
                let topic = record.get_item(0)?;
                let hash = match &last {
                    Some((known, hash)) if known.is(&topic) => *hash,
                    _ => {
                        // A text with half a surrogate pair has no UTF-8.
                        let Ok(text) = topic.cast::<PyString>()?.to_cow() else {
                            return Ok(None);
                        };
                        let Ok(hash) = topic_hash(text.as_bytes()) else {
                            return Ok(None);
                        };
                        drop(text);
                        last = Some((topic, hash));
                        hash
                    }
                };
                let properties = record.get_item(1)?;
                let Ok(text) = properties.cast::<PyString>()?.to_cow() else {
                    return Ok(None);
                };
                let (log_offset, store_time_ms) = (
                    record.get_item(2)?.extract()?,
                    record.get_item(3)?.extract()?,
                );
                if make(&mut made, text.as_bytes(), hash, log_offset, store_time_ms).is_err() {
                    return Ok(None);
                }
            }
            Ok(Some(PyBytes::new(py, &made)))
        },
    )
}

/// The header of a file, but for the number of its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub begin_time_ms: i64,
    pub end_time_ms: i64,
    pub begin_offset: i64,
    pub end_offset: i64,
    pub used_slots: i32,
}

impl Head {
    fn write(&self, page: &mut [u8], count: i32) {
        let times = [
            self.begin_time_ms,
            self.end_time_ms,
            self.begin_offset,
            self.end_offset,
        ];
        for (at, number) in std::iter::zip((0..).step_by(8), times) {
            page[at..at + 8].copy_from_slice(&number.to_be_bytes());
        }
        page[32..36].copy_from_slice(&self.used_slots.to_be_bytes());
        page[36..40].copy_from_slice(&count.to_be_bytes());
    }
}

/// Write entries to the page of an index file, from entry `number` on, and then the header. What is in the header `head`
/// but for the number of entries is given, and returned as it is now. None if they do not fit: nothing is written.
pub fn put(
    page: &mut [u8],
    made: &[u8],
    slots: usize,
    number: usize,
    mut head: Head,
) -> Option<Head> {
    let count = made.len() / MADE_BYTES;
    let entries_at = HEADER_BYTES.checked_add(slots.checked_mul(SLOT_BYTES)?)?;
    let end = entries_at.checked_add(number.checked_add(count)?.checked_mul(ENTRY_BYTES)?)?;
    if slots == 0
        || number == 0
        || count == 0
        || end > page.len()
        || number + count > i32::MAX as usize
    {
        return None;
    }
    for (added, entry) in made.chunks_exact(MADE_BYTES).enumerate() {
        let number = number + added;
        let (hash, log_offset, store_time_ms) =
            (get_i32(entry, 0), get_i64(entry, 4), get_i64(entry, 12));
        let seconds = if head.begin_time_ms > 0 {
            store_time_ms
                .saturating_sub(head.begin_time_ms)
                .div_euclid(1000)
                .clamp(0, i64::from(i32::MAX)) as i32
        } else {
            0
        };
        let slot_at = HEADER_BYTES + (hash.max(0) as usize % slots) * SLOT_BYTES;
        let mut previous = get_i32(page, slot_at);
        if previous <= 0 || previous as usize >= number {
            previous = 0;
            head.used_slots = head.used_slots.saturating_add(1);
        }
        let at = entries_at + number * ENTRY_BYTES;
        page[at..at + 4].copy_from_slice(&hash.to_be_bytes());
        page[at + 4..at + 12].copy_from_slice(&log_offset.to_be_bytes());
        page[at + 12..at + 16].copy_from_slice(&seconds.to_be_bytes());
        page[at + 16..at + 20].copy_from_slice(&previous.to_be_bytes());
        page[slot_at..slot_at + 4].copy_from_slice(&(number as i32).to_be_bytes());
        if number == 1 {
            // Only the first entry of a file counts its seconds from the end of the file before.
            head.begin_offset = log_offset;
            head.begin_time_ms = store_time_ms;
        }
        (head.end_offset, head.end_time_ms) = (log_offset, store_time_ms);
    }
    head.write(page, (number + count) as i32);
    Some(head)
}

/// Write made entries to an index file, and its header. See `ternmq/_native.pyi`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn index_put(
    py: Python<'_>,
    page: PyBuffer<u8>,
    made: &[u8],
    slots: usize,
    number: usize,
    used_slots: i32,
    begin_time_ms: i64,
    begin_offset: i64,
) -> PyResult<(i32, i64, i64, i64, i64)> {
    let page = writable(py, &page)?;
    or_doubt(
        || {
            Err(PyRuntimeError::new_err(
                "the entries may be written in part",
            ))
        },
        || {
            let head = Head {
                used_slots,
                begin_time_ms,
                begin_offset,
                ..Head::default()
            };
            put(page, made, slots, number, head)
                .map(|head| {
                    (
                        head.used_slots,
                        head.begin_time_ms,
                        head.begin_offset,
                        head.end_offset,
                        head.end_time_ms,
                    )
                })
                .ok_or_else(|| PyValueError::new_err("the entries do not fit into the file"))
        },
    )
}

/// What is wrong with entries of an index file.
#[derive(Debug, PartialEq, Eq)]
struct Chain {
    /// How many do not name the entry that their slot held before, and the number of the first.
    broken: usize,
    first_broken: usize,
    /// Whether log offsets never decrease, from `low` up to `high`.
    is_in_order: bool,
}

/// Go through entries, the first of which has `number`. `newest` has the newest entry of each slot, and gets theirs. None
/// if there are no slots, or the numbers are too large; then nothing is noted.
fn follow_chain(
    entries: &[u8],
    newest: &mut [i32],
    number: usize,
    low: i64,
    high: i64,
) -> Option<Chain> {
    let slots = i32::try_from(newest.len())
        .ok()
        .filter(|&slots| slots > 0)?;
    i32::try_from(number.checked_add(entries.len() / ENTRY_BYTES)?).ok()?;
    let mut found = Chain {
        broken: 0,
        first_broken: 0,
        is_in_order: true,
    };
    let mut last = low;
    for (number, entry) in (number..).zip(entries.chunks_exact(ENTRY_BYTES)) {
        let slot = &mut newest[get_i32(entry, 0).rem_euclid(slots) as usize];
        let log_offset = get_i64(entry, 4);
        if get_i32(entry, 16) != std::mem::replace(slot, number as i32) {
            if found.broken == 0 {
                found.first_broken = number;
            }
            found.broken += 1;
        }
        found.is_in_order &= last <= log_offset && log_offset <= high;
        last = log_offset;
    }
    Some(found)
}

/// Check the chains of entries of an index file. See `ternmq/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (entries, newest, *, number, low, high))]
pub fn check_chain(
    py: Python<'_>,
    entries: &[u8],
    newest: PyBuffer<i32>,
    number: usize,
    low: i64,
    high: i64,
) -> PyResult<Option<(usize, usize, bool)>> {
    let slots = writable(py, &newest)?;
    // As for `index_put`: some may be noted.
    let found = or_doubt(
        || Err(PyRuntimeError::new_err("the kernel failed")),
        || Ok(follow_chain(entries, slots, number, low, high)),
    )?;
    Ok(found.map(|chain| (chain.broken, chain.first_broken, chain.is_in_order)))
}

/// How many entries from the begin on have the same hash and log offset in both: made ones, or those of a file.
#[pyfunction]
pub fn count_same(made: &[u8], at: usize, entries: &[u8], entries_at: usize) -> usize {
    let (Some(made), Some(entries)) = (made.get(at..), entries.get(entries_at..)) else {
        return 0;
    };
    let pairs = std::iter::zip(
        made.chunks_exact(MADE_BYTES),
        entries.chunks_exact(ENTRY_BYTES),
    );
    pairs
        .take_while(|(made, entry)| made[..12] == entry[..12])
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_one_slot_are_a_chain() {
        let mut page = vec![0; HEADER_BYTES + 4 * SLOT_BYTES + 10 * ENTRY_BYTES];
        let mut made = Vec::new();
        make(&mut made, b"UNIQ_KEY\x01a\x02KEYS\x01e\x02", 0, 7, 5_000).unwrap();
        let head = put(&mut page, &made, 4, 1, Head::default()).unwrap();
        assert_eq!(
            head,
            Head {
                used_slots: 1,
                begin_time_ms: 5_000,
                end_time_ms: 5_000,
                begin_offset: 7,
                end_offset: 7,
            }
        );
        let header = [5_000, 5_000, 7, 7, 1 << 32 | 3].map(i64::to_be_bytes);
        assert_eq!(page[..HEADER_BYTES], header.concat());
        let second = HEADER_BYTES + 4 * SLOT_BYTES + 2 * ENTRY_BYTES;
        assert_eq!(get_i32(&page, second + 16), 1);
    }

    #[test]
    fn broken_chains_are_counted() {
        let entry = |hash: i32, log_offset: i64, previous: i32| {
            let mut data = [0; ENTRY_BYTES];
            data[..4].copy_from_slice(&hash.to_be_bytes());
            data[4..12].copy_from_slice(&log_offset.to_be_bytes());
            data[16..].copy_from_slice(&previous.to_be_bytes());
            data
        };
        let entries = [entry(-1, 5, 0), entry(6, 9, 1), entry(1, 9, 1)].concat();
        let mut newest = [0; 7];
        let found = follow_chain(&entries, &mut newest, 1, 5, 9).unwrap();
        // -1 and 6 have the same slot; the last one names an entry of another.
        assert_eq!(
            (found.broken, found.first_broken, found.is_in_order),
            (1, 3, true)
        );
        assert_eq!(newest, [0, 3, 0, 0, 0, 0, 2]);
        for (low, high) in [(6, 9), (5, 8)] {
            let mut newest = [0; 7];
            assert!(
                !follow_chain(&entries, &mut newest, 1, low, high)
                    .unwrap()
                    .is_in_order
            );
        }
        assert_eq!(follow_chain(&entries, &mut [], 1, 5, 9), None);
        assert_eq!(
            follow_chain(&entries, &mut [0; 7], i32::MAX as usize, 5, 9),
            None
        );
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let mut page = vec![0; HEADER_BYTES + 4 * SLOT_BYTES + 2 * ENTRY_BYTES];
        let mut made = Vec::new();
        make(&mut made, b"UNIQ_KEY\x01a\x02KEYS\x01b\x02", 0, 7, 5_000).unwrap();
        assert_eq!(put(&mut page, &made, 4, 1, Head::default()), None);
        assert_eq!(put(&mut page, b"", 4, 1, Head::default()), None);
        assert!(page.iter().all(|&byte| byte == 0));
    }
}
