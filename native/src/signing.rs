//! Signatures of requests: Base64(HMAC-SHA1(secret, …)), as RocketMQ's access control has them (`wire.auth`).

use std::hint::black_box;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sha1::block_api::compress;
use sha1::{Digest, Sha1};

use crate::sha1_lanes::{compress_each, Block, State, BLOCK_BYTES, LANES};

const DIGEST_BYTES: usize = 20;
/// A digest in Base64: 27 characters and one `=`.
pub const SIGNATURE_BYTES: usize = 28;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// What SHA-1 begins with (FIPS 180-4, 5.3.1).
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
        let mut block: Block = [0; BLOCK_BYTES];
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
/// The longest text that has its padding in these blocks.
const SHORT_BYTES_MAX: usize = GATHERED * BLOCK_BYTES - 9;

/// The signature of what was given to it, part by part.
pub struct Mac<'a> {
    key: &'a SigningKey,
    state: State,
    gathered: [Block; GATHERED],
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
        let given = given.try_into();
        given.is_ok_and(|given| is_alike(&self.signature(), given))
    }

    pub fn signature(self) -> [u8; SIGNATURE_BYTES] {
        encoded(&self.digest())
    }

    fn digest(mut self) -> [u8; DIGEST_BYTES] {
        if self.filled > SHORT_BYTES_MAX {
            // The padding needs a block more than there are.
            let full = self.filled / BLOCK_BYTES;
            compress(&mut self.state, &self.gathered[..full]);
            self.gathered.copy_within(full.., 0);
            self.filled %= BLOCK_BYTES;
        }
        let count = pad(&mut self.gathered, self.filled, self.bytes);
        compress(&mut self.state, &self.gathered[..count]);
        let mut outer = self.key.outer;
        compress(&mut outer, &[outer_block(&self.state)]);
        digest_of(&outer)
    }
}

/// Behind the last `filled` bytes: a bit, zeros, and how many bits there were. Returns how many blocks that makes.
fn pad(blocks: &mut [Block; GATHERED], filled: usize, bytes: u64) -> usize {
    const LENGTH_BYTES: usize = 8;
    let count = (filled + 1 + LENGTH_BYTES).div_ceil(BLOCK_BYTES);
    let padding = &mut blocks[..count].as_flattened_mut()[filled..];
    padding.fill(0);
    padding[0] = 0x80;
    let length_at = padding.len() - LENGTH_BYTES;
    padding[length_at..].copy_from_slice(&(bytes * 8).to_be_bytes());
    count
}

/// The only block of the outer hash behind that of the key: the inner digest and its padding.
fn outer_block(inner: &State) -> Block {
    const BITS: u16 = 8 * (BLOCK_BYTES + DIGEST_BYTES) as u16;
    let mut block = [0; BLOCK_BYTES];
    block[..DIGEST_BYTES].copy_from_slice(&digest_of(inner));
    block[DIGEST_BYTES] = 0x80;
    block[BLOCK_BYTES - 2..].copy_from_slice(&BITS.to_be_bytes());
    block
}

fn digest_of(state: &State) -> [u8; DIGEST_BYTES] {
    let mut digest = [0; DIGEST_BYTES];
    for (place, word) in digest.chunks_exact_mut(4).zip(state) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

/// The time does not tell where they differ.
fn is_alike(made: &[u8; SIGNATURE_BYTES], given: &[u8; SIGNATURE_BYTES]) -> bool {
    let pairs = black_box(made).iter().zip(given);
    let unlike = pairs.fold(0, |unlike, (one, other)| unlike | (one ^ other));
    black_box(unlike) == 0
}

/// A short text and the signature that it came with; a few of them are checked together.
pub struct Claim {
    blocks: [Block; GATHERED],
    filled: usize,
    given: [u8; SIGNATURE_BYTES],
}

/// The text is longer than that of a claim.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

impl Claim {
    fn new() -> Self {
        Self {
            blocks: [[0; BLOCK_BYTES]; GATHERED],
            filled: 0,
            given: [0; SIGNATURE_BYTES],
        }
    }

    /// Begin a new text.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// One more part of the text.
    pub fn add(&mut self, part: &[u8]) -> Result<(), TooLong> {
        let end = self.filled + part.len();
        if end > SHORT_BYTES_MAX {
            return Err(TooLong);
        }
        copy_short(&mut self.blocks.as_flattened_mut()[self.filled..end], part);
        self.filled = end;
        Ok(())
    }

    /// The signature that must be that of the text; false if it cannot be one.
    pub fn sign(&mut self, given: &[u8]) -> bool {
        let is_one = given.len() == SIGNATURE_BYTES;
        if is_one {
            self.given.copy_from_slice(given);
        }
        is_one
    }
}

/// Most values of a send have a few bytes, for which a call of `memcpy` takes longer than the copy.
fn copy_short(place: &mut [u8], part: &[u8]) {
    let length = part.len();
    assert!(place.len() == length);
    match length {
        0 => {}
        1..=3 => {
            place[0] = part[0];
            place[length / 2] = part[length / 2];
            place[length - 1] = part[length - 1];
        }
        4..=7 => {
            place[..4].copy_from_slice(&part[..4]);
            place[length - 4..].copy_from_slice(&part[length - 4..]);
        }
        8..=16 => {
            place[..8].copy_from_slice(&part[..8]);
            place[length - 8..].copy_from_slice(&part[length - 8..]);
        }
        _ => place.copy_from_slice(part),
    }
}

/// Claims that wait until there are enough of them.
pub struct Claims {
    claims: [Claim; LANES],
    count: usize,
}

impl Claims {
    pub fn new() -> Self {
        Self {
            claims: std::array::from_fn(|_| Claim::new()),
            count: 0,
        }
    }

    pub fn is_full(&self) -> bool {
        self.count == LANES
    }

    /// The next one, to be filled. It counts after `push`.
    pub fn next(&mut self) -> &mut Claim {
        assert!(!self.is_full());
        &mut self.claims[self.count]
    }

    pub fn push(&mut self) {
        self.count += 1;
    }

    /// Check all, and forget them. Returns the number of the first that is false.
    pub fn settle(&mut self, key: &SigningKey) -> Option<usize> {
        let count = std::mem::take(&mut self.count);
        let claims = &mut self.claims[..count];
        let mut texts: [&[Block]; LANES] = [&[]; LANES];
        for (text, claim) in texts.iter_mut().zip(claims.iter_mut()) {
            let bytes = BLOCK_BYTES + claim.filled;
            let blocks = pad(&mut claim.blocks, claim.filled, bytes as u64);
            *text = &claim.blocks[..blocks];
        }
        let mut states = [key.inner; LANES];
        compress_each(&mut states[..count], &texts[..count]);
        let blocks = states.map(|inner| [outer_block(&inner)]);
        let mut states = [key.outer; LANES];
        let texts: [&[Block]; LANES] = std::array::from_fn(|lane| &blocks[lane][..]);
        compress_each(&mut states[..count], &texts[..count]);
        let is_true = |lane: usize| {
            let made = encoded(&digest_of(&states[lane]));
            is_alike(&made, &self.claims[lane].given)
        };
        (0..count).find(|lane| !is_true(*lane))
    }
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
    fn claims_are_settled_as_each_alone() {
        let key = SigningKey::from_secret(b"secret");
        let text: Vec<u8> = (0..=SHORT_BYTES_MAX).map(|at| (at * 13) as u8).collect();
        let mut claims = Claims::new();
        let fill = |claims: &mut Claims, length: usize, is_false: bool| {
            let mut mac = key.mac();
            mac.update(&text[..length]);
            let mut signature = mac.signature();
            signature[27 - length % 28] ^= u8::from(is_false);
            let claim = claims.next();
            claim.clear();
            let (one, other) = text[..length].split_at(length.min(length % 19));
            claim.add(one).unwrap();
            claim.add(other).unwrap();
            assert!(claim.sign(&signature));
            claims.push();
        };
        assert_eq!(claims.settle(&key), None);
        for length in 0..=SHORT_BYTES_MAX {
            for count in 1..=LANES {
                for wrong in 0..=count {
                    for lane in 0..count {
                        // Texts of other lengths beside it, also of fewer blocks.
                        let length = (length + lane * 37) % (SHORT_BYTES_MAX + 1);
                        fill(&mut claims, length, lane >= wrong);
                    }
                    assert_eq!(claims.is_full(), count == LANES);
                    let expected = (wrong < count).then_some(wrong);
                    assert_eq!(claims.settle(&key), expected, "{length} {count}");
                }
            }
        }
        let claim = claims.next();
        claim.clear();
        assert_eq!(claim.add(&text), Err(TooLong));
        assert_eq!(claim.add(&text[1..]), Ok(()));
        assert_eq!(claim.add(b"x"), Err(TooLong));
        for other in [27, 29, 0] {
            assert!(!claim.sign(&vec![b'A'; other]));
        }
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
