//! What the kernels share that store requests of a run as records (`storing`, `timed_sends`, `transactions`): their terms,
//! the replies, the records, and what these add to their queues.

use std::collections::HashSet;

use memchr::memmem;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::guard::or_doubt;
use crate::index;
use crate::properties::topic_hash;
use crate::record::{pack, Fields, FIXED_V4_BYTES, HOST_V4_BYTES, PROPERTIES_BYTES_MAX};
use crate::sends::{Parsed, Run};

/// Index entries of one call, and those of its last record: a message may have thousands of keys.
const KEYS_BYTES_MAX: usize = 64 * 1024;

/// What all runs of a broker share.
#[pyclass(frozen, module = "ternmq._native")]
pub struct SendTerms {
    store_host: [u8; HOST_V4_BYTES],
    more_properties: Vec<u8>,
    marks: Vec<memmem::Finder<'static>>,
    sysflag_mask: i32,
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
    fn record_bytes(
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

const QUEUE_ENTRY_BYTES: usize = 20;

/// What records add to their queue.
#[derive(Default)]
pub struct Added {
    pub entries: Vec<u8>,
    pub log_end: i64,
    pub body_bytes: usize,
    /// Each tags code, with the queue offset behind its last record, or behind a later one of them.
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
        self.add_entry(log_offset, size, tags_code, body_bytes);
        match self.tags.iter_mut().find(|(code, _)| *code == tags_code) {
            Some((_, end)) => *end = queue_end,
            None => self.tags.push((tags_code, queue_end)),
        }
    }

    /// Add a record, but for its tags code: of a call that may have thousands of these.
    pub fn add_entry(&mut self, log_offset: i64, size: usize, tags_code: i64, body_bytes: usize) {
        self.entries.extend_from_slice(&log_offset.to_be_bytes());
        self.entries.extend_from_slice(&(size as i32).to_be_bytes());
        self.entries.extend_from_slice(&tags_code.to_be_bytes());
        self.log_end = log_offset + size as i64;
        self.body_bytes += body_bytes;
    }

    /// How many records these are.
    pub fn count(&self) -> usize {
        self.entries.len() / QUEUE_ENTRY_BYTES
    }

    /// Queue entries, log offset behind the last record, bytes of the bodies, and tags; None without records.
    pub fn into_python(self, py: Python<'_>) -> Option<QueuePart<'_>> {
        if self.entries.is_empty() {
            return None;
        }
        let entries = PyBytes::new(py, &self.entries);
        Some((entries, self.log_end, self.body_bytes, self.tags))
    }
}

/// The tags codes of records of one queue, each once. A call may have as many of them as records: a search in the list
/// would take seconds then.
#[derive(Default)]
pub struct Codes {
    pub list: Vec<i64>,
    known: HashSet<i64>,
}

impl Codes {
    pub fn add(&mut self, code: i64) {
        if self.list.last() != Some(&code) && self.known.insert(code) {
            self.list.push(code);
        }
    }

    /// With the queue offset behind the last of the records.
    pub fn with_end(self, queue_end: i64) -> Vec<(i64, i64)> {
        self.list
            .into_iter()
            .map(|code| (code, queue_end))
            .collect()
    }
}

/// What records add to some queues, each with its number; those that get none are left out.
pub fn numbered(py: Python<'_>, queues: Vec<Added>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for (number, added) in queues.into_iter().enumerate() {
        if let Some((entries, log_end, body_bytes, tags)) = added.into_python(py) {
            list.append((number, entries, log_end, body_bytes, tags))?;
        }
    }
    Ok(list)
}

pub type QueuePart<'py> = (Bound<'py, PyBytes>, i64, usize, Vec<(i64, i64)>);

/// How many messages, and bytes of their bodies, each place sent.
pub struct SentCounts(Vec<(usize, usize)>);

impl SentCounts {
    pub fn of(run: &Run) -> Self {
        Self(vec![(0, 0); run.places.len()])
    }

    pub fn add(&mut self, place: usize, body_bytes: usize) {
        let (count, size) = &mut self.0[place];
        *count += 1;
        *size += body_bytes;
    }

    /// Those that sent something, with their numbers.
    pub fn into_python(self) -> Vec<(usize, usize, usize)> {
        let places = self.0.into_iter().enumerate();
        places
            .filter(|(_, (count, _))| *count > 0)
            .map(|(place, (count, size))| (place, count, size))
            .collect()
    }
}

/// A queue, and what comes next in it.
pub struct Target<'a> {
    pub queue_id: i32,
    pub queue_offset: i64,
    /// The topic with its length in front, and the hash of its keys.
    pub topic_field: &'a [u8],
    pub topic_hash: i32,
}

impl<'a> Target<'a> {
    /// The queue of a topic that has only one.
    pub fn of_system(topic_field: &'a [u8], queue_offset: i64) -> Option<Self> {
        Some(Self {
            queue_id: 0,
            queue_offset,
            topic_field,
            topic_hash: topic_hash(topic_field.get(1..)?).ok()?,
        })
    }
}

/// What begins a call that stores requests in a system topic, on a log without leads: the host of their sender, the
/// queue, and where the records stand. None if Python must decide.
pub fn set_up<'a>(
    born_host: &[u8],
    topic_field: &'a [u8],
    queue_offset: i64,
    log_offset: i64,
    store_time_ms: i64,
) -> Option<([u8; HOST_V4_BYTES], Target<'a>, Place)> {
    let place = Place {
        log_offset,
        lead: 0,
        store_time_ms,
    };
    Some((
        born_host.try_into().ok()?,
        Target::of_system(topic_field, queue_offset)?,
        place,
    ))
}

/// What a record takes over from a request, or from another record.
pub struct Content<'a> {
    pub flag: i32,
    /// Of its sender, and bits of ours.
    pub sysflag: i32,
    pub own_sysflag: i32,
    pub born_time_ms: i64,
    pub born_host: [u8; HOST_V4_BYTES],
    pub reconsume_times: i32,
    /// Of a commit: the log offset of its half. Else 0.
    pub prepared_offset: i64,
    pub body: &'a [u8],
    pub properties: &'a [u8],
    pub tags_code: i64,
}

impl<'a> Content<'a> {
    pub fn of_send(
        send: &Parsed,
        run: &'a Run,
        data: &'a [u8],
        born_host: [u8; HOST_V4_BYTES],
    ) -> Self {
        Self {
            flag: send.flag,
            sysflag: send.sysflag,
            own_sysflag: 0,
            born_time_ms: send.born_time_ms,
            born_host,
            reconsume_times: send.reconsume_times,
            prepared_offset: 0,
            body: &data[send.body_at..send.frame.end],
            properties: &run.texts[send.properties.clone()],
            tags_code: send.tags_code,
        }
    }
}

/// Where the records of a call stand.
pub struct Place {
    pub log_offset: i64,
    /// Bytes between two records, which the log fills.
    pub lead: usize,
    pub store_time_ms: i64,
}

/// Records of a run, packed one behind the other.
pub struct Packing<'a> {
    room: &'a mut [u8],
    place: Place,
    /// Where the next record begins in the room.
    at: usize,
    /// Log offset of the last record, and behind it.
    pub last_offset: i64,
    pub end_offset: i64,
    /// Index entries.
    pub keys: Vec<u8>,
    /// As frames.
    pub replies: Vec<u8>,
}

impl<'a> Packing<'a> {
    pub fn new(room: &'a mut [u8], place: Place) -> Self {
        Self {
            room,
            at: 0,
            last_offset: place.log_offset,
            end_offset: place.log_offset,
            place,
            keys: Vec::new(),
            replies: Vec::new(),
        }
    }

    pub fn store_time_ms(&self) -> i64 {
        self.place.store_time_ms
    }

    /// Pack a record, and tell its log offset. Its properties are its own, those of the terms, and `note`. None, and nothing
    /// is written, if it has no room, breaks a limit or has keys that are not plain, or if there are index entries enough.
    pub fn put(
        &mut self,
        terms: &SendTerms,
        target: &mut Target<'_>,
        content: &Content<'_>,
        note: &[u8],
        added: &mut Added,
    ) -> Option<i64> {
        // The run goes on in the next call.
        if self.keys.len() > KEYS_BYTES_MAX {
            return None;
        }
        let (body, texts) = (
            content.body,
            [content.properties, &terms.more_properties, note],
        );
        let properties_bytes = texts.iter().map(|text| text.len()).sum();
        let size = terms.record_bytes(body.len(), target.topic_field.len(), properties_bytes)?;
        let page = self.room.get_mut(self.at..)?.get_mut(..size)?;
        let log_offset = self.place.log_offset + self.at as i64;
        let Place {
            store_time_ms,
            lead,
            ..
        } = self.place;
        index::make(
            &mut self.keys,
            content.properties,
            target.topic_hash,
            log_offset,
            store_time_ms,
        )
        .ok()?;
        let fields = Fields {
            queue_id: target.queue_id,
            flag: content.flag,
            queue_offset: target.queue_offset,
            log_offset,
            sysflag: content.sysflag & terms.sysflag_mask | content.own_sysflag,
            born_time_ms: content.born_time_ms,
            born_host: &content.born_host,
            store_time_ms,
            store_host: &terms.store_host,
            reconsume_times: content.reconsume_times,
            prepared_offset: content.prepared_offset,
        };
        pack(page, &fields, body, target.topic_field, texts);
        target.queue_offset += 1;
        added.add(
            log_offset,
            size,
            content.tags_code,
            target.queue_offset,
            body.len(),
        );
        self.at += size + lead;
        self.last_offset = log_offset;
        self.end_offset = log_offset + size as i64;
        Some(log_offset)
    }
}

/// Pack records into a page; None if that panics. What is left behind the end of the log then was never sealed: it does
/// not exist.
pub fn unless_it_panics<T>(work: impl FnOnce() -> T) -> Option<T> {
    or_doubt(|| None, || Some(work()))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn terms() -> SendTerms {
        SendTerms {
            store_host: [1; 8],
            more_properties: b"C\x01c\x02".to_vec(),
            marks: vec![memmem::Finder::new(b"DELAY").into_owned()],
            sysflag_mask: -1,
            body_bytes_max: 100,
            record_bytes_max: 1000,
        }
    }

    pub fn form() -> ReplyForm {
        ReplyForm {
            parts: ["a", "b", "c", "d", "e", "f"].map(|part| part.as_bytes().to_vec()),
            before_handle: None,
        }
    }
}
