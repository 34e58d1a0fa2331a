//! Signed sends of one account, read and checked in one pass over their bytes (`wire.shapes`).

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyList, PyMemoryView, PySlice, PyString, PyTuple};

use crate::guard::or_doubt;
use crate::json::{number, Reader, Text};
use crate::properties::NotPlain;
use crate::signing::SigningKey;

/// Requests have a dozen fields. With more than this, or longer, Python reads them.
const FIELDS_MAX: usize = 32;
const HEADER_BYTES_MAX: usize = 64 * 1024;
const PREFIX_BYTES: usize = 8;
const FLAG_RESPONSE: i64 = 1;

const SEND_MESSAGE: i64 = 10;
const SEND_MESSAGE_V2: i64 = 310;
const SEND_BATCH_MESSAGE: i64 = 320;

/// The fields of a send header, in the order of `SignedSend`.
const SEND_FIELDS: usize = 14;
const NAMES: [&[u8]; SEND_FIELDS] = [
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
    b"batch",
    b"maxReconsumeTimes",
    b"bname",
];
const LETTERS: &[u8; SEND_FIELDS] = b"abcdefghijkmln";

fn place_of(code: i64, name: &[u8]) -> Option<usize> {
    if code == SEND_MESSAGE {
        NAMES.iter().position(|known| *known == name)
    } else if let [letter] = name {
        LETTERS.iter().position(|known| known == letter)
    } else {
        None
    }
}

#[derive(Clone, Copy, Default)]
struct Field<'a> {
    name: &'a [u8],
    value: Text,
}

/// A header, as far as it is plain. `fields` are sorted by their names, and no name comes twice.
struct Header<'a> {
    code: i64,
    flag: i64,
    opaque: i64,
    version: i64,
    language: Option<Text>,
    fields: [Field<'a>; FIELDS_MAX],
    count: usize,
}

/// The code comes first, as all clients write it: a header of another code costs nothing more.
fn read_header<'a>(
    data: &'a [u8],
    codes: &[i64],
    decoded: &mut Vec<u8>,
) -> Result<Header<'a>, NotPlain> {
    let mut reader = Reader::new(data);
    let mut header = Header {
        code: 0,
        flag: 0,
        opaque: 0,
        version: 0,
        language: None,
        fields: [Field::default(); FIELDS_MAX],
        count: 0,
    };
    let mut seen = 0_u32;
    reader.expect(b'{')?;
    loop {
        let bit = match reader.name()? {
            b"code" => {
                header.code = reader.number()?;
                if !codes.contains(&header.code) {
                    return Err(NotPlain);
                }
                1
            }
            _ if seen == 0 => return Err(NotPlain),
            b"extFields" => {
                read_fields(&mut reader, &mut header, decoded)?;
                2
            }
            b"flag" => {
                header.flag = reader.number()?;
                4
            }
            b"language" => {
                header.language = Some(reader.text(decoded)?);
                8
            }
            b"opaque" => {
                header.opaque = reader.number()?;
                16
            }
            b"version" => {
                header.version = reader.number()?;
                32
            }
            b"serializeTypeCurrentRPC" => {
                reader.text(decoded)?;
                64
            }
            _ => return Err(NotPlain),
        };
        // Of two members of one name the last one would count.
        if seen & bit != 0 {
            return Err(NotPlain);
        }
        seen |= bit;
        if !reader.has_more()? {
            break;
        }
    }
    reader.end()?;
    if seen & 3 != 3 {
        return Err(NotPlain);
    }
    Ok(header)
}

fn read_fields<'a>(
    reader: &mut Reader<'a>,
    header: &mut Header<'a>,
    decoded: &mut Vec<u8>,
) -> Result<(), NotPlain> {
    reader.expect(b'{')?;
    loop {
        let field = Field {
            name: reader.name()?,
            value: reader.text(decoded)?,
        };
        if header.count == FIELDS_MAX {
            return Err(NotPlain);
        }
        // By bytes of UTF-8, which is the order of code points, as Python sorts.
        let mut at = header.count;
        while at > 0 && header.fields[at - 1].name > field.name {
            header.fields[at] = header.fields[at - 1];
            at -= 1;
        }
        if at > 0 && header.fields[at - 1].name == field.name {
            return Err(NotPlain);
        }
        header.fields[at] = field;
        header.count += 1;
        if !reader.has_more()? {
            return Ok(());
        }
    }
}

/// What one header left behind, used again for the next.
#[derive(Default)]
struct Buffers {
    decoded: Vec<u8>,
    signed: Vec<u8>,
}

/// Texts of the header before: the sends of a read have the same group and mostly the same topic, and a text that
/// exists already is cheaper than a new one, here and where it is looked up.
#[derive(Default)]
struct Recent<'py> {
    texts: [Option<Bound<'py, PyString>>; RECENT],
}

/// Group, topic and default topic, as in `SignedSend`; and the language.
const RECENT: usize = 4;
const LANGUAGE: usize = 3;

impl<'py> Recent<'py> {
    fn text(
        &mut self,
        py: Python<'py>,
        place: usize,
        text: &[u8],
    ) -> Result<Bound<'py, PyAny>, NotPlain> {
        if let Some(known) = &self.texts[place] {
            if known.to_cow().is_ok_and(|known| known.as_bytes() == text) {
                return Ok(known.clone().into_any());
            }
        }
        let text = std::str::from_utf8(text).map_err(|_| NotPlain)?;
        let made = PyString::new(py, text);
        self.texts[place] = Some(made.clone());
        Ok(made.into_any())
    }
}

/// Reads sends that one account has signed, of codes that it may send. It is not changed by what it reads.
#[pyclass(frozen)]
pub struct SignedSends {
    access_key: Vec<u8>,
    key: Py<SigningKey>,
    secret: Py<PyAny>,
    codes: Vec<i64>,
    body_bytes_max: usize,
    request_type: Py<PyAny>,
    header_type: Py<PyAny>,
    no_body: Py<PyAny>,
}

#[pymethods]
impl SignedSends {
    #[new]
    #[pyo3(signature = (access_key, key, secret, *, codes, body_bytes_max, request_type, header_type, no_body))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        access_key: &str,
        key: Py<SigningKey>,
        secret: Py<PyAny>,
        codes: Vec<i64>,
        body_bytes_max: usize,
        request_type: Py<PyAny>,
        header_type: Py<PyAny>,
        no_body: Py<PyAny>,
    ) -> PyResult<Self> {
        if !codes
            .iter()
            .all(|code| matches!(*code, SEND_MESSAGE | SEND_MESSAGE_V2 | SEND_BATCH_MESSAGE))
        {
            return Err(PyValueError::new_err("these are not codes of sends"));
        }
        Ok(Self {
            access_key: access_key.as_bytes().to_vec(),
            key,
            secret,
            codes,
            body_bytes_max,
            request_type,
            header_type,
            no_body,
        })
    }

    /// Append the requests of the frames from `at` on to `commands`, up to the first that is not a plain send signed by
    /// this account, or not complete; return where that begins. `view` is a view of `data`.
    fn read<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        view: &Bound<'py, PyMemoryView>,
        at: usize,
        frame_bytes_max: usize,
        commands: &Bound<'py, PyList>,
    ) -> PyResult<usize> {
        let mut done = at;
        or_doubt(
            || Ok(()),
            || self.read_on(py, data, view, &mut done, frame_bytes_max, commands),
        )?;
        Ok(done)
    }
}

impl SignedSends {
    /// The same; `done` is always behind the last frame whose request was appended.
    fn read_on<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        view: &Bound<'py, PyMemoryView>,
        done: &mut usize,
        frame_bytes_max: usize,
        commands: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let bytes = data.as_bytes();
        let mut buffers = Buffers::default();
        let mut recent = Recent::default();
        let key = self.key.get();
        while let Some((header_bytes, frame_bytes)) = frame_at(bytes, *done, frame_bytes_max) {
            let at = *done;
            let header = &bytes[at + PREFIX_BYTES..at + PREFIX_BYTES + header_bytes];
            let body = &bytes[at + PREFIX_BYTES + header_bytes..at + frame_bytes];
            let Ok(plain) = self.check(key, header, body, &mut buffers) else {
                break;
            };
            let decoded = &buffers.decoded;
            let Ok(values) = typed(py, &plain, header, decoded, &mut recent) else {
                break;
            };
            let language = match plain.language {
                Some(text) => recent.text(py, LANGUAGE, text.of(header, decoded)),
                None => Ok(py.None().into_bound(py)),
            };
            let Ok(language) = language else {
                break;
            };
            let [a, b, c, d, e, f, g, h, i, j, k, m, l, n] = values;
            let secret = self.secret.bind(py);
            let span = (at + PREFIX_BYTES) << 24 | header_bytes;
            let header_object = self.header_type.bind(py).call1(PyTuple::new(
                py,
                [
                    &a,
                    &b,
                    &c,
                    &d,
                    &e,
                    &f,
                    &g,
                    &h,
                    &i,
                    &j,
                    &k,
                    &m,
                    &l,
                    &n,
                    secret,
                    data.as_any(),
                    span.into_pyobject(py)?.as_any(),
                ],
            )?)?;
            let body_object = if body.is_empty() {
                self.no_body.bind(py).clone()
            } else {
                let start = at + PREFIX_BYTES + header_bytes;
                view.get_item(PySlice::new(
                    py,
                    start as isize,
                    (at + frame_bytes) as isize,
                    1,
                ))?
            };
            let request = self.request_type.bind(py).call1((
                plain.code,
                plain.opaque,
                plain.flag,
                plain.version,
                language,
                py.None(),
                header_object,
                body_object,
                0,
                py.None(),
                frame_bytes,
            ))?;
            commands.append(request)?;
            *done += frame_bytes;
        }
        Ok(())
    }

    /// The header of a request, if it is plain and signed by the account.
    fn check<'a>(
        &self,
        key: &SigningKey,
        data: &'a [u8],
        body: &[u8],
        buffers: &mut Buffers,
    ) -> Result<Header<'a>, NotPlain> {
        if data.len() > HEADER_BYTES_MAX || body.len() > self.body_bytes_max {
            return Err(NotPlain);
        }
        let Buffers { decoded, signed } = buffers;
        decoded.clear();
        signed.clear();
        let header = read_header(data, &self.codes, decoded)?;
        if header.flag & FLAG_RESPONSE != 0 {
            return Err(NotPlain);
        }
        let (mut access_key, mut signature) = (None, None);
        for field in &header.fields[..header.count] {
            let value = field.value.of(data, decoded);
            match field.name {
                b"Signature" => {
                    signature = Some(value);
                    continue;
                }
                b"AccessKey" => access_key = Some(value),
                _ => {}
            }
            signed.extend_from_slice(value);
        }
        let (Some(access_key), Some(signature)) = (access_key, signature) else {
            return Err(NotPlain);
        };
        if access_key != self.access_key
            || std::str::from_utf8(data).is_err()
            || !key.has_signed(&[signed, body], signature)
        {
            return Err(NotPlain);
        }
        Ok(header)
    }
}

/// The sizes of header and frame of a complete frame with a JSON header, if one begins there.
fn frame_at(bytes: &[u8], at: usize, frame_bytes_max: usize) -> Option<(usize, usize)> {
    let prefix = bytes.get(at..at.checked_add(PREFIX_BYTES)?)?;
    let length = u32::from_be_bytes(prefix[..4].try_into().ok()?) as usize;
    // The top byte is the form of the header, 0 for JSON; with another one this is larger than any frame.
    let header_bytes = u32::from_be_bytes(prefix[4..].try_into().ok()?) as usize;
    let frame_bytes = length.checked_add(4)?;
    let is_whole = frame_bytes <= bytes.len() - at;
    (is_whole
        && frame_bytes <= frame_bytes_max
        && header_bytes < 1 << 24
        && frame_bytes >= header_bytes + PREFIX_BYTES)
        .then_some((header_bytes, frame_bytes))
}

fn text_of<'py>(py: Python<'py>, text: &[u8]) -> Result<Bound<'py, PyAny>, NotPlain> {
    let text = std::str::from_utf8(text).map_err(|_| NotPlain)?;
    Ok(PyString::new(py, text).into_any())
}

/// The values of a header by their types, in the order of `SignedSend`; none if a field is missing, or is not as everybody
/// writes it.
fn typed<'py>(
    py: Python<'py>,
    header: &Header<'_>,
    data: &[u8],
    decoded: &[u8],
    recent: &mut Recent<'py>,
) -> Result<[Bound<'py, PyAny>; SEND_FIELDS], NotPlain> {
    let mut texts: [Option<&[u8]>; SEND_FIELDS] = [None; SEND_FIELDS];
    for field in &header.fields[..header.count] {
        if let Some(place) = place_of(header.code, field.name) {
            texts[place] = Some(field.value.of(data, decoded));
        }
    }
    let none = || py.None().into_bound(py);
    let mut text = |place: usize| recent.text(py, place, texts[place].ok_or(NotPlain)?);
    let optional_text = |place: usize| match texts[place] {
        // Python's lenient conversion has its own ideas about this word.
        Some(text) if text.eq_ignore_ascii_case(b"null") => Err(NotPlain),
        Some(text) => text_of(py, text),
        None => Ok(none()),
    };
    let int64 = |text: &[u8]| -> Result<Bound<'py, PyAny>, NotPlain> {
        let Ok(value) = number(text)?.into_pyobject(py);
        Ok(value.into_any())
    };
    let int32 = |text: &[u8]| -> Result<Bound<'py, PyAny>, NotPlain> {
        let Ok(value) = i32::try_from(number(text)?)
            .map_err(|_| NotPlain)?
            .into_pyobject(py);
        Ok(value.into_any())
    };
    let needed = |place: usize| int32(texts[place].ok_or(NotPlain)?);
    let optional = |place: usize| texts[place].map_or_else(|| Ok(none()), int32);
    let flag = |place: usize| match texts[place] {
        None | Some(b"false") => Ok(PyBool::new(py, false).to_owned().into_any()),
        Some(b"true") => Ok(PyBool::new(py, true).to_owned().into_any()),
        Some(_) => Err(NotPlain),
    };
    Ok([
        text(0)?,
        text(1)?,
        text(2)?,
        needed(3)?,
        needed(4)?,
        needed(5)?,
        int64(texts[6].ok_or(NotPlain)?)?,
        needed(7)?,
        optional_text(8)?,
        optional(9)?,
        flag(10)?,
        flag(11)?,
        optional(12)?,
        optional_text(13)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(data: &[u8]) -> Result<Vec<&[u8]>, NotPlain> {
        let header = read_header(data, &[SEND_MESSAGE_V2], &mut Vec::new())?;
        Ok(header.fields[..header.count]
            .iter()
            .map(|field| field.name)
            .collect())
    }

    #[test]
    fn fields_are_sorted_by_their_names() {
        let data = br#"{"code":310,"extFields":{"b":"x","AccessKey":"k","a":""},"flag":0}"#;
        assert_eq!(names(data), Ok(vec![&b"AccessKey"[..], b"a", b"b"]));
    }

    #[test]
    fn what_is_not_plain_is_left() {
        for data in [
            &br#"{"code":310,"extFields":{"b":"x","b":"x"}}"#[..],
            br#"{"code":310,"extFields":{"b":"x"},"code":310}"#,
            br#"{"code":310,"extFields":{"b":"x"},"extFields":{}}"#,
            br#"{"code":310,"extFields":{"b":"x"},"more":1}"#,
            br#"{"code":310,"extFields":{"b":1}}"#,
            br#"{"code":310,"extFields":{"b":null}}"#,
            br#"{"code":310,"extFields":{}}"#,
            br#"{"code":310,"extFields":null}"#,
            br#"{"code":310}"#,
            br#"{"extFields":{"b":"x"}}"#,
            br#"{"extFields":{"b":"x"},"code":310}"#,
            br#"{"code":10,"extFields":{"b":"x"}}"#,
            br#"{"code":310.0,"extFields":{"b":"x"}}"#,
            br#"{"code":310,"extFields":{"b":"x"}} x"#,
            br#"{"code":310,"extFields":{"b":"x",}}"#,
            br#"{"code":310,"extFields":{"\u0062":"x"}}"#,
        ] {
            assert_eq!(names(data), Err(NotPlain), "{}", data.escape_ascii());
        }
    }

    #[test]
    fn more_fields_than_a_request_has_are_left() {
        let ext: Vec<String> = (0..=FIELDS_MAX)
            .map(|at| format!("\"{at}\":\"\""))
            .collect();
        for (count, is_plain) in [(FIELDS_MAX, true), (FIELDS_MAX + 1, false)] {
            let data = format!(
                "{{\"code\":310,\"extFields\":{{{}}}}}",
                ext[..count].join(",")
            );
            assert_eq!(names(data.as_bytes()).is_ok(), is_plain);
        }
    }

    #[test]
    fn only_whole_frames_of_allowed_sizes_are_read() {
        let frame = [0, 0, 0, 7, 0, 0, 0, 2, b'{', b'}', b'x'];
        assert_eq!(frame_at(&frame, 0, 100), Some((2, 11)));
        assert_eq!(frame_at(&frame, 0, 10), None);
        assert_eq!(frame_at(&frame[..10], 0, 100), None);
        assert_eq!(frame_at(&frame[..5], 0, 100), None);
        assert_eq!(frame_at(&frame, 11, 100), None);
        assert_eq!(frame_at(&frame, usize::MAX, 100), None);
        // A header that is longer than its frame, or in the binary form.
        assert_eq!(frame_at(&[0, 0, 0, 4, 0, 0, 0, 1], 0, 100), None);
        assert_eq!(frame_at(&[0, 0, 0, 4, 1, 0, 0, 0], 0, 100), None);
    }

    #[test]
    fn the_letters_are_those_of_the_names() {
        for (code, name, place) in [
            (SEND_MESSAGE, &b"topic"[..], Some(1)),
            (SEND_MESSAGE_V2, b"b", Some(1)),
            (SEND_BATCH_MESSAGE, b"m", Some(11)),
            (SEND_MESSAGE_V2, b"l", Some(12)),
            (SEND_MESSAGE_V2, b"topic", None),
            (SEND_MESSAGE, b"b", None),
        ] {
            assert_eq!(place_of(code, name), place);
        }
    }
}
