//! A run of plain sends of one read, parsed once (`wire.frame`); `storing` makes records of it.
//!
//! `parse_sends` takes the frames that follow each other and are sends of the usual shape: a JSON header as clients write
//! it, without spaces, each member once, numbers in their shortest form, properties with a unique key of letters and
//! digits. It stops before any other frame.

use std::ops::Range;

use memchr::{memchr, memmem};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::guard::or_doubt;
use crate::properties::{tags_code, topic_hash};

/// Bounds of a run: one call must not keep the broker from other work. A single frame may be larger.
const RUN_SENDS_MAX: usize = 64;
const RUN_BYTES_MAX: usize = 256 * 1024;

const HEADER_BYTES_MAX: usize = 1024 * 1024;
const FLAG_ONEWAY: i64 = 2;
const UNIQUE_KEY: &[u8] = b"UNIQ_KEY\x01";

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
pub struct Parsed {
    pub frame: Range<usize>,
    pub body_at: usize,
    /// Number of its place: topic and queue id.
    pub place: usize,
    pub opaque: i32,
    pub is_oneway: bool,
    pub sysflag: i32,
    pub flag: i32,
    pub reconsume_times: i32,
    pub born_time_ms: i64,
    /// In `texts`, the last pair ended.
    pub properties: Range<usize>,
    pub key: Range<usize>,
    pub tags_code: i64,
}

pub struct Place {
    pub topic: String,
    pub topic_hash: i32,
    pub queue_id: i32,
}

/// The parsed sends of a run.
#[derive(Default)]
pub struct Run {
    pub sends: Vec<Parsed>,
    pub places: Vec<Place>,
    pub texts: Vec<u8>,
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

    pub fn parse(data: &[u8], begin: usize, bytes_max: usize) -> Self {
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
    pub data: Py<PyBytes>,
    pub run: Run,
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
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn frame(header: &str, body: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        data.extend_from_slice(&((4 + header.len() + body.len()) as u32).to_be_bytes());
        data.extend_from_slice(&(header.len() as u32).to_be_bytes());
        data.extend_from_slice(header.as_bytes());
        data.extend_from_slice(body);
        data
    }

    pub fn header(queue_id: i32, properties: &str) -> String {
        format!(
            r#"{{"code":310,"extFields":{{"a":"g","b":"t","e":"{queue_id}","f":"0","g":"5","i":"{properties}"}},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":401}}"#
        )
    }

    pub const KEY: &str = r"UNIQ_KEY\u0001A1\u0002";

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
