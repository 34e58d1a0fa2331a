//! Signatures of requests: Base64(HMAC-SHA1(secret, …)), as RocketMQ's access control has them (`wire.auth`).

use std::hint::black_box;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sha1::block_api::compress;
use sha1::{Digest, Sha1};

const BLOCK_BYTES: usize = 64;
const DIGEST_BYTES: usize = 20;
/// A digest in Base64: 27 characters and one `=`.
pub const SIGNATURE_BYTES: usize = 28;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The five words that SHA-1 has after some blocks.
type State = [u32; 5];
/// What it begins with (FIPS 180-4, 5.3.1).
const BEGIN: State = [
    0x6745_2301,
    0xefcd_ab89,
    0x98ba_dcfe,
    0x1032_5476,
    0xc3d2_e1f0,
];

/// A secret key, ready to sign: the states after its block, for the inner and for the outer hash (RFC 2104). Python can
/// neither see nor copy it.
#[pyclass(frozen)]
#[derive(Clone)]
pub struct SigningKey {
    inner: State,
    outer: State,
}

impl SigningKey {
    pub fn from_secret(secret: &[u8]) -> Self {
        let mut block = [0; BLOCK_BYTES];
        if secret.len() <= BLOCK_BYTES {
            block[..secret.len()].copy_from_slice(secret);
        } else {
            block[..DIGEST_BYTES].copy_from_slice(&Sha1::digest(secret));
        }
        let after = |pad: u8| {
            let mut state = BEGIN;
            compress(&mut state, &[block.map(|byte| byte ^ pad)]);
            state
        };
        Self {
            inner: after(0x36),
            outer: after(0x5c),
        }
    }

    /// Sign or check what is given to it.
    pub fn mac(&self) -> Mac<'_> {
        Mac {
            key: self,
            state: self.inner,
            gathered: [[0; BLOCK_BYTES]; GATHERED],
            filled: 0,
            bytes: BLOCK_BYTES as u64,
        }
    }
}

/// Blocks that are hashed by one call: all of a usual send.
const GATHERED: usize = 8;

/// The signature of what was given to it, part by part.
pub struct Mac<'a> {
    key: &'a SigningKey,
    state: State,
    gathered: [[u8; BLOCK_BYTES]; GATHERED],
    filled: usize,
    /// Hashed or gathered, with the block of the key.
    bytes: u64,
}

impl Mac<'_> {
    pub fn update(&mut self, mut part: &[u8]) {
        self.bytes += part.len() as u64;
        while self.filled + part.len() >= GATHERED * BLOCK_BYTES {
            let (now, later) = part.split_at(GATHERED * BLOCK_BYTES - self.filled);
            self.gathered.as_flattened_mut()[self.filled..].copy_from_slice(now);
            compress(&mut self.state, &self.gathered);
            (self.filled, part) = (0, later);
        }
        self.gathered.as_flattened_mut()[self.filled..self.filled + part.len()]
            .copy_from_slice(part);
        self.filled += part.len();
    }

    /// Whether `given` is the signature. The time does not tell where a wrong one differs.
    pub fn has_made(self, given: &[u8]) -> bool {
        let made = black_box(self.signature());
        let pairs = made.iter().zip(given);
        let unlike = pairs.fold(0, |unlike, (one, other)| unlike | (one ^ other));
        given.len() == SIGNATURE_BYTES && black_box(unlike) == 0
    }

    pub fn signature(self) -> [u8; SIGNATURE_BYTES] {
        encoded(&self.digest())
    }

    fn digest(mut self) -> [u8; DIGEST_BYTES] {
        let inner = finished(&mut self.state, &mut self.gathered, self.filled, self.bytes);
        let mut block = [[0; BLOCK_BYTES]];
        block[0][..DIGEST_BYTES].copy_from_slice(&inner);
        let mut outer = self.key.outer;
        let bytes = (BLOCK_BYTES + DIGEST_BYTES) as u64;
        finished(&mut outer, &mut block, DIGEST_BYTES, bytes)
    }
}

/// Hash the last `filled` bytes, with their padding: a bit, zeros, and how many bits there were.
fn finished(
    state: &mut State,
    blocks: &mut [[u8; BLOCK_BYTES]],
    filled: usize,
    bytes: u64,
) -> [u8; DIGEST_BYTES] {
    const LENGTH_AT: usize = BLOCK_BYTES - 8;
    let (mut last, at) = (filled / BLOCK_BYTES, filled % BLOCK_BYTES);
    blocks[last][at] = 0x80;
    blocks[last][at + 1..].fill(0);
    if at >= LENGTH_AT {
        // The length needs a block of its own.
        compress(state, &blocks[..=last]);
        last = 0;
        blocks[last].fill(0);
    }
    blocks[last][LENGTH_AT..].copy_from_slice(&(bytes * 8).to_be_bytes());
    compress(state, &blocks[..=last]);
    let mut digest = [0; DIGEST_BYTES];
    for (place, word) in digest.chunks_exact_mut(4).zip(state) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

#[pymethods]
impl SigningKey {
    #[new]
    fn new(secret: &[u8]) -> Self {
        Self::from_secret(secret)
    }

    /// The signature of a text and a body, as ASCII.
    fn sign<'py>(
        &self,
        py: Python<'py>,
        text: &[u8],
        body: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut mac = self.mac();
        mac.update(text);
        match body.cast::<PyBytes>() {
            Ok(body) => mac.update(body.as_bytes()),
            Err(_) => mac.update(&PyBuffer::<u8>::get(body)?.to_vec(py)?),
        }
        Ok(PyBytes::new(py, &mac.signature()))
    }
}

fn encoded(digest: &[u8; DIGEST_BYTES]) -> [u8; SIGNATURE_BYTES] {
    // As if a byte followed, of which only the `=` remains.
    let mut bytes = [0; DIGEST_BYTES + 1];
    bytes[..DIGEST_BYTES].copy_from_slice(digest);
    let mut text = [0; SIGNATURE_BYTES];
    for (chunk, place) in bytes.chunks_exact(3).zip(text.chunks_exact_mut(4)) {
        let bits = u32::from_be_bytes([0, chunk[0], chunk[1], chunk[2]]);
        for (at, character) in place.iter_mut().enumerate() {
            *character = ALPHABET[(bits >> (18 - 6 * at) & 63) as usize];
        }
    }
    text[SIGNATURE_BYTES - 1] = b'=';
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(secret: &[u8], parts: &[&[u8]]) -> [u8; DIGEST_BYTES] {
        let key = SigningKey::from_secret(secret);
        let mut mac = key.mac();
        for part in parts {
            mac.update(part);
        }
        mac.digest()
    }

    fn has_made(parts: &[&[u8]], given: &[u8]) -> bool {
        let key = SigningKey::from_secret(b"Jefe");
        let mut mac = key.mac();
        for part in parts {
            mac.update(part);
        }
        mac.has_made(given)
    }

    #[test]
    fn a_signature_is_that_of_rfc_2202() {
        // Test case 2: key "Jefe", digest effcdf6ae5eb2fa2d27416d5f184df9c259a7c79.
        let parts: [&[u8]; 2] = [b"what do ya want ", b"for nothing?"];
        assert!(has_made(&parts, b"7/zfauXrL6LSdBbV8YTfnCWafHk="));
        assert!(!has_made(&parts[..1], b"7/zfauXrL6LSdBbV8YTfnCWafHk="));
        for other in [
            &b"7/zfauXrL6LSdBbV8YTfnCWafHl="[..], // the same digest, and a bit behind it
            b"8/zfauXrL6LSdBbV8YTfnCWafHk=",
            b"7/zfauXrL6LSdBbV8YTfnCWafHg=",
            b"7/zfauXrL6LSdBbV8YTfnCWafHk",
            b"7/zfauXrL6LSdBbV8YTfnCWafH-=",
            b"",
        ] {
            assert!(!has_made(&parts, other));
        }
        // Test cases 3 and 7: 50 bytes of 0xdd; a key that is longer than a block.
        let third = "125d7342b9ac11cd91a39af48aa17b4f63f175d3";
        assert_eq!(hex(&signed(&[0xaa; 20], &[&[0xdd; 50]])), third);
        let seventh: &[u8] =
            b"Test Using Larger Than Block-Size Key and Larger Than One Block-Size Data";
        assert_eq!(
            hex(&signed(&[0xaa; 80], &[seventh])),
            "e8e99d0f45237d786d6bbaa7965c7808bbff1a91"
        );
    }

    fn hex(digest: &[u8]) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 2104, by whole hashes.
    fn by_definition(secret: &[u8], text: &[u8]) -> [u8; DIGEST_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        block[..secret.len()].copy_from_slice(secret);
        let inner = Sha1::new()
            .chain_update(block.map(|byte| byte ^ 0x36))
            .chain_update(text)
            .finalize();
        let outer = Sha1::new()
            .chain_update(block.map(|byte| byte ^ 0x5c))
            .chain_update(inner);
        outer.finalize().into()
    }

    #[test]
    fn parts_of_all_lengths_are_signed_as_one_text() {
        let text: Vec<u8> = (0..3 * GATHERED * BLOCK_BYTES)
            .map(|at| (at * 7 + at / 256) as u8)
            .collect();
        for length in 0..=text.len() {
            let expected = by_definition(b"secret", &text[..length]);
            for cut in [0, 1, 63, 64, 65, 300, 511, 512, 513, 1000] {
                let (one, other) = text[..length].split_at(cut.min(length));
                assert_eq!(signed(b"secret", &[one, other]), expected, "{length} {cut}");
            }
        }
    }
}
