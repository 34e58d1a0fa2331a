//! The start of a send's frame: its lengths and its header (`client.send.outgoing`, `wire.template`).

use std::io::Write;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::guard::or_doubt;

/// `ternmq.wire.frame`.
const HEADER_BYTES_MAX: usize = 1024 * 1024;
const PREFIX_BYTES: usize = 8;

/// Append a text as it stands between the quotes of JSON, escaped as msgspec does it.
fn put_escaped(out: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text;
    while let Some(at) = rest
        .iter()
        .position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))
    {
        out.extend_from_slice(&rest[..at]);
        let byte = rest[at];
        let short = match byte {
            b'"' | b'\\' => byte,
            8 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            12 => b'f',
            b'\r' => b'r',
            _ => 0,
        };
        if short == 0 {
            let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
        } else {
            out.extend_from_slice(&[b'\\', short]);
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

fn put_number(out: &mut Vec<u8>, number: i64) {
    write!(out, "{number}").expect("a vector takes everything");
}

/// What the headers of sends to one topic share. See `ternmq/_native.pyi`.
#[pyclass(frozen, module = "ternmq._native")]
pub struct SendHead {
    /// What stands before, between and behind queue id, sysflag, born time, flag, properties, reconsume times, opaque.
    parts: [Vec<u8>; 8],
}

#[pymethods]
impl SendHead {
    #[new]
    fn new(parts: Vec<Vec<u8>>) -> PyResult<Self> {
        let parts = parts
            .try_into()
            .map_err(|_| PyValueError::new_err("the header of a send has eight parts"))?;
        Ok(Self { parts })
    }

    #[pyo3(signature = (queue_id, sysflag, born_time_ms, flag, properties, reconsume_times, opaque, body_bytes, frame_bytes_max, /))]
    #[allow(clippy::too_many_arguments)]
    fn start<'py>(
        &self,
        py: Python<'py>,
        queue_id: i64,
        sysflag: i64,
        born_time_ms: i64,
        flag: i64,
        properties: &Bound<'py, PyAny>,
        reconsume_times: i64,
        opaque: i64,
        body_bytes: usize,
        frame_bytes_max: usize,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        // Half of a surrogate pair is no UTF-8: Python says what is wrong.
        let Ok(properties) = properties.extract::<&str>() else {
            return Ok(None);
        };
        let before = [queue_id, sysflag, born_time_ms, flag];
        let head = || self.head(before, properties, [reconsume_times, opaque]);
        let Some(mut start) = or_doubt(|| None, || Some(head())) else {
            return Ok(None);
        };
        let header_bytes = start.len() - PREFIX_BYTES;
        let Some(bytes) = start.len().checked_add(body_bytes) else {
            return Ok(None);
        };
        let Ok(length) = u32::try_from(bytes - 4) else {
            return Ok(None);
        };
        if header_bytes > HEADER_BYTES_MAX || bytes > frame_bytes_max {
            return Ok(None);
        }
        start[..4].copy_from_slice(&length.to_be_bytes());
        // The form is JSON, which is 0 in the top byte.
        start[4..8].copy_from_slice(&(header_bytes as u32).to_be_bytes());
        Ok(Some(PyBytes::new(py, &start)))
    }
}

impl SendHead {
    /// The header, behind room for its lengths.
    fn head(&self, before: [i64; 4], properties: &str, behind: [i64; 2]) -> Vec<u8> {
        let [first, parts @ ..] = &self.parts;
        let (to_properties, from_properties) = parts.split_at(before.len());
        let mut out = Vec::with_capacity(512 + 2 * properties.len());
        out.extend_from_slice(&[0; PREFIX_BYTES]);
        out.extend_from_slice(first);
        for (number, part) in before.into_iter().zip(to_properties) {
            put_number(&mut out, number);
            out.extend_from_slice(part);
        }
        put_escaped(&mut out, properties.as_bytes());
        out.extend_from_slice(&from_properties[0]);
        for (number, part) in behind.into_iter().zip(&from_properties[1..]) {
            put_number(&mut out, number);
            out.extend_from_slice(part);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::{put_escaped, SendHead, PREFIX_BYTES};

    #[test]
    fn texts_are_escaped() {
        let mut out = Vec::new();
        put_escaped(
            &mut out,
            "K\x01v\x02\"\\\n\r\t\x08\x0c\x1f\x7fé/".as_bytes(),
        );
        assert_eq!(
            out,
            "K\\u0001v\\u0002\\\"\\\\\\n\\r\\t\\b\\f\\u001f\x7fé/".as_bytes()
        );
    }

    #[test]
    fn values_stand_between_the_parts() {
        let parts = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|part| part.as_bytes().to_vec());
        let made = SendHead { parts }.head([1, -2, 3, 4], "p\x01", [5, 6]);
        assert_eq!(&made[PREFIX_BYTES..], b"a1b-2c3d4ep\\u0001f5g6h");
    }
}
