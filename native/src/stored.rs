//! The records of an answer as rows of values, from which the client makes its messages (`wire.stored`).

use memchr::memmem;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple};

use crate::guard::or_doubt;
use crate::record::{get_i32, get_i64, plain_parts, Parts, FIXED_V4_BYTES};

/// Hosts of IPv6.
const HOST_FLAGS: i32 = 0x10 | 0x20;
const PROPERTIES_BYTES_MAX: usize = 32_767;
/// A damaged record that was sent back as a whole: Python reads the reason.
const ERROR_MARK: &[u8] = b"TERN_BODY_ERROR\x01";

/// The record at the front of `data` and its parts; None if it is not the usual one, damaged, or not whole.
fn usual(data: &[u8]) -> Option<(&[u8], Parts<'_>)> {
    let size: [u8; 4] = data.get(..4)?.try_into().ok()?;
    let record = data.get(..usize::try_from(i32::from_be_bytes(size)).ok()?)?;
    if record.len() < FIXED_V4_BYTES || get_i32(record, 36) & HOST_FLAGS != 0 {
        return None;
    }
    // Whatever log offset it tells.
    let parts = plain_parts(record, get_i64(record, 28))?;
    if parts.properties.len() > PROPERTIES_BYTES_MAX
        || memmem::find(parts.properties, ERROR_MARK).is_some()
        || !parts.is_sound(record)
    {
        return None;
    }
    Some((record, parts))
}

/// Read all records of an answer. See `ternmq/_native.pyi`.
#[pyfunction]
pub fn read_rows<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Option<(Bound<'py, PyList>, i32)>> {
    or_doubt(
        || Ok(None),
        || {
            let (rows, mut flags, mut rest) = (PyList::empty(py), 0, data);
            let mut last: Option<(&[u8], Bound<'py, PyString>)> = None;
            while !rest.is_empty() {
                let Some((record, parts)) = usual(rest) else {
                    return Ok(None);
                };
                let name = &parts.topic_field[1..];
                let topic = match &last {
                    Some((bytes, text)) if *bytes == name => text.clone(),
                    _ => match std::str::from_utf8(name) {
                        Ok(text) => PyString::new(py, text),
                        Err(_) => return Ok(None),
                    },
                };
                last = Some((name, topic.clone()));
                let long = |at| PyInt::new(py, get_i64(record, at)).into_any();
                let short = |at| PyInt::new(py, get_i32(record, at)).into_any();
                let bytes = |data| PyBytes::new(py, data).into_any();
                rows.append(PyTuple::new(
                    py,
                    [
                        short(0),                // size
                        short(12),               // queue id
                        short(16),               // flag
                        long(20),                // queue offset
                        long(28),                // log offset
                        short(36),               // sysflag
                        long(40),                // born time
                        bytes(&record[48..56]),  // born host
                        long(56),                // store time
                        bytes(&record[64..72]),  // store host
                        short(72),               // reconsume times
                        long(76),                // prepared transaction offset
                        bytes(parts.body),       // body
                        topic.into_any(),        // topic
                        bytes(parts.properties), // properties
                    ],
                )?)?;
                flags |= get_i32(record, 36);
                rest = &rest[record.len()..];
            }
            Ok(Some((rows, flags)))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::MAGIC_V1;

    fn record(topic: &[u8], body: &[u8], properties: &[u8]) -> Vec<u8> {
        let mut made = vec![0; FIXED_V4_BYTES];
        made[4..8].copy_from_slice(&MAGIC_V1.to_be_bytes());
        made[8..12].copy_from_slice(&(crc32fast::hash(body) & 0x7FFF_FFFF).to_be_bytes());
        made[84..88].copy_from_slice(&(body.len() as i32).to_be_bytes());
        made.extend_from_slice(body);
        made.push(topic.len() as u8);
        made.extend_from_slice(topic);
        made.extend_from_slice(&(properties.len() as i16).to_be_bytes());
        made.extend_from_slice(properties);
        let size = made.len() as i32;
        made[..4].copy_from_slice(&size.to_be_bytes());
        made
    }

    #[test]
    fn the_parts_of_a_record_are_found() {
        let data = record(b"orders", b"body", b"TAGS\x01a\x02");
        let (found, parts) = usual(&data).unwrap();
        assert_eq!(found, data);
        assert_eq!(
            (parts.topic_field, parts.body, parts.properties),
            (&b"\x06orders"[..], &b"body"[..], &b"TAGS\x01a\x02"[..])
        );
    }

    #[test]
    fn every_cut_record_is_refused() {
        let data = record(b"orders", b"body", b"TAGS\x01a\x02");
        assert!((0..data.len()).all(|end| usual(&data[..end]).is_none()));
    }

    #[test]
    fn every_length_that_lies_is_refused() {
        let data = record(b"orders", b"body", b"");
        for (at, value) in [(0, 90), (0, -1), (84, -1), (84, i32::MAX), (84, 5)] {
            let mut changed = data.clone();
            changed[at..at + 4].copy_from_slice(&i32::to_be_bytes(value));
            assert!(usual(&changed).is_none(), "{value} at {at}");
        }
    }
}
