//! A run of plain sends of one read: parsed once, and stored by one call (`wire.frame`, `store.log.run`).
//!
//! `parse_sends` takes the frames that follow each other and are sends of the usual shape: a JSON header as clients write
//! it, without spaces, each member once, numbers in their shortest form, properties with a unique key of letters and
//! digits. It stops before any other frame. `Sends.store` makes records, queue entries, index entries and replies of them.
//! It stops before a send that is not plain for the store: an unknown queue, a property that the broker has to look at, no
//! room, a size beyond a limit.

use std::ops::Range;

use memchr::{memchr, memmem};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::guard::or_doubt;
use crate::index;
use crate::page::{writable, Writer};
use crate::properties::{tags_code, topic_hash};

/// Bounds of a run: one call must not keep the broker from other work. A single frame may be larger.
const RUN_SENDS_MAX: usize = 64;
const RUN_BYTES_MAX: usize = 256 * 1024;

const HEADER_BYTES_MAX: usize = 1024 * 1024;
const FLAG_ONEWAY: i64 = 2;
const UNIQUE_KEY: &[u8] = b"UNIQ_KEY\x01";
const PROPERTIES_BYTES_MAX: usize = 32_767;
const MAGIC_V1: i32 = -626_843_481;
const FIXED_V4_BYTES: usize = 88;
const HOST_V4_BYTES: usize = 8;

/// Names of the ext fields, in the order of the letters: of SEND_MESSAGE 10, and of SEND_MESSAGE_V2 310.
const LONG_NAMES: [&[u8]; 14] = [
    b"producerGroup",
    b"topic",
    b"defaultTopic",
    b"defaultTopicQueueNums",
    b"queueId",
    b"sysFlag",
    b"bornTimestamp",
    b"flag",
    b"properties",
    b"reconsumeTimes",
    b"unitMode",
    b"maxReconsumeTimes",
    b"batch",
    b"bname",
];

/// Reads JSON as clients write it; None for all else.
struct Json<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Json<'a> {
    fn eat(&mut self, wanted: &[u8]) -> Option<()> {
        if !self.data[self.at..].starts_with(wanted) {
            return None;
        }
        self.at += wanted.len();
        Some(())
    }

    /// Whether a member follows; false at the end of the object.
    fn has_more(&mut self) -> Option<bool> {
        let byte = *self.data.get(self.at)?;
        self.at += 1;
        match byte {
            b',' => Some(true),
            b'}' => Some(false),
            _ => None,
        }
    }

    /// A string without escapes.
    fn string(&mut self) -> Option<&'a [u8]> {
        self.eat(b"\"")?;
        let rest = &self.data[self.at..];
        let found = &rest[..memchr(b'"', rest)?];
        if found.iter().any(|&byte| byte < 0x20 || byte == b'\\') {
            return None;
        }
        self.at += found.len() + 1;
        Some(found)
    }

    /// A name, and the colon behind it.
    fn name(&mut self) -> Option<&'a [u8]> {
        let name = self.string()?;
        self.eat(b":")?;
        Some(name)
    }

    /// A number, not in quotes.
    fn number(&mut self) -> Option<i64> {
        let rest = &self.data[self.at..];
        let end = rest
            .iter()
            .position(|&byte| byte != b'-' && !byte.is_ascii_digit())?;
        self.at += end;
        integer(&rest[..end])
    }

    /// Append a string to `text`, its escapes decoded. Halves of surrogate pairs are left to Python.
    fn append_to(&mut self, text: &mut Vec<u8>) -> Option<()> {
        self.eat(b"\"")?;
        loop {
            let rest = &self.data[self.at..];
            let plain = rest
                .iter()
                .position(|&byte| byte < 0x20 || byte == b'\\' || byte == b'"')?;
            text.extend_from_slice(&rest[..plain]);
            self.at += plain + 1;
            match rest[plain] {
                b'"' => return Some(()),
                b'\\' => self.escape(text)?,
                _ => return None,
            }
        }
    }

    fn escape(&mut self, text: &mut Vec<u8>) -> Option<()> {
        let kind = *self.data.get(self.at)?;
        self.at += 1;
        text.push(match kind {
            b'"' | b'\\' | b'/' => kind,
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 8,
            b'f' => 12,
            b'u' => {
                let mut code = 0;
                for &digit in self.data.get(self.at..self.at + 4)? {
                    code = code * 16 + (digit as char).to_digit(16)?;
                }
                self.at += 4;
                let mut room = [0; 4];
                let char = char::from_u32(code)?.encode_utf8(&mut room);
                text.extend_from_slice(char.as_bytes());
                return Some(());
            }
            _ => return None,
        });
        Some(())
    }
}

/// A number in its shortest decimal form.
fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty()
        || !digits.iter().all(u8::is_ascii_digit)
        || (digits[0] == b'0' && text.len() > 1)
    {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn integer32(text: &[u8]) -> Option<i32> {
    integer(text)?.try_into().ok()
}

/// What a header tells, but for its properties.
#[derive(Default)]
struct Head<'a> {
    opaque: i32,
    is_oneway: bool,
    topic: &'a [u8],
    queue_id: i32,
    sysflag: i32,
    flag: i32,
    reconsume_times: i32,
    born_time_ms: i64,
}

/// A header of the usual shape, in UTF-8; its properties are appended to `text`.
fn parse_head<'a>(data: &'a [u8], text: &mut Vec<u8>) -> Option<Head<'a>> {
    let mut json = Json { data, at: 0 };
    let mut head = Head::default();
    json.eat(b"{\"code\":")?;
    let has_letters = match json.number()? {
        310 => true,
        10 => false,
        _ => return None,
    };
    // Of two members with one name the last one counts: Python finds out.
    let mut seen = 0u8;
    while json.has_more()? {
        let bit = match json.name()? {
            b"extFields" => {
                parse_fields(&mut json, has_letters, &mut head, text)?;
                1
            }
            b"flag" => {
                let flag = json.number()?;
                if flag & !FLAG_ONEWAY != 0 {
                    return None;
                }
                head.is_oneway = flag != 0;
                2
            }
            b"opaque" => {
                head.opaque = json.number()?.try_into().ok()?;
                4
            }
            b"language" => {
                json.string()?;
                8
            }
            b"serializeTypeCurrentRPC" => {
                json.string()?;
                16
            }
            b"version" => {
                i32::try_from(json.number()?).ok()?;
                32
            }
            _ => return None,
        };
        if seen & bit != 0 {
            return None;
        }
        seen |= bit;
    }
    (seen & 7 == 7 && json.at == data.len()).then_some(head)
}

fn parse_fields<'a>(
    json: &mut Json<'a>,
    has_letters: bool,
    head: &mut Head<'a>,
    text: &mut Vec<u8>,
) -> Option<()> {
    json.eat(b"{")?;
    let mut seen = 0u32;
    loop {
        let name = json.name()?;
        let letter = match (has_letters, name) {
            (true, [letter @ b'a'..=b'n']) => letter - b'a',
            (true, _) => return None,
            (false, _) => LONG_NAMES.iter().position(|&known| known == name)? as u8,
        };
        match letter + b'a' {
            b'i' => json.append_to(text)?,
            b'b' => head.topic = json.string()?,
            b'a' | b'c' | b'n' => {
                json.string()?;
            }
            b'd' | b'l' => {
                integer32(json.string()?)?;
            }
            b'e' => head.queue_id = integer32(json.string()?)?,
            b'f' => head.sysflag = integer32(json.string()?)?,
            b'g' => head.born_time_ms = integer(json.string()?)?,
            b'h' => head.flag = integer32(json.string()?)?,
            b'j' => head.reconsume_times = integer32(json.string()?)?,
            b'k' => {
                matches!(json.string()?, b"true" | b"false").then_some(())?;
            }
            // `m`: a batch has a way of its own.
            _ => (json.string()? == b"false").then_some(())?,
        }
        if seen & 1 << letter != 0 {
            return None;
        }
        seen |= 1 << letter;
        if !json.has_more()? {
            break;
        }
    }
    // Topic, queue id and properties.
    const NEEDED: u32 = 1 << 1 | 1 << 4 | 1 << 8;
    (seen & NEEDED == NEEDED).then_some(())
}

/// The value of the last unique key of a property text, if it needs no escaping in a reply.
fn unique_key(properties: &[u8]) -> Option<Range<usize>> {
    let at = memmem::rfind(properties, UNIQUE_KEY)?;
    if at > 0 && properties[at - 1] != 2 {
        return None;
    }
    let begin = at + UNIQUE_KEY.len();
    let length = memchr(2, &properties[begin..])?;
    let key = &properties[begin..begin + length];
    (!key.is_empty() && key.iter().all(u8::is_ascii_alphanumeric)).then_some(begin..begin + length)
}

/// A frame: its header, where its body begins, and its end. None if it is not whole, not JSON, or not a frame.
fn frame_at(data: &[u8], at: usize, bytes_max: usize) -> Option<(&[u8], usize, usize)> {
    let prefix = data.get(at..at.checked_add(8)?)?;
    let length = u32::from_be_bytes(prefix[..4].try_into().ok()?) as usize;
    // The form of the header is in the top byte, 0 for JSON.
    let header_bytes = u32::from_be_bytes(prefix[4..].try_into().ok()?) as usize;
    if length + 4 > bytes_max || header_bytes + 4 > length || header_bytes > HEADER_BYTES_MAX {
        return None;
    }
    let end = at + 4 + length;
    let body_at = at + 8 + header_bytes;
    if end > data.len() {
        return None;
    }
    Some((&data[at + 8..body_at], body_at, end))
}

/// One send of a run. Ranges are in the data of the run or in its texts.
struct Parsed {
    frame: Range<usize>,
    body_at: usize,
    /// Number of its place: topic and queue id.
    place: usize,
    opaque: i32,
    is_oneway: bool,
    sysflag: i32,
    flag: i32,
    reconsume_times: i32,
    born_time_ms: i64,
    /// In `texts`, the last pair ended.
    properties: Range<usize>,
    key: Range<usize>,
    tags_code: i64,
}

struct Place {
    topic: String,
    topic_hash: i32,
    queue_id: i32,
}

/// The parsed sends of a run.
#[derive(Default)]
struct Run {
    sends: Vec<Parsed>,
    places: Vec<Place>,
    texts: Vec<u8>,
}

impl Run {
    /// Add the send whose frame begins at `at`; None if it is not plain, and the run is as before.
    fn add(&mut self, data: &[u8], at: usize, bytes_max: usize) -> Option<usize> {
        let text_at = self.texts.len();
        let added = self.try_add(data, at, bytes_max, text_at);
        if added.is_none() {
            self.texts.truncate(text_at);
        }
        added
    }

    fn try_add(
        &mut self,
        data: &[u8],
        at: usize,
        bytes_max: usize,
        text_at: usize,
    ) -> Option<usize> {
        let (header, body_at, end) = frame_at(data, at, bytes_max)?;
        std::str::from_utf8(header).ok()?;
        let head = parse_head(header, &mut self.texts)?;
        if *self.texts[text_at..].last()? != 2 {
            self.texts.push(2);
        }
        let properties = &self.texts[text_at..];
        let key = unique_key(properties)?;
        let tags_code = tags_code(properties).ok()?;
        let place = match self.places.iter().position(|place| {
            place.queue_id == head.queue_id && place.topic.as_bytes() == head.topic
        }) {
            Some(known) => known,
            None => {
                self.places.push(Place {
                    topic: std::str::from_utf8(head.topic).ok()?.to_owned(),
                    topic_hash: topic_hash(head.topic).ok()?,
                    queue_id: head.queue_id,
                });
                self.places.len() - 1
            }
        };
        self.sends.push(Parsed {
            frame: at..end,
            body_at,
            place,
            opaque: head.opaque,
            is_oneway: head.is_oneway,
            sysflag: head.sysflag,
            flag: head.flag,
            reconsume_times: head.reconsume_times,
            born_time_ms: head.born_time_ms,
            key: text_at + key.start..text_at + key.end,
            properties: text_at..self.texts.len(),
            tags_code,
        });
        Some(end)
    }

    fn parse(data: &[u8], begin: usize, bytes_max: usize) -> Self {
        let mut run = Self::default();
        let mut at = begin;
        while run.sends.len() < RUN_SENDS_MAX && at - begin < RUN_BYTES_MAX {
            match run.add(data, at, bytes_max) {
                Some(end) => at = end,
                None => break,
            }
        }
        run
    }
}

/// Sends of one read that follow each other. See `ternmq/_native.pyi`.
#[pyclass(frozen, module = "ternmq._native")]
pub struct Sends {
    #[pyo3(get)]
    data: Py<PyBytes>,
    run: Run,
}

/// Parse the plain sends that follow each other from `at` on; None if there is none.
#[pyfunction]
pub fn parse_sends(
    py: Python<'_>,
    data: Py<PyBytes>,
    at: usize,
    bytes_max: usize,
) -> Option<Sends> {
    let bytes = data.as_bytes(py);
    let run = or_doubt(|| None, || Some(Run::parse(bytes, at, bytes_max)))?;
    (!run.sends.is_empty()).then_some(Sends { data, run })
}

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
}

#[pymethods]
impl ReplyForm {
    #[new]
    fn new(parts: Vec<Vec<u8>>) -> PyResult<Self> {
        Ok(Self {
            parts: parts
                .try_into()
                .map_err(|_| PyValueError::new_err("a reply has six parts"))?,
        })
    }
}

impl ReplyForm {
    fn fill(
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
struct Added {
    entries: Vec<u8>,
    log_end: i64,
    body_bytes: usize,
    /// Each tags code, with the queue offset behind its last record.
    tags: Vec<(i64, i64)>,
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
}

/// What a call of `store` gives, beside the terms.
struct Call<'a> {
    first: usize,
    log_offset: i64,
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
    };
    let mut at = 0;
    for send in run.sends.iter().skip(call.first) {
        let place = &run.places[send.place];
        let Some(Some(target)) = call.targets.get_mut(send.place) else {
            break;
        };
        let properties = &run.texts[send.properties.clone()];
        if terms
            .marks
            .iter()
            .any(|mark| mark.find(properties).is_some())
        {
            break;
        }
        let body = &data[send.body_at..send.frame.end];
        let properties_bytes = properties.len() + terms.more_properties.len();
        let size = FIXED_V4_BYTES + body.len() + target.topic_field.len() + 2 + properties_bytes;
        let log_offset = made.end_offset;
        if body.len() > terms.body_bytes_max
            || properties_bytes > PROPERTIES_BYTES_MAX
            || size > terms.record_bytes_max
            || size > room.len() - at
            || index::make(
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
        let mut page = Writer {
            page: &mut room[at..at + size],
            at: 0,
        };
        page.put(&(size as i32).to_be_bytes());
        page.put(&MAGIC_V1.to_be_bytes());
        page.put(&(crc32fast::hash(body) & 0x7FFF_FFFF).to_be_bytes());
        page.put(&place.queue_id.to_be_bytes());
        page.put(&send.flag.to_be_bytes());
        page.put(&target.queue_offset.to_be_bytes());
        page.put(&log_offset.to_be_bytes());
        page.put(&(send.sysflag & terms.sysflag_mask).to_be_bytes());
        page.put(&send.born_time_ms.to_be_bytes());
        page.put(&call.born_host);
        page.put(&call.store_time_ms.to_be_bytes());
        page.put(&terms.store_host);
        page.put(&send.reconsume_times.to_be_bytes());
        page.put(&[0; 8]);
        page.put(&(body.len() as i32).to_be_bytes());
        page.put(body);
        page.put(target.topic_field);
        page.put(&(properties_bytes as i16).to_be_bytes());
        page.put(properties);
        page.put(&terms.more_properties);
        debug_assert_eq!(page.at, size);

        if !send.is_oneway {
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
        at += size;
        made.last_offset = log_offset;
        made.end_offset = log_offset + size as i64;
        made.next += 1;
        let added = &mut made.added[send.place];
        added.entries.extend_from_slice(&log_offset.to_be_bytes());
        added
            .entries
            .extend_from_slice(&(size as i32).to_be_bytes());
        added
            .entries
            .extend_from_slice(&send.tags_code.to_be_bytes());
        added.log_end = made.end_offset;
        added.body_bytes += body.len();
        match added
            .tags
            .iter_mut()
            .find(|(code, _)| *code == send.tags_code)
        {
            Some((_, end)) => *end = target.queue_offset,
            None => added.tags.push((send.tags_code, target.queue_offset)),
        }
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
);

#[pymethods]
impl Sends {
    /// How many sends these are.
    #[getter]
    fn count(&self) -> usize {
        self.run.sends.len()
    }

    /// Bytes of their frames.
    #[getter]
    fn frame_bytes(&self) -> usize {
        self.end() - self.run.sends[0].frame.start
    }

    /// Where the last frame ends in `data`.
    #[getter]
    fn end(&self) -> usize {
        self.run.sends[self.run.sends.len() - 1].frame.end
    }

    /// Topic and queue id of each queue that is named.
    #[getter]
    fn places<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let places = self.run.places.iter();
        PyList::new(
            py,
            places.map(|place| (PyString::new(py, &place.topic), place.queue_id)),
        )
    }

    /// Where the frame of a send begins and ends in `data`.
    fn frame(&self, number: usize) -> PyResult<(usize, usize)> {
        let send = self.run.sends.get(number);
        send.map(|send| (send.frame.start, send.frame.end))
            .ok_or_else(|| PyIndexError::new_err("there is no such send"))
    }

    /// Pack sends as records into a log's window. See `ternmq/_native.pyi`.
    #[allow(clippy::too_many_arguments)]
    fn store<'py>(
        &self,
        py: Python<'py>,
        terms: &SendTerms,
        form: &ReplyForm,
        first: usize,
        page: PyBuffer<u8>,
        at: usize,
        end: usize,
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
            log_offset,
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
        let data = self.data.as_bytes(py);
        // What a panic leaves behind the end of the log was never sealed: it does not exist.
        let work = || Some(store(data, &self.run, room, terms, form, call));
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
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(header: &str, body: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        data.extend_from_slice(&((4 + header.len() + body.len()) as u32).to_be_bytes());
        data.extend_from_slice(&(header.len() as u32).to_be_bytes());
        data.extend_from_slice(header.as_bytes());
        data.extend_from_slice(body);
        data
    }

    fn header(queue_id: i32, properties: &str) -> String {
        format!(
            r#"{{"code":310,"extFields":{{"a":"g","b":"t","e":"{queue_id}","f":"0","g":"5","i":"{properties}"}},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":401}}"#
        )
    }

    const KEY: &str = r"UNIQ_KEY\u0001A1\u0002";

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
        }
    }

    fn call(first: usize, places: usize) -> Call<'static> {
        Call {
            first,
            log_offset: 1000,
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
        assert_eq!(run.sends.len(), 2);
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
    fn a_run_stops_before_what_is_not_plain() {
        let data = [
            frame(&header(0, KEY), b"one"),
            frame(&header(0, &format!(r"{KEY}DELAY\u00013\u0002")), b"two"),
            frame(&header(1, KEY), b"three"),
        ]
        .concat();
        let run = Run::parse(&data, 0, 1 << 20);
        assert_eq!(run.sends.len(), 3);
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

    #[test]
    fn any_cut_is_refused() {
        let data = frame(&header(0, KEY), b"");
        assert_eq!(Run::parse(&data, 0, 1 << 20).sends.len(), 1);
        for cut in 0..data.len() {
            assert!(
                Run::parse(&data[..cut], 0, 1 << 20).sends.is_empty(),
                "{cut}"
            );
        }
        // The frame is whole, but its header is cut.
        let text = header(0, KEY);
        for cut in 0..text.len() {
            let mut run = Run::default();
            assert!(
                run.add(&frame(&text[..cut], b"x"), 0, 1 << 20).is_none(),
                "{cut}"
            );
            assert!(run.texts.is_empty());
        }
    }

    #[test]
    fn numbers_have_their_shortest_form() {
        assert_eq!(integer(b"-12"), Some(-12));
        assert_eq!(integer(b"0"), Some(0));
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        for text in [
            "",
            "-",
            "-0",
            "00",
            "01",
            "+1",
            "1-",
            "9223372036854775808",
            "1_0",
        ] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }
}
