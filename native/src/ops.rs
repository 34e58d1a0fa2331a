//! Op records of transactions, which close halves (`transaction.ops`).

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::packed::{unless_it_panics, Added, QueuePart};
use crate::page::writable;
use crate::record::{pack, Fields, FIXED_V4_BYTES, HOST_V4_BYTES};

/// What all op records have: the tag of those that close a half, and its code.
const PROPERTIES: &[u8] = b"TAGS\x01d\x02";
const TAGS_CODE: i64 = b'd' as i64;

/// What all records of a call share.
struct Shared<'a> {
    born_time_ms: i64,
    born_host: [u8; HOST_V4_BYTES],
    store_time_ms: i64,
    store_host: [u8; HOST_V4_BYTES],
    /// The topic with its length in front.
    topic_field: &'a [u8],
    /// Bytes between two records, which the log fills.
    lead: usize,
}

/// Pack one record for each of `closed`, halves by their queue offsets; None if they do not all fit into `room`, and
/// then nothing is written. `log_offset` and `queue_offset` are those of the first record.
fn store(
    room: &mut [u8],
    closed: &[i64],
    shared: &Shared<'_>,
    mut log_offset: i64,
    mut queue_offset: i64,
) -> Option<(Added, i64)> {
    let bodies: Vec<String> = closed.iter().map(i64::to_string).collect();
    let size_of = |body: &String| {
        FIXED_V4_BYTES + body.len() + shared.topic_field.len() + 2 + PROPERTIES.len()
    };
    let leads = shared.lead.checked_mul(bodies.len().checked_sub(1)?)?;
    if bodies
        .iter()
        .map(size_of)
        .sum::<usize>()
        .checked_add(leads)?
        > room.len()
    {
        return None;
    }
    let mut added = Added::default();
    let (mut at, mut last_offset) = (0, log_offset);
    for body in &bodies {
        let size = size_of(body);
        let fields = Fields {
            queue_id: 0,
            flag: 0,
            queue_offset,
            log_offset,
            sysflag: 0,
            born_time_ms: shared.born_time_ms,
            born_host: &shared.born_host,
            store_time_ms: shared.store_time_ms,
            store_host: &shared.store_host,
            reconsume_times: 0,
            prepared_offset: 0,
        };
        pack(
            &mut room[at..at + size],
            &fields,
            body.as_bytes(),
            shared.topic_field,
            [PROPERTIES, b"", b""],
        );
        queue_offset += 1;
        added.add(log_offset, size, TAGS_CODE, queue_offset, body.len());
        last_offset = log_offset;
        at += size + shared.lead;
        log_offset += (size + shared.lead) as i64;
    }
    Some((added, last_offset))
}

type Made<'py> = (i64, QueuePart<'py>);

/// Pack op records into a log's window. See `ternmq/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (page, at, end, closed, *, log_offset, lead, queue_offset, born_time_ms, born_host,
    store_time_ms, store_host, topic_field))]
#[allow(clippy::too_many_arguments)]
pub fn store_ops<'py>(
    py: Python<'py>,
    page: PyBuffer<u8>,
    at: usize,
    end: usize,
    closed: Vec<i64>,
    log_offset: i64,
    lead: usize,
    queue_offset: i64,
    born_time_ms: i64,
    born_host: &[u8],
    store_time_ms: i64,
    store_host: &[u8],
    topic_field: &[u8],
) -> PyResult<Option<Made<'py>>> {
    let (Ok(born_host), Ok(store_host)) = (born_host.try_into(), store_host.try_into()) else {
        return Ok(None);
    };
    let Some(room) = writable(py, &page)?.get_mut(at..end) else {
        return Ok(None);
    };
    let shared = Shared {
        born_time_ms,
        born_host,
        store_time_ms,
        store_host,
        topic_field,
        lead,
    };
    if closed.is_empty() || topic_field.is_empty() {
        return Ok(None);
    }
    let work = || store(room, &closed, &shared, log_offset, queue_offset);
    let Some((added, last_offset)) = unless_it_panics(work).flatten() else {
        return Ok(None);
    };
    Ok(added.into_python(py).map(|part| (last_offset, part)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{get_i64, plain_parts};

    #[test]
    fn all_are_packed_or_none() {
        let mut shared = Shared {
            born_time_ms: 1,
            born_host: [2; 8],
            store_time_ms: 3,
            store_host: [4; 8],
            topic_field: b"\x01t",
            lead: 0,
        };
        let mut room = vec![0; 1000];
        let (added, last_offset) = store(&mut room, &[9, 10], &shared, 5000, 77).unwrap();
        let size = FIXED_V4_BYTES + 1 + 2 + 2 + PROPERTIES.len();
        assert_eq!(last_offset, 5000 + size as i64);
        assert_eq!(added.log_end, last_offset + size as i64 + 1);
        assert_eq!(added.tags, vec![(TAGS_CODE, 79)]);
        let second = &room[size..2 * size + 1];
        let parts = plain_parts(second, last_offset).unwrap();
        assert!(parts.is_sound(second));
        assert_eq!((parts.body, get_i64(second, 20)), (&b"10"[..], 78));
        let mut small = vec![0; 2 * size];
        assert!(store(&mut small, &[9, 10], &shared, 5000, 77).is_none());
        assert!(small.iter().all(|&byte| byte == 0));
        // With bytes between them, which the log fills.
        shared.lead = 48;
        assert!(store(&mut vec![0; 2 * size + 48], &[9, 10], &shared, 5000, 77).is_none());
        let mut room = vec![7; 2 * size + 49];
        let (added, last_offset) = store(&mut room, &[9, 10], &shared, 5000, 77).unwrap();
        assert_eq!(last_offset, 5000 + size as i64 + 48);
        assert_eq!(added.log_end, last_offset + size as i64 + 1);
        assert_eq!(room[size..size + 48], [7; 48]);
    }
}
