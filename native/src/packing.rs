//! The body of a batch, packed from an application's messages (`client.send.outgoing`, `wire.batch`).

use memchr::{memchr2, memmem};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFrozenSet, PyList, PyString};

use crate::guard::or_doubt;

/// Size, 8 bytes, flag, length of the body; behind the body the length of the properties.
const FIXED_BYTES: usize = 22;
const PROPERTIES_BYTES_MAX: usize = 32_767;
/// Time and counter of a unique id.
const NUMBER_MASK: u64 = 0xFFFF_FFFF_FFFF;

/// Append `name \x01 value \x02`, unless the value is empty; false if the pair needs the Python version.
fn put_pair(out: &mut Vec<u8>, name: &[u8], value: &[u8]) -> bool {
    if memchr2(1, 2, name).is_some() || memchr2(1, 2, value).is_some() || name.is_empty() {
        return false;
    }
    if !value.is_empty() {
        out.extend_from_slice(name);
        out.push(1);
        out.extend_from_slice(value);
        out.push(2);
    }
    true
}

/// Append a pair whose value is an attribute that should be a text.
fn put_text(out: &mut Vec<u8>, name: &[u8], value: &Bound<'_, PyAny>) -> bool {
    let Ok(text) = value.cast_exact::<PyString>() else {
        return false;
    };
    text.to_str()
        .is_ok_and(|text| put_pair(out, name, text.as_bytes()))
}

/// What the messages of a batch share.
struct Terms<'a, 'py> {
    topic: Bound<'py, PyAny>,
    id_prefix: &'a str,
    namespace: &'a str,
    body_bytes_max: usize,
    reserved: &'a Bound<'py, PyFrozenSet>,
}

/// Append a message; returns its id, or None if it is not plain.
fn pack<'py>(
    out: &mut Vec<u8>,
    message: &Bound<'py, PyAny>,
    number: u64,
    terms: &Terms<'_, 'py>,
) -> PyResult<Option<Bound<'py, PyString>>> {
    let py = message.py();
    let topic = message.getattr(intern!(py, "topic"))?;
    if !topic.is(&terms.topic) && !topic.eq(&terms.topic)? {
        return Ok(None);
    }
    let body = message.getattr(intern!(py, "body"))?;
    let Ok(body) = body.cast_exact::<PyBytes>() else {
        return Ok(None);
    };
    let body = body.as_bytes();
    if body.is_empty()
        || body.len() > terms.body_bytes_max
        || !message.getattr(intern!(py, "deliver_at"))?.is_none()
        || !message.getattr(intern!(py, "delay"))?.is_none()
        || !matches!(
            message.getattr(intern!(py, "delay_level"))?.extract(),
            Ok(0i32)
        )
        || !matches!(
            message.getattr(intern!(py, "wait_store_ok"))?.extract(),
            Ok(true)
        )
    {
        return Ok(None);
    }
    let Ok(flag) = message.getattr(intern!(py, "flag"))?.extract::<i32>() else {
        return Ok(None);
    };
    let start = out.len();
    out.extend_from_slice(&[0; 12]);
    out.extend_from_slice(&flag.to_be_bytes());
    out.extend_from_slice(&(body.len() as i32).to_be_bytes());
    out.extend_from_slice(body);
    let length_at = out.len();
    out.extend_from_slice(&[0; 2]);
    let id = format!("{}{:012X}", terms.id_prefix, number & NUMBER_MASK);
    let mut is_plain = put_pair(out, b"UNIQ_KEY", id.as_bytes());
    let properties = message.getattr(intern!(py, "properties"))?;
    let Ok(properties) = properties.cast_exact::<PyDict>() else {
        return Ok(None);
    };
    for (name, value) in properties.iter() {
        let Ok(text) = name.cast_exact::<PyString>() else {
            return Ok(None);
        };
        let Ok(name) = text.to_str() else {
            return Ok(None);
        };
        is_plain &= !terms.reserved.contains(text)? && put_text(out, name.as_bytes(), &value);
    }
    let tags_at = out.len();
    is_plain &= put_text(out, b"TAGS", &message.getattr(intern!(py, "tags"))?)
        && memmem::find(&out[tags_at..], b"||").is_none()
        && put_text(out, b"KEYS", &message.getattr(intern!(py, "keys"))?)
        && put_text(
            out,
            b"__SHARDINGKEY",
            &message.getattr(intern!(py, "sharding_key"))?,
        )
        && put_pair(out, b"INSTANCE_ID", terms.namespace.as_bytes());
    let properties_bytes = out.len() - length_at - 2;
    let size = i32::try_from(FIXED_BYTES + body.len() + properties_bytes);
    match size {
        Ok(size) if is_plain && properties_bytes <= PROPERTIES_BYTES_MAX => {
            out[start..start + 4].copy_from_slice(&size.to_be_bytes());
            out[length_at..length_at + 2].copy_from_slice(&(properties_bytes as i16).to_be_bytes());
            Ok(Some(PyString::new(py, &id)))
        }
        _ => Ok(None),
    }
}

/// Pack messages of one topic. See `ternmq/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (messages, id_prefix, number, *, namespace, body_bytes_max, reserved))]
pub fn pack_batch<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyList>,
    id_prefix: &str,
    number: u64,
    namespace: &str,
    body_bytes_max: usize,
    reserved: &Bound<'py, PyFrozenSet>,
) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyList>)>> {
    or_doubt(
        || Ok(None),
        || {
            let Ok(first) = messages.get_item(0) else {
                return Ok(None);
            };
            let terms = Terms {
                topic: first.getattr(intern!(py, "topic"))?,
                id_prefix,
                namespace,
                body_bytes_max,
                reserved,
            };
            let (mut out, ids) = (Vec::new(), PyList::empty(py));
            for (message, number) in messages.iter().zip(number..) {
                match pack(&mut out, &message, number, &terms)? {
                    Some(id) => ids.append(id)?,
                    None => return Ok(None),
                }
                // Together they must fit, too: no more is packed than could be sent.
                if out.len() > body_bytes_max {
                    return Ok(None);
                }
            }
            Ok(Some((PyBytes::new(py, &out), ids)))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::put_pair;

    #[test]
    fn pairs_with_separators_are_left_to_python() {
        let mut out = Vec::new();
        assert!(put_pair(&mut out, b"A", b"b") && put_pair(&mut out, b"C", b""));
        assert_eq!(out, b"A\x01b\x02");
        assert!(!put_pair(&mut out, b"A\x01", b"b") && !put_pair(&mut out, b"A", b"\x02"));
        assert!(!put_pair(&mut out, b"", b"b"));
    }
}
