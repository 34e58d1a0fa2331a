//! A run of plain sends (`sends`), stored by one call (`store.log.run`).
//!
//! `store_sends` makes records, queue entries, index entries and replies. It stops before a send that is not plain for
//! the store: an unknown queue, a property that the broker has to look at, no room, a size beyond a limit.

use memchr::memmem;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::guard::or_doubt;
use crate::index;
use crate::page::writable;
use crate::record::{pack, Fields, FIXED_V4_BYTES, HOST_V4_BYTES, PROPERTIES_BYTES_MAX};
use crate::sends::{Request, Run, Sends};

/// Index entries of one call, and those of its last record: a message may have thousands of keys.
pub const KEYS_BYTES_MAX: usize = 64 * 1024;

/// What all runs of a broker share.
#[pyclass(frozen, module = "ternmq._native")]
pub struct SendTerms {
    pub store_host: [u8; HOST_V4_BYTES],
    pub more_properties: Vec<u8>,
    marks: Vec<memmem::Finder<'static>>,
    pub sysflag_mask: i32,
    body_bytes_max: usize,
    record_bytes_max: usize,
}

impl SendTerms {
    /// Whether the properties of a send hold a mark: then it is not plain.
    pub fn has_mark(&self, properties: &[u8]) -> bool {
        self.marks
            .iter()
            .any(|mark| mark.find(properties).is_some())
    }

    /// The size of a record, if it breaks no limit.
    pub fn record_bytes(
        &self,
        body_bytes: usize,
        topic_field_bytes: usize,
        properties_bytes: usize,
    ) -> Option<usize> {
        let size = FIXED_V4_BYTES + body_bytes + topic_field_bytes + 2 + properties_bytes;
        (body_bytes <= self.body_bytes_max
            && properties_bytes <= PROPERTIES_BYTES_MAX
            && size <= self.record_bytes_max)
            .then_some(size)
    }
}

#[pymethods]
impl SendTerms {
    #[new]
    #[pyo3(signature = (*, store_host, more_properties, marks, sysflag_mask, body_bytes_max, record_bytes_max))]
    fn new(
        store_host: &[u8],
        more_properties: &[u8],
        marks: Vec<Vec<u8>>,
        sysflag_mask: i32,
        body_bytes_max: usize,
        record_bytes_max: usize,
    ) -> PyResult<Self> {
        Ok(Self {
            store_host: store_host
                .try_into()
                .map_err(|_| PyValueError::new_err("the store host must be IPv4"))?,
            more_properties: more_properties.to_vec(),
            marks: marks
                .iter()
                .map(|mark| memmem::Finder::new(mark).into_owned())
                .collect(),
            sysflag_mask,
            body_bytes_max,
            record_bytes_max: record_bytes_max.min(i32::MAX as usize),
        })
    }
}

/// The parts of a reply that stay the same, between log offset, queue id, queue offset, unique key and opaque.
#[pyclass(frozen, module = "ternmq._native")]
pub struct ReplyForm {
    parts: [Vec<u8>; 6],
    /// What stands between unique key and recall handle, in a form for messages that have one.
    pub before_handle: Option<Vec<u8>>,
}

#[pymethods]
impl ReplyForm {
    #[new]
    fn new(mut parts: Vec<Vec<u8>>) -> PyResult<Self> {
        let before_handle = (parts.len() == 7).then(|| parts.remove(4));
        Ok(Self {
            parts: parts
                .try_into()
                .map_err(|_| PyValueError::new_err("a reply has six parts, or seven"))?,
            before_handle,
        })
    }
}

impl ReplyForm {
    /// Append a reply. `key` is followed by `before_handle` and the handle, where there is one.
    pub fn fill(
        &self,
        out: &mut Vec<u8>,
        log_offset: i64,
        queue_id: i32,
        queue_offset: i64,
        key: &[u8],
        opaque: i32,
    ) {
        use std::io::Write;
        let begin = out.len();
        out.extend_from_slice(&[0; 8]);
        let [a, b, c, d, e, f] = &self.parts;
        // Writing to a Vec cannot fail.
        out.extend_from_slice(a);
        let _ = write!(out, "{log_offset:016X}");
        out.extend_from_slice(b);
        let _ = write!(out, "{queue_id}");
        out.extend_from_slice(c);
        let _ = write!(out, "{queue_offset}");
        out.extend_from_slice(d);
        out.extend_from_slice(key);
        out.extend_from_slice(e);
        let _ = write!(out, "{opaque}");
        out.extend_from_slice(f);
        let head_bytes = (out.len() - begin - 8) as u32;
        out[begin..begin + 4].copy_from_slice(&(head_bytes + 4).to_be_bytes());
        out[begin + 4..begin + 8].copy_from_slice(&head_bytes.to_be_bytes());
    }
}

/// Where the sends of a place go.
struct Target<'a> {
    queue_offset: i64,
    /// The topic with its length in front.
    topic_field: &'a [u8],
}

/// What the records of one place add to its queue.
#[derive(Default)]
pub struct Added {
    pub entries: Vec<u8>,
    pub log_end: i64,
    pub body_bytes: usize,
    /// Each tags code, with the queue offset behind its last record.
    pub tags: Vec<(i64, i64)>,
}

impl Added {
    /// Add a record; `queue_end` is the queue offset behind it.
    pub fn add(
        &mut self,
        log_offset: i64,
        size: usize,
        tags_code: i64,
        queue_end: i64,
        body_bytes: usize,
    ) {
        self.entries.extend_from_slice(&log_offset.to_be_bytes());
        self.entries.extend_from_slice(&(size as i32).to_be_bytes());
        self.entries.extend_from_slice(&tags_code.to_be_bytes());
        self.log_end = log_offset + size as i64;
        self.body_bytes += body_bytes;
        match self.tags.iter_mut().find(|(code, _)| *code == tags_code) {
            Some((_, end)) => *end = queue_end,
            None => self.tags.push((tags_code, queue_end)),
        }
    }
}

/// What is known of the records that were packed.
struct Stored {
    /// Number of the first send that is not stored.
    next: usize,
    end_offset: i64,
    last_offset: i64,
    added: Vec<Added>,
    keys: Vec<u8>,
    replies: Vec<u8>,
    /// Log offset behind each record whose sender gets a reply.
    ends: Vec<u8>,
}

/// What a call of `store` gives, beside the terms.
struct Call<'a> {
    first: usize,
    /// Number of the first send that must not be stored.
    until: usize,
    log_offset: i64,
    /// Bytes between two records, which the log fills.
    lead: usize,
    store_time_ms: i64,
    born_host: [u8; HOST_V4_BYTES],
    targets: Vec<Option<Target<'a>>>,
}

/// Pack the sends from `call.first` on as records into `room`, up to the first that is not plain.
fn store(
    data: &[u8],
    run: &Run,
    room: &mut [u8],
    terms: &SendTerms,
    form: &ReplyForm,
    mut call: Call<'_>,
) -> Stored {
    let mut made = Stored {
        next: call.first,
        end_offset: call.log_offset,
        last_offset: call.log_offset,
        added: std::iter::repeat_with(Added::default)
            .take(run.places.len())
            .collect(),
        keys: Vec::new(),
        replies: Vec::new(),
        ends: Vec::new(),
    };
    // Where the next record begins in the room.
    let mut at = 0;
    let until = call.until.min(run.requests.len());
    for request in run.requests.iter().take(until).skip(call.first) {
        let Request::Send(send) = request else {
            break;
        };
        let place = &run.places[send.place];
        let Some(Some(target)) = call.targets.get_mut(send.place) else {
            break;
        };
        let properties = &run.texts[send.properties.clone()];
        if terms.has_mark(properties) {
            break;
        }
        let body = &data[send.body_at..send.frame.end];
        // The run goes on in the next call.
        if made.keys.len() > KEYS_BYTES_MAX {
            break;
        }
        let properties_bytes = properties.len() + terms.more_properties.len();
        let size = terms.record_bytes(body.len(), target.topic_field.len(), properties_bytes);
        let Some(size) = size.filter(|&size| at + size <= room.len()) else {
            break;
        };
        let log_offset = call.log_offset + at as i64;
        if index::make(
            &mut made.keys,
            properties,
            place.topic_hash,
            log_offset,
            call.store_time_ms,
        )
        .is_err()
        {
            break;
        }
        let fields = Fields {
            queue_id: place.queue_id,
            flag: send.flag,
            queue_offset: target.queue_offset,
            log_offset,
            sysflag: send.sysflag & terms.sysflag_mask,
            born_time_ms: send.born_time_ms,
            born_host: &call.born_host,
            store_time_ms: call.store_time_ms,
            store_host: &terms.store_host,
            reconsume_times: send.reconsume_times,
            prepared_offset: 0,
        };
        pack(
            &mut room[at..at + size],
            &fields,
            body,
            target.topic_field,
            [properties, &terms.more_properties, b""],
        );

        let end_offset = log_offset + size as i64;
        if !send.is_oneway {
            made.ends.extend_from_slice(&end_offset.to_ne_bytes());
            form.fill(
                &mut made.replies,
                log_offset,
                place.queue_id,
                target.queue_offset,
                &run.texts[send.key.clone()],
                send.opaque,
            );
        }
        target.queue_offset += 1;
        at += size + call.lead;
        made.last_offset = log_offset;
        made.end_offset = end_offset;
        made.next += 1;
        made.added[send.place].add(
            log_offset,
            size,
            send.tags_code,
            target.queue_offset,
            body.len(),
        );
    }
    made
}

type Made<'py> = (
    usize,
    i64,
    i64,
    Bound<'py, PyList>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

/// Pack sends as records into a log's window. See `ternmq/_native.pyi`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn store_sends<'py>(
    py: Python<'py>,
    sends: &Sends,
    terms: &SendTerms,
    form: &ReplyForm,
    first: usize,
    until: usize,
    page: PyBuffer<u8>,
    at: usize,
    end: usize,
    lead: usize,
    log_offset: i64,
    store_time_ms: i64,
    born_host: &[u8],
    targets: &Bound<'py, PyList>,
) -> PyResult<Option<Made<'py>>> {
    let Ok(born_host) = born_host.try_into() else {
        return Ok(None);
    };
    let given: Vec<Option<(i64, Bound<'py, PyBytes>)>> = targets.extract()?;
    let Some(room) = writable(py, &page)?.get_mut(at..end) else {
        return Ok(None);
    };
    let call = Call {
        first,
        until,
        log_offset,
        lead,
        store_time_ms,
        born_host,
        targets: given
            .iter()
            .map(|target| {
                target.as_ref().map(|(queue_offset, topic_field)| Target {
                    queue_offset: *queue_offset,
                    topic_field: topic_field.as_bytes(),
                })
            })
            .collect(),
    };
    let data = sends.data.as_bytes(py);
    // What a panic leaves behind the end of the log was never sealed: it does not exist.
    let work = || Some(store(data, &sends.run, room, terms, form, call));
    let Some(made) = or_doubt(|| None, work) else {
        return Ok(None);
    };
    if made.next == first {
        return Ok(None);
    }
    let added = PyList::empty(py);
    for (number, added_to) in made.added.into_iter().enumerate() {
        if !added_to.entries.is_empty() {
            added.append((
                number,
                PyBytes::new(py, &added_to.entries),
                added_to.log_end,
                added_to.body_bytes,
                added_to.tags,
            ))?;
        }
    }
    Ok(Some((
        made.next,
        made.end_offset,
        made.last_offset,
        added,
        PyBytes::new(py, &made.keys),
        PyBytes::new(py, &made.replies),
        PyBytes::new(py, &made.ends),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sends::tests::{frame, header, KEY};

    fn terms() -> SendTerms {
        SendTerms {
            store_host: [1; 8],
            more_properties: b"C\x01c\x02".to_vec(),
            marks: vec![memmem::Finder::new(b"DELAY").into_owned()],
            sysflag_mask: -1,
            body_bytes_max: 100,
            record_bytes_max: 1000,
        }
    }

    fn form() -> ReplyForm {
        ReplyForm {
            parts: ["a", "b", "c", "d", "e", "f"].map(|part| part.as_bytes().to_vec()),
            before_handle: None,
        }
    }

    fn call(first: usize, places: usize) -> Call<'static> {
        Call {
            first,
            until: 100,
            log_offset: 1000,
            lead: 0,
            store_time_ms: 9,
            born_host: [2; 8],
            targets: (0..places)
                .map(|_| {
                    Some(Target {
                        queue_offset: 4,
                        topic_field: b"\x01t",
                    })
                })
                .collect(),
        }
    }

    #[test]
    fn sends_become_records_entries_and_replies() {
        let data = [
            frame(&header(0, KEY), b"one"),
            frame(&header(0, r"TAGS\u0001x\u0002UNIQ_KEY\u0001B2"), b"two"),
        ]
        .concat();
        let run = Run::parse(&data, 0, 1 << 20);
        assert_eq!(run.requests.len(), 2);
        assert_eq!(run.places.len(), 1);
        let mut room = vec![0; 1000];
        let made = store(&data, &run, &mut room, &terms(), &form(), call(0, 1));
        assert_eq!(made.next, 2);
        assert_eq!(made.added[0].entries.len(), 40);
        assert_eq!(made.added[0].tags, vec![(0, 5), (i64::from(b'x'), 6)]);
        assert_eq!(made.keys.len(), 2 * index::MADE_BYTES);
        let first = &b"\0\0\0\x1f\0\0\0\x1ba00000000000003E8b0c4dA1e7f"[..];
        assert_eq!(&made.replies[..first.len()], first);
        assert!(room[(made.end_offset - 1000) as usize..]
            .iter()
            .all(|&byte| byte == 0));
    }

    #[test]
    fn records_have_the_bytes_between_them_that_the_log_fills() {
        let data = frame(&header(0, KEY), b"one").repeat(3);
        let run = Run::parse(&data, 0, 1 << 20);
        let mut room = vec![7; 1000];
        let mut given = call(0, 1);
        given.lead = 48;
        given.until = 2;
        let made = store(&data, &run, &mut room, &terms(), &form(), given);
        assert_eq!(made.next, 2);
        let size = (made.end_offset - 1000 - 48) / 2;
        assert_eq!(made.last_offset, 1000 + size + 48);
        let ends: Vec<i64> = made
            .ends
            .chunks(8)
            .map(|end| i64::from_ne_bytes(end.try_into().unwrap()))
            .collect();
        assert_eq!(ends, vec![1000 + size, made.end_offset]);
        let untouched = [
            &room[size as usize..size as usize + 48],
            &room[(2 * size + 48) as usize..],
        ];
        assert!(untouched.concat().iter().all(|&byte| byte == 7));
        // Room for two records, not for the bytes between them.
        let mut small = vec![7; 2 * size as usize + 47];
        let mut given = call(0, 1);
        given.lead = 48;
        assert_eq!(
            store(&data, &run, &mut small, &terms(), &form(), given).next,
            1
        );
    }

    #[test]
    fn a_run_stops_before_what_is_not_plain() {
        let data = [
            frame(&header(0, KEY), b"one"),
            frame(&header(0, &format!(r"{KEY}DELAY\u00013\u0002")), b"two"),
            frame(&header(1, KEY), b"three"),
        ]
        .concat();
        let run = Run::parse(&data, 0, 1 << 20);
        assert_eq!(run.requests.len(), 3);
        let mut room = vec![0; 1000];
        assert_eq!(
            store(&data, &run, &mut room, &terms(), &form(), call(0, 2)).next,
            1
        );
        assert_eq!(
            store(&data, &run, &mut room, &terms(), &form(), call(1, 2)).next,
            1
        );
        assert_eq!(
            store(&data, &run, &mut room, &terms(), &form(), call(2, 2)).next,
            3
        );
        // No such queue, no room.
        assert_eq!(
            store(&data, &run, &mut room, &terms(), &form(), call(2, 1)).next,
            2
        );
        let mut small = vec![0; 100];
        assert_eq!(
            store(&data, &run, &mut small, &terms(), &form(), call(0, 2)).next,
            0
        );
        assert!(small.iter().all(|&byte| byte == 0));
    }
}
