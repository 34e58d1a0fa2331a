//! The body of a batch, packed from an application's messages (`client.send.outgoing`, `wire.batch`).

use memchr::{memchr2, memmem};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFrozenSet, PyList, PyString, PyTuple};

use crate::guard::or_doubt;

const UNIQUE_KEY: &[u8] = b"UNIQ_KEY\x01";
const PROPERTIES_BYTES_MAX: usize = 32_767;

/// Fields of a message, in their order (`ternmq.message.Message`).
const TOPIC: usize = 0;
const BODY: usize = 1;
const TAGS: usize = 2;
const KEYS: usize = 3;
const PROPERTIES: usize = 4;
const FLAG: usize = 5;
const DELAY_LEVEL: usize = 6;
const SHARDING_KEY: usize = 7;
const WAIT_STORE_OK: usize = 8;
const DELIVER_AT: usize = 9;
const DELAY: usize = 10;

/// Append `name \x01 value \x02`, unless the value is empty; false if the value needs the Python version.
fn put_pair(out: &mut Vec<u8>, name: &[u8], value: &[u8]) -> bool {
    if value.is_empty() {
        return true;
    }
    out.extend_from_slice(name);
    out.push(1);
    out.extend_from_slice(value);
    out.push(2);
    memchr2(1, 2, value).is_none()
}

/// Append a pair whose value should be a text.
fn put_text(out: &mut Vec<u8>, name: &[u8], value: &Bound<'_, PyAny>) -> bool {
    let Ok(text) = value.cast_exact::<PyString>() else {
        return false;
    };
    text.to_str()
        .is_ok_and(|text| put_pair(out, name, text.as_bytes()))
}

/// The hexadecimal digits of the last six bytes of a number.
fn hex_number(number: u64) -> [u8; 12] {
    let mut digits = [0; 12];
    for (place, digit) in digits.iter_mut().enumerate() {
        *digit = b"0123456789ABCDEF"[(number >> (44 - 4 * place)) as usize & 15];
    }
    digits
}

/// What messages that are packed together share.
struct Terms<'a, 'py> {
    topic: Bound<'py, PyAny>,
    id_prefix: &'a [u8],
    namespace: &'a [u8],
    body_bytes_max: usize,
    reserved: &'a Bound<'py, PyFrozenSet>,
}

/// The fields of a message; None if it has others.
fn fields_of<'py>(
    message: Bound<'py, PyAny>,
    astuple: &Bound<'py, PyAny>,
) -> Option<Bound<'py, PyTuple>> {
    let fields = astuple
        .call1((message,))
        .ok()?
        .cast_into_exact::<PyTuple>()
        .ok()?;
    (fields.len() > DELAY).then_some(fields)
}

/// Body and flag of a message; None if it is not one of the topic that can be sent at once, as it is.
fn body_and_flag<'py>(
    fields: &Bound<'py, PyTuple>,
    terms: &Terms<'_, 'py>,
) -> PyResult<Option<(Bound<'py, PyBytes>, i32)>> {
    let topic = fields.get_borrowed_item(TOPIC)?;
    if !topic.is(&terms.topic) && !topic.eq(&terms.topic)? {
        return Ok(None);
    }
    let Ok(body) = fields.get_item(BODY)?.cast_into_exact::<PyBytes>() else {
        return Ok(None);
    };
    let body_bytes = body.as_bytes().len();
    if body_bytes == 0
        || body_bytes > terms.body_bytes_max
        || !fields.get_borrowed_item(DELIVER_AT)?.is_none()
        || !fields.get_borrowed_item(DELAY)?.is_none()
        || !matches!(
            fields.get_borrowed_item(DELAY_LEVEL)?.extract::<i32>(),
            Ok(0)
        )
        || !matches!(
            fields.get_borrowed_item(WAIT_STORE_OK)?.extract::<bool>(),
            Ok(true)
        )
    {
        return Ok(None);
    }
    let flag = fields.get_borrowed_item(FLAG)?.extract::<i32>();
    Ok(flag.ok().map(|flag| (body, flag)))
}

/// Append the properties of a message; its unique id stands behind `UNIQ_KEY \x01`. Whether they are plain.
fn put_properties(
    out: &mut Vec<u8>,
    fields: &Bound<'_, PyTuple>,
    number: u64,
    terms: &Terms<'_, '_>,
) -> PyResult<bool> {
    let start = out.len();
    out.extend_from_slice(UNIQUE_KEY);
    out.extend_from_slice(terms.id_prefix);
    out.extend_from_slice(&hex_number(number));
    out.push(2);
    let properties = fields.get_borrowed_item(PROPERTIES)?;
    let Ok(properties) = properties.cast_exact::<PyDict>() else {
        return Ok(false);
    };
    if !properties.is_empty() {
        for (name, value) in properties.iter() {
            let Ok(text) = name.cast_exact::<PyString>() else {
                return Ok(false);
            };
            let Ok(name) = text.to_str() else {
                return Ok(false);
            };
            if name.is_empty()
                || memchr2(1, 2, name.as_bytes()).is_some()
                || terms.reserved.contains(text)?
                || !put_text(out, name.as_bytes(), &value)
            {
                return Ok(false);
            }
        }
    }
    let tags_at = out.len();
    Ok(put_text(out, b"TAGS", &*fields.get_borrowed_item(TAGS)?)
        && memmem::find(&out[tags_at..], b"||").is_none()
        && put_text(out, b"KEYS", &*fields.get_borrowed_item(KEYS)?)
        && put_text(
            out,
            b"__SHARDINGKEY",
            &*fields.get_borrowed_item(SHARDING_KEY)?,
        )
        && put_pair(out, b"INSTANCE_ID", terms.namespace)
        && out.len() - start <= PROPERTIES_BYTES_MAX)
}

/// Append a message of which these are the fields, and its unique id; whether it is plain.
fn pack<'py>(
    out: &mut Vec<u8>,
    ids: &mut Vec<u8>,
    fields: &Bound<'py, PyTuple>,
    number: u64,
    terms: &Terms<'_, 'py>,
) -> PyResult<bool> {
    let Some((body, flag)) = body_and_flag(fields, terms)? else {
        return Ok(false);
    };
    let (body, start) = (body.as_bytes(), out.len());
    out.extend_from_slice(&[0; 12]);
    out.extend_from_slice(&flag.to_be_bytes());
    out.extend_from_slice(&(body.len() as i32).to_be_bytes());
    out.extend_from_slice(body);
    let length_at = out.len();
    out.extend_from_slice(&[0; 2]);
    if !put_properties(out, fields, number, terms)? {
        return Ok(false);
    }
    let id_at = length_at + 2 + UNIQUE_KEY.len();
    if !ids.is_empty() {
        ids.push(b',');
    }
    ids.extend_from_slice(&out[id_at..id_at + terms.id_prefix.len() + 12]);
    let properties_bytes = out.len() - length_at - 2;
    let Ok(size) = i32::try_from(out.len() - start) else {
        return Ok(false);
    };
    out[start..start + 4].copy_from_slice(&size.to_be_bytes());
    out[length_at..length_at + 2].copy_from_slice(&(properties_bytes as i16).to_be_bytes());
    Ok(true)
}

/// Unique id and properties of one message. See `ternmq/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (message, id_prefix, number, *, namespace, body_bytes_max, reserved, astuple))]
#[allow(clippy::too_many_arguments)]
pub fn pack_properties<'py>(
    py: Python<'py>,
    message: Bound<'py, PyAny>,
    id_prefix: &str,
    number: u64,
    namespace: &str,
    body_bytes_max: usize,
    reserved: &Bound<'py, PyFrozenSet>,
    astuple: &Bound<'py, PyAny>,
) -> PyResult<Option<(Bound<'py, PyString>, Bound<'py, PyString>)>> {
    or_doubt(
        || Ok(None),
        || {
            let Some(fields) = fields_of(message, astuple) else {
                return Ok(None);
            };
            let terms = Terms {
                topic: fields.get_item(TOPIC)?,
                id_prefix: id_prefix.as_bytes(),
                namespace: namespace.as_bytes(),
                body_bytes_max,
                reserved,
            };
            let mut out = Vec::with_capacity(128);
            if body_and_flag(&fields, &terms)?.is_none()
                || !put_properties(&mut out, &fields, number, &terms)?
            {
                return Ok(None);
            }
            let Ok(text) = std::str::from_utf8(&out) else {
                return Ok(None);
            };
            let id = &text[UNIQUE_KEY.len()..UNIQUE_KEY.len() + id_prefix.len() + 12];
            Ok(Some((PyString::new(py, id), PyString::new(py, text))))
        },
    )
}

/// Pack messages of one topic. See `ternmq/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (messages, id_prefix, number, *, namespace, body_bytes_max, reserved, astuple))]
#[allow(clippy::too_many_arguments)]
pub fn pack_batch<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyList>,
    id_prefix: &str,
    number: u64,
    namespace: &str,
    body_bytes_max: usize,
    reserved: &Bound<'py, PyFrozenSet>,
    astuple: &Bound<'py, PyAny>,
) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyString>)>> {
    or_doubt(
        || Ok(None),
        || {
            let Ok(first) = messages.get_item(0) else {
                return Ok(None);
            };
            let terms = Terms {
                topic: first.getattr(intern!(py, "topic"))?,
                id_prefix: id_prefix.as_bytes(),
                namespace: namespace.as_bytes(),
                body_bytes_max,
                reserved,
            };
            let (mut out, mut ids) = (Vec::new(), Vec::new());
            for (message, number) in messages.iter().zip(number..) {
                let Some(fields) = fields_of(message, astuple) else {
                    return Ok(None);
                };
                // Together they must fit, too: no more is packed than could be sent.
                if !pack(&mut out, &mut ids, &fields, number, &terms)? || out.len() > body_bytes_max
                {
                    return Ok(None);
                }
                if ids.len() == id_prefix.len() + 12 {
                    // The others will have about the size of the first.
                    out.reserve((out.len() * messages.len()).min(body_bytes_max));
                    ids.reserve((ids.len() + 1) * messages.len());
                }
            }
            let Ok(ids) = std::str::from_utf8(&ids) else {
                return Ok(None);
            };
            Ok(Some((PyBytes::new(py, &out), PyString::new(py, ids))))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::{hex_number, put_pair};

    #[test]
    fn values_with_separators_are_left_to_python() {
        let mut out = Vec::new();
        assert!(put_pair(&mut out, b"A", b"b") && put_pair(&mut out, b"C", b""));
        assert_eq!(out, b"A\x01b\x02");
        assert!(!put_pair(&mut out, b"A", b"\x01") && !put_pair(&mut out, b"A", b"\x02"));
    }

    #[test]
    fn numbers_have_twelve_digits() {
        assert_eq!(&hex_number(0xAB_0123_4567_89EF), b"0123456789EF");
        assert_eq!(&hex_number(10), b"00000000000A");
    }
}
