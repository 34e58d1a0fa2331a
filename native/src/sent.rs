//! Answers to sends that are stored, taken apart for their callers (`net.callers`, `wire.requests.SendReply`).

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyString, PyType};

use crate::guard::or_doubt;
use crate::json::{number, Reader, Text};
use crate::properties::NotPlain;

const PREFIX_BYTES: usize = 8;
/// Such an answer has a few hundred bytes, that to a batch an id for each message. Python reads longer ones.
const HEADER_BYTES_MAX: usize = 1024 * 1024;
const RESPONSE: i64 = 1;

/// What an answer tells.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sent {
    opaque: i32,
    offset_id: Text,
    queue_id: i32,
    queue_offset: i64,
    transaction_id: Option<Text>,
    region: Option<Text>,
    trace_on: Option<bool>,
}

/// Set a member that may stand once.
fn once<T>(place: &mut Option<T>, value: T) -> Result<(), NotPlain> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(NotPlain),
    }
}

/// The fields of an answer.
fn fields(
    reader: &mut Reader<'_>,
    header: &[u8],
    decoded: &mut Vec<u8>,
    sent: &mut Sent,
) -> Result<(), NotPlain> {
    let (mut offset_id, mut queue_id, mut queue_offset) = (None, None, None);
    reader.expect(b'{')?;
    loop {
        let name = reader.name()?;
        let text = reader.text(decoded)?;
        let value = text.of(header, decoded);
        match name {
            b"msgId" => once(&mut offset_id, text)?,
            b"queueId" => once(
                &mut queue_id,
                i32::try_from(number(value)?).map_err(|_| NotPlain)?,
            )?,
            b"queueOffset" => once(&mut queue_offset, number(value)?)?,
            b"transactionId" => once(&mut sent.transaction_id, text)?,
            b"MSG_REGION" if !value.is_empty() => once(&mut sent.region, text)?,
            b"TRACE_ON" => once(
                &mut sent.trace_on,
                match value {
                    b"true" => true,
                    b"false" => false,
                    _ => return Err(NotPlain),
                },
            )?,
            _ => return Err(NotPlain),
        }
        if !reader.has_more()? {
            break;
        }
    }
    sent.offset_id = offset_id.ok_or(NotPlain)?;
    sent.queue_id = queue_id.ok_or(NotPlain)?;
    sent.queue_offset = queue_offset.ok_or(NotPlain)?;
    Ok(())
}

/// A header that says that a message is stored, and nothing out of the ordinary.
fn sent(header: &[u8], decoded: &mut Vec<u8>) -> Result<Sent, NotPlain> {
    decoded.clear();
    std::str::from_utf8(header).map_err(|_| NotPlain)?;
    let (mut code, mut flag, mut opaque, mut version) = (None, None, None, None);
    let (mut language, mut serialize, mut has_fields) = (None, None, None);
    let mut sent = Sent::default();
    let mut reader = Reader::new(header);
    reader.expect(b'{')?;
    loop {
        match reader.name()? {
            b"code" => once(&mut code, reader.number()?)?,
            b"flag" => once(&mut flag, reader.number()?)?,
            b"opaque" => once(&mut opaque, reader.number()?)?,
            b"version" => once(&mut version, reader.number()?)?,
            b"language" => once(&mut language, reader.text(decoded)?)?,
            b"serializeTypeCurrentRPC" => once(&mut serialize, reader.text(decoded)?)?,
            b"extFields" => {
                once(&mut has_fields, ())?;
                fields(&mut reader, header, decoded, &mut sent)?;
            }
            _ => return Err(NotPlain),
        }
        if !reader.has_more()? {
            break;
        }
    }
    reader.end()?;
    sent.opaque = i32::try_from(opaque.ok_or(NotPlain)?).map_err(|_| NotPlain)?;
    match (code, flag, has_fields) {
        (Some(0), Some(RESPONSE), Some(())) => Ok(sent),
        _ => Err(NotPlain),
    }
}

/// The header of the frame at the front of `data`, and the bytes of the frame; None if it is not whole, not JSON, too
/// long, or has a body.
fn header_of(data: &[u8], frame_bytes_max: usize) -> Option<(&[u8], usize)> {
    let prefix = data.get(..PREFIX_BYTES)?;
    let length = u32::from_be_bytes(prefix[..4].try_into().ok()?) as usize;
    let header_bytes = u32::from_be_bytes(prefix[4..].try_into().ok()?) as usize;
    if header_bytes > HEADER_BYTES_MAX || length != header_bytes + 4 || length + 4 > frame_bytes_max
    {
        return None;
    }
    let frame_bytes = PREFIX_BYTES + header_bytes;
    Some((data.get(PREFIX_BYTES..frame_bytes)?, frame_bytes))
}

/// Read answers at the front of a read. See `ternmq/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (data, frame_bytes_max, calls, kind, /))]
pub fn read_sent<'py>(
    py: Python<'py>,
    data: &[u8],
    frame_bytes_max: usize,
    calls: &Bound<'py, PyDict>,
    kind: &Bound<'py, PyType>,
) -> PyResult<(Bound<'py, PyList>, usize)> {
    or_doubt(
        || Ok((PyList::empty(py), 0)),
        || {
            let (rows, mut at, mut decoded) = (PyList::empty(py), 0, Vec::new());
            // Nearly all tell the same region.
            let mut last: Option<(&[u8], Bound<'py, PyString>)> = None;
            while let Some((header, frame_bytes)) = header_of(&data[at..], frame_bytes_max) {
                let Ok(sent) = sent(header, &mut decoded) else {
                    break;
                };
                let text = |text: &Text| std::str::from_utf8(text.of(header, &decoded)).ok();
                let Some(offset_id) = text(&sent.offset_id) else {
                    break;
                };
                let opaque = PyInt::new(py, sent.opaque);
                match calls.get_item(&opaque)? {
                    Some(caller) if caller.is_instance(kind)? => {}
                    _ => break,
                }
                let transaction_id = match &sent.transaction_id {
                    None => "",
                    Some(found) => match text(found) {
                        Some(found) => found,
                        None => break,
                    },
                };
                let region = match &sent.region {
                    None => PyString::intern(py, "DefaultRegion"),
                    Some(found) if found.is_decoded => break,
                    Some(found) => {
                        let bytes = &header[found.start..found.end];
                        match &last {
                            Some((known, region)) if *known == bytes => region.clone(),
                            _ => {
                                let Some(found) = text(found) else {
                                    break;
                                };
                                let region = PyString::new(py, found);
                                last = Some((bytes, region.clone()));
                                region
                            }
                        }
                    }
                };
                rows.append((
                    opaque,
                    offset_id,
                    sent.queue_id,
                    sent.queue_offset,
                    transaction_id,
                    region,
                    sent.trace_on != Some(false),
                ))?;
                at += frame_bytes;
            }
            Ok((rows, at))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &str = r#""msgId":"0A","queueId":"3","queueOffset":"7""#;

    fn header(fields: &str) -> String {
        format!(
            r#"{{"code":0,"extFields":{{{fields}}},"flag":1,"language":"PYTHON","opaque":9,"serializeTypeCurrentRPC":"JSON","version":401}}"#
        )
    }

    fn read(header: &str) -> Result<Sent, NotPlain> {
        sent(header.as_bytes(), &mut Vec::new())
    }

    #[test]
    fn an_answer_is_read() {
        let text = header(FIELDS);
        let found = read(&text).unwrap();
        assert_eq!(
            (found.opaque, found.queue_id, found.queue_offset),
            (9, 3, 7)
        );
        assert_eq!(found.offset_id.of(text.as_bytes(), &[]), b"0A");
        assert_eq!((found.transaction_id, found.region), (None, None));
    }

    #[test]
    fn what_is_out_of_the_ordinary_is_left() {
        for fields in [
            "",
            r#""msgId":"0A","queueId":"3""#,
            r#""msgId":"0A","queueId":"3","queueOffset":"1.0""#,
            r#""msgId":"0A","queueId":3,"queueOffset":"1""#,
            r#""msgId":"0A","queueId":"2147483648","queueOffset":"1""#,
            r#""msgId":"0A","msgId":"0A","queueId":"3","queueOffset":"7""#,
            r#""msgId":"0A","queueId":"3","queueOffset":"7","recallHandle":"x""#,
            r#""msgId":"0A","queueId":"3","queueOffset":"7","MSG_REGION":"""#,
            r#""msgId":"0A","queueId":"3","queueOffset":"7","TRACE_ON":"1""#,
            r#""msgId":null,"queueId":"3","queueOffset":"7""#,
        ] {
            assert_eq!(read(&header(fields)), Err(NotPlain), "{fields}");
        }
        let whole = header(FIELDS);
        for (from, to) in [
            ("\"code\":0", "\"code\":1"),
            ("\"flag\":1", "\"flag\":0"),
            ("\"flag\":1", "\"flag\":3"),
            ("\"opaque\":9", "\"opaque\":2147483648"),
            ("\"opaque\":9", "\"opaque\":9,\"opaque\":8"),
            ("\"opaque\":9", "\"remark\":null,\"opaque\":9"),
            ("\"opaque\":9,", ""),
            ("\"code\":0,", ""),
        ] {
            assert_eq!(
                read(&whole.replacen(from, to, 1)),
                Err(NotPlain),
                "{from} {to}"
            );
        }
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), Err(NotPlain));
        }
    }

    #[test]
    fn only_whole_frames_with_lengths_that_add_up_are_read() {
        let text = header(FIELDS);
        let mut data = ((text.len() + 4) as u32).to_be_bytes().to_vec();
        data.extend_from_slice(&(text.len() as u32).to_be_bytes());
        data.extend_from_slice(text.as_bytes());
        let all = data.len();
        assert_eq!(header_of(&data, 4096), Some((text.as_bytes(), all)));
        assert_eq!(header_of(&data, all), Some((text.as_bytes(), all)));
        assert_eq!(header_of(&data, all - 1), None);
        assert!((0..all).all(|end| header_of(&data[..end], 4096).is_none()));
        for (at, value) in [
            (0, 0xff),
            (3, data[3] + 1),
            (4, 1),
            (4, 0xff),
            (7, data[7] - 1),
        ] {
            let mut changed = data.clone();
            changed[at] = value;
            assert_eq!(header_of(&changed, usize::MAX), None, "{at}");
        }
    }
}
