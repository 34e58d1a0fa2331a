//! Signatures of requests: Base64(HMAC-SHA1(secret, …)), as RocketMQ's access control has them (`wire.auth`).

use hmac::{Hmac, KeyInit, Mac};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sha1::Sha1;

const DIGEST_BYTES: usize = 20;
/// A digest in Base64: 27 characters and one `=`.
pub const SIGNATURE_BYTES: usize = 28;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A secret key, ready to sign; its state after the first blocks is kept. Python can neither see nor copy it.
#[pyclass(frozen)]
#[derive(Clone)]
pub struct SigningKey {
    state: Hmac<Sha1>,
}

impl SigningKey {
    pub fn from_secret(secret: &[u8]) -> Option<Self> {
        let state = Hmac::<Sha1>::new_from_slice(secret).ok()?;
        Some(Self { state })
    }

    /// Whether `given` is the signature of the parts, one behind the other. The time does not tell where a wrong one
    /// differs: the crate compares the digests so, and what is given is no secret of ours.
    pub fn has_signed(&self, parts: &[&[u8]], given: &[u8]) -> bool {
        let Some(digest) = decoded(given) else {
            return false;
        };
        self.mac(parts).verify_slice(&digest).is_ok()
    }

    /// The signature of the parts.
    pub fn signature(&self, parts: &[&[u8]]) -> [u8; SIGNATURE_BYTES] {
        let digest: [u8; DIGEST_BYTES] = self.mac(parts).finalize().into_bytes().into();
        encoded(&digest)
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha1> {
        let mut mac = self.state.clone();
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

#[pymethods]
impl SigningKey {
    #[new]
    fn new(secret: &[u8]) -> PyResult<Self> {
        Self::from_secret(secret).ok_or_else(|| PyValueError::new_err("this key cannot sign"))
    }

    /// The signature of a text and a body, as ASCII.
    fn sign<'py>(
        &self,
        py: Python<'py>,
        text: &[u8],
        body: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let signature = match body.cast::<PyBytes>() {
            Ok(body) => self.signature(&[text, body.as_bytes()]),
            Err(_) => self.signature(&[text, &PyBuffer::<u8>::get(body)?.to_vec(py)?]),
        };
        Ok(PyBytes::new(py, &signature))
    }
}

/// The digest that a signature stands for; None unless it is just as `encoded` writes it.
fn decoded(given: &[u8]) -> Option<[u8; DIGEST_BYTES]> {
    if given.len() != SIGNATURE_BYTES || given[SIGNATURE_BYTES - 1] != b'=' {
        return None;
    }
    let (mut digest, mut at) = ([0; DIGEST_BYTES], 0);
    let (mut bits, mut count) = (0_u32, 0);
    for &character in &given[..SIGNATURE_BYTES - 1] {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            digest[at] = (bits >> count) as u8;
            at += 1;
        }
    }
    // The last character has two bits more than the digest: with others than 0 it would be a second text for it.
    (bits & 3 == 0).then_some(digest)
}

fn encoded(digest: &[u8; DIGEST_BYTES]) -> [u8; SIGNATURE_BYTES] {
    let mut text = [b'='; SIGNATURE_BYTES];
    for (chunk, place) in digest.chunks(3).zip(text.chunks_exact_mut(4)) {
        let mut bits = 0_u32;
        for at in 0..3 {
            bits = bits << 8 | u32::from(chunk.get(at).copied().unwrap_or(0));
        }
        for (at, character) in place.iter_mut().enumerate().take(chunk.len() + 1) {
            *character = ALPHABET[(bits >> (18 - 6 * at) & 63) as usize];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_rfc_2202() {
        // Test case 2: key "Jefe", digest effcdf6ae5eb2fa2d27416d5f184df9c259a7c79.
        let key = SigningKey::from_secret(b"Jefe").unwrap();
        let parts: [&[u8]; 2] = [b"what do ya want ", b"for nothing?"];
        assert!(key.has_signed(&parts, b"7/zfauXrL6LSdBbV8YTfnCWafHk="));
        assert!(!key.has_signed(&parts[..1], b"7/zfauXrL6LSdBbV8YTfnCWafHk="));
        for other in [
            &b"7/zfauXrL6LSdBbV8YTfnCWafHl="[..], // the same digest, and a bit behind it
            b"7/zfauXrL6LSdBbV8YTfnCWafHk",
            b"7/zfauXrL6LSdBbV8YTfnCWafH-=",
            b"",
        ] {
            assert!(!key.has_signed(&parts, other));
        }
    }

    #[test]
    fn base_64_is_read_as_it_is_written() {
        for seed in 0..=255_u8 {
            let digest: [u8; DIGEST_BYTES] =
                std::array::from_fn(|at| seed.wrapping_mul(37) ^ (at as u8).wrapping_mul(101));
            assert_eq!(decoded(&encoded(&digest)), Some(digest));
        }
    }
}
