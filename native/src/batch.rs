//! A batch as it was sent, expanded into records, queue entries and index entries (`store.log.batch`, `wire.batch`).

use memchr::memmem;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};

use crate::guard::or_doubt;
use crate::index;
use crate::packed::{Added, Codes, QueuePart};
use crate::page::{writable, Writer};
use crate::properties::{tags_code, topic_hash};

/// Size, 8 bytes, flag, length of the body; behind the body the length of the properties.
const HEAD_BYTES: usize = 20;
const FIXED_BYTES: usize = HEAD_BYTES + 2;
const UNIQUE_KEY: &[u8] = b"UNIQ_KEY\x01";
const PROPERTIES_BYTES_MAX: usize = 32_767;

/// One message of a batch.
struct Parcel<'a> {
    flag: [u8; 4],
    body: &'a [u8],
    properties: &'a [u8],
    /// The separator that the last pair lacks.
    end: &'static [u8],
    tags_code: i64,
}

fn get_len(data: &[u8], at: usize) -> Option<usize> {
    usize::try_from(i32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?)).ok()
}

/// The messages of a batch; None if one of them is not plain, or cut short.
fn parcels(data: &[u8]) -> Option<Vec<Parcel<'_>>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let size = get_len(data, at)?;
        let message = data.get(at..at.checked_add(size)?)?;
        if size < FIXED_BYTES {
            return None;
        }
        let body_end = HEAD_BYTES.checked_add(get_len(message, 16)?)?;
        let length: [u8; 2] = message
            .get(body_end..body_end.checked_add(2)?)?
            .try_into()
            .ok()?;
        let properties = &message[body_end + 2..];
        if usize::try_from(i16::from_be_bytes(length)).ok()? != properties.len() {
            return None;
        }
        // As in `Sending.send_batch`: a unique key that is a name of its own, and has a value.
        let key_at = memmem::find(properties, UNIQUE_KEY)?;
        if key_at > 0 && properties[key_at - 1] != 2 {
            return None;
        }
        if matches!(properties.get(key_at + UNIQUE_KEY.len()), None | Some(2)) {
            return None;
        }
        let mut end: &'static [u8] = b"";
        if *properties.last()? != 2 {
            // The long way decodes such a text; what is not UTF-8 would change.
            std::str::from_utf8(properties).ok()?;
            end = b"\x02";
        }
        found.push(Parcel {
            flag: message[12..16].try_into().ok()?,
            body: &message[HEAD_BYTES..body_end],
            properties,
            end,
            tags_code: tags_code(properties).ok()?,
        });
        at += size;
    }
    if found.is_empty() {
        None
    } else {
        Some(found)
    }
}

/// Where a batch goes, and what its records share.
pub struct Target<'a> {
    pub log_offset: i64,
    /// Bytes between two records, which the log fills.
    pub lead: usize,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub store_time_ms: i64,
    pub magic: i32,
    /// From sysflag to the prepared half.
    pub shared: &'a [u8],
    /// The topic with its length in front.
    pub topic_field: &'a [u8],
    pub topic: &'a [u8],
    pub more_properties: &'a [u8],
    pub body_bytes_max: usize,
    pub record_bytes_max: usize,
}

/// What is known of the records of a batch.
#[derive(Default)]
pub struct Expanded {
    pub log_offsets: Vec<i64>,
    /// What they add to their queue: each tags code once, with the end of the whole batch.
    pub added: Added,
    /// Index entries, as `index::make` makes them.
    pub keys: Vec<u8>,
}

/// What became of a batch.
pub enum Outcome {
    Stored(Expanded),
    /// Its records need so many bytes, more than there are; nothing is written.
    NoRoom(usize),
}

/// Pack the records of a batch into `room`; None if the batch is not plain: nothing is written.
pub fn expand(data: &[u8], room: &mut [u8], target: &Target<'_>) -> Option<Outcome> {
    let parcels = parcels(data)?;
    let fixed_bytes = 7 * 4 + 2 * 8 - 4
        + target.shared.len()
        + target.topic_field.len()
        + 2
        + target.more_properties.len();
    let topic_hash = topic_hash(target.topic).ok()?;
    let mut sizes = Vec::with_capacity(parcels.len());
    let mut total = 0usize;
    for parcel in &parcels {
        let properties_bytes =
            parcel.properties.len() + parcel.end.len() + target.more_properties.len();
        let size = fixed_bytes + parcel.body.len() + parcel.properties.len() + parcel.end.len();
        if parcel.body.len() > target.body_bytes_max
            || properties_bytes > PROPERTIES_BYTES_MAX
            || size > target.record_bytes_max
        {
            return None;
        }
        total = total.checked_add(size)?;
        sizes.push(size);
    }
    total = total.checked_add(target.lead.checked_mul(parcels.len() - 1)?)?;
    if total > target.record_bytes_max {
        return None;
    }
    let mut made = Expanded {
        log_offsets: Vec::with_capacity(parcels.len()),
        ..Expanded::default()
    };
    made.added.entries.reserve(parcels.len() * 20);
    let mut codes = Codes::default();
    let mut log_offset = target.log_offset;
    for (parcel, size) in parcels.iter().zip(&sizes) {
        index::make(
            &mut made.keys,
            parcel.properties,
            topic_hash,
            log_offset,
            target.store_time_ms,
        )
        .ok()?;
        made.added
            .add_entry(log_offset, *size, parcel.tags_code, parcel.body.len());
        codes.add(parcel.tags_code);
        made.log_offsets.push(log_offset);
        log_offset += (*size + target.lead) as i64;
    }
    // Here, as what is not plain is known by now: room is made only for what will be stored.
    if total > room.len() {
        return Some(Outcome::NoRoom(total));
    }
    made.added.tags = codes.with_end(target.queue_offset + parcels.len() as i64);
    let mut page = Writer { page: room, at: 0 };
    for (number, (parcel, size)) in parcels.iter().zip(&sizes).enumerate() {
        if number > 0 {
            page.at += target.lead;
        }
        page.put(&(*size as i32).to_be_bytes());
        page.put(&target.magic.to_be_bytes());
        page.put(&((crc32fast::hash(parcel.body) & 0x7FFF_FFFF).to_be_bytes()));
        page.put(&target.queue_id.to_be_bytes());
        page.put(&parcel.flag);
        page.put(&(target.queue_offset + number as i64).to_be_bytes());
        page.put(&made.log_offsets[number].to_be_bytes());
        page.put(target.shared);
        page.put(&(parcel.body.len() as i32).to_be_bytes());
        page.put(parcel.body);
        page.put(target.topic_field);
        let properties_bytes =
            parcel.properties.len() + parcel.end.len() + target.more_properties.len();
        page.put(&(properties_bytes as i16).to_be_bytes());
        page.put(parcel.properties);
        page.put(parcel.end);
        page.put(target.more_properties);
    }
    debug_assert_eq!(page.at, total);
    Some(Outcome::Stored(made))
}

#[derive(IntoPyObject)]
pub enum Made<'py> {
    Stored(Vec<i64>, Option<QueuePart<'py>>, Bound<'py, PyBytes>),
    #[pyo3(transparent)]
    NoRoom(usize),
}

/// Expand a batch into a log's window. See `ternmq/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (page, at, end, data, *, log_offset, lead, queue_id, queue_offset, store_time_ms, magic, shared, topic_field,
    topic, more_properties, body_bytes_max, record_bytes_max))]
#[allow(clippy::too_many_arguments)]
pub fn expand_batch<'py>(
    py: Python<'py>,
    page: PyBuffer<u8>,
    at: usize,
    end: usize,
    data: &[u8],
    log_offset: i64,
    lead: usize,
    queue_id: i32,
    queue_offset: i64,
    store_time_ms: i64,
    magic: i32,
    shared: &[u8],
    topic_field: &[u8],
    topic: &[u8],
    more_properties: &[u8],
    body_bytes_max: usize,
    record_bytes_max: usize,
) -> PyResult<Option<Made<'py>>> {
    let Some(room) = writable(py, &page)?.get_mut(at..end) else {
        return Ok(None);
    };
    let target = Target {
        log_offset,
        lead,
        queue_id,
        queue_offset,
        store_time_ms,
        magic,
        shared,
        topic_field,
        topic,
        more_properties,
        body_bytes_max,
        record_bytes_max: record_bytes_max.min(i32::MAX as usize),
    };
    // What a panic leaves behind the end of the log was never sealed: it does not exist.
    Ok(
        or_doubt(|| None, || expand(data, room, &target)).map(|outcome| match outcome {
            Outcome::Stored(made) => Made::Stored(
                made.log_offsets,
                made.added.into_python(py),
                PyBytes::new(py, &made.keys),
            ),
            Outcome::NoRoom(total) => Made::NoRoom(total),
        }),
    )
}

/// Whether one of these texts stands anywhere in the data. Python's search takes a nanosecond for each byte and text.
#[pyfunction]
pub fn contains_any(data: &[u8], texts: Vec<PyBackedBytes>) -> bool {
    or_doubt(
        || true,
        || texts.iter().any(|text| memmem::find(data, text).is_some()),
    )
}

/// The offset ids of records, joined by commas; `host` are the hexadecimal digits of the store host.
#[pyfunction]
pub fn offset_ids<'py>(py: Python<'py>, host: &str, log_offsets: Vec<i64>) -> Bound<'py, PyString> {
    use std::fmt::Write;
    let mut text = String::with_capacity(log_offsets.len() * (host.len() + 17));
    for (number, log_offset) in log_offsets.iter().enumerate() {
        if number > 0 {
            text.push(',');
        }
        // Writing to a String cannot fail.
        let _ = write!(text, "{host}{log_offset:016X}");
    }
    PyString::new(py, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: &[u8], properties: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        data.extend_from_slice(
            &((FIXED_BYTES + body.len() + properties.len()) as i32).to_be_bytes(),
        );
        data.extend_from_slice(&[0; 12]);
        data.extend_from_slice(&(body.len() as i32).to_be_bytes());
        data.extend_from_slice(body);
        data.extend_from_slice(&(properties.len() as i16).to_be_bytes());
        data.extend_from_slice(properties);
        data
    }

    fn target() -> Target<'static> {
        Target {
            log_offset: 100,
            lead: 0,
            queue_id: 3,
            queue_offset: 7,
            store_time_ms: 1,
            magic: -626_843_481,
            shared: &[0; 48],
            topic_field: b"\x01t",
            topic: b"t",
            more_properties: b"",
            body_bytes_max: 100,
            record_bytes_max: 1000,
        }
    }

    #[test]
    fn records_follow_each_other() {
        let data = [
            message(b"a", b"UNIQ_KEY\x01k\x02"),
            message(b"b", b"UNIQ_KEY\x01l"),
        ]
        .concat();
        let mut room = vec![0; 1000];
        let Some(Outcome::Stored(made)) = expand(&data, &mut room, &target()) else {
            panic!("there is room");
        };
        assert_eq!(made.log_offsets.len(), 2);
        assert_eq!(made.added.entries.len(), 40);
        assert_eq!(made.added.tags, vec![(0, 9)]);
        assert_eq!(
            made.log_offsets[1] - made.log_offsets[0],
            88 + 1 + 2 + 2 + 11
        );
        assert_eq!(
            room[(made.added.log_end - 101) as usize],
            2,
            "the last pair is ended"
        );
    }

    #[test]
    fn records_have_the_bytes_between_them_that_the_log_fills() {
        let data = [
            message(b"a", b"UNIQ_KEY\x01k\x02"),
            message(b"b", b"UNIQ_KEY\x01l\x02"),
        ]
        .concat();
        let mut given = target();
        given.lead = 48;
        let mut room = vec![7; 104 + 48 + 104];
        let Some(Outcome::Stored(made)) = expand(&data, &mut room, &given) else {
            panic!("there is room");
        };
        assert_eq!(made.log_offsets, vec![100, 100 + 104 + 48]);
        assert_eq!(made.added.log_end, 100 + 104 + 48 + 104);
        assert_eq!(room[104..152], [7; 48]);
        // Room for two records, not for the bytes between them.
        let mut small = vec![7; 104 + 48 + 103];
        assert!(matches!(
            expand(&data, &mut small, &given),
            Some(Outcome::NoRoom(256))
        ));
        assert!(small.iter().all(|&byte| byte == 7));
        given.record_bytes_max = 255;
        assert!(expand(&data, &mut room, &given).is_none());
    }

    #[test]
    fn a_batch_without_room_is_not_written() {
        let data = message(b"a", b"UNIQ_KEY\x01k\x02");
        let mut room = vec![0; 50];
        assert!(matches!(
            expand(&data, &mut room, &target()),
            Some(Outcome::NoRoom(104))
        ));
        assert!(room.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn any_cut_is_refused() {
        let data = [
            message(b"a", b"UNIQ_KEY\x01k\x02"),
            message(b"b", b"UNIQ_KEY\x01l"),
        ]
        .concat();
        let whole = message(b"a", b"UNIQ_KEY\x01k\x02").len();
        for cut in (0..data.len()).filter(|&cut| cut != whole) {
            assert!(
                expand(&data[..cut], &mut [0; 1000], &target()).is_none(),
                "{cut}"
            );
        }
    }
}
