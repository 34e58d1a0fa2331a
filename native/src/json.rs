//! The part of JSON that headers of plain requests are: one object of numbers and texts, and one object of texts in it.
//!
//! All else (deeper values, other numbers, half surrogate pairs, names with escapes) is `NotPlain`. The bytes must be
//! UTF-8, which the caller checks.

use crate::properties::NotPlain;

/// A text: bytes of the header, or, where it has escapes, of the buffer for decoded ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Text {
    pub start: usize,
    pub end: usize,
    pub is_decoded: bool,
}

impl Text {
    pub fn of<'a>(&self, data: &'a [u8], decoded: &'a [u8]) -> &'a [u8] {
        &(if self.is_decoded { decoded } else { data })[self.start..self.end]
    }
}

pub struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }

    fn peek(&self) -> Result<u8, NotPlain> {
        self.data.get(self.at).copied().ok_or(NotPlain)
    }

    fn skip_space(&mut self) {
        while matches!(self.data.get(self.at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// The next character that is not a space must be this one.
    pub fn expect(&mut self, character: u8) -> Result<(), NotPlain> {
        self.skip_space();
        if self.peek()? != character {
            return Err(NotPlain);
        }
        self.at += 1;
        Ok(())
    }

    /// Behind a member: whether another one follows; if not, the object has ended.
    pub fn has_more(&mut self) -> Result<bool, NotPlain> {
        self.skip_space();
        let found = self.peek()?;
        self.at += 1;
        match found {
            b',' => Ok(true),
            b'}' => Ok(false),
            _ => Err(NotPlain),
        }
    }

    pub fn end(&mut self) -> Result<(), NotPlain> {
        self.skip_space();
        if self.at == self.data.len() {
            Ok(())
        } else {
            Err(NotPlain)
        }
    }

    /// The name of a member, and the colon behind it.
    pub fn name(&mut self) -> Result<&'a [u8], NotPlain> {
        self.expect(b'"')?;
        let start = self.at;
        self.at += ordinary(&self.data[start..]);
        let name = &self.data[start..self.at];
        if self.peek()? != b'"' {
            return Err(NotPlain);
        }
        self.at += 1;
        self.expect(b':')?;
        Ok(name)
    }

    pub fn text(&mut self, decoded: &mut Vec<u8>) -> Result<Text, NotPlain> {
        self.expect(b'"')?;
        let start = self.at;
        self.at += ordinary(&self.data[start..]);
        match self.peek()? {
            b'"' => {}
            b'\\' => return self.escaped(start, decoded),
            _ => return Err(NotPlain),
        }
        self.at += 1;
        Ok(Text {
            start,
            end: self.at - 1,
            is_decoded: false,
        })
    }

    /// The rest of a text that has begun at `start`, from its first escape on.
    fn escaped(&mut self, start: usize, decoded: &mut Vec<u8>) -> Result<Text, NotPlain> {
        let decoded_at = decoded.len();
        decoded.extend_from_slice(&self.data[start..self.at]);
        loop {
            let rest = &self.data[self.at..];
            let count = ordinary(rest);
            decoded.extend_from_slice(&rest[..count]);
            self.at += count;
            let found = self.peek()?;
            self.at += 1;
            match found {
                b'"' => break,
                b'\\' => {
                    let kind = self.peek()?;
                    self.at += 1;
                    decoded.push(match kind {
                        b'"' | b'\\' | b'/' => kind,
                        b'b' => 8,
                        b'f' => 12,
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'u' => {
                            let character = self.character()?;
                            let mut buffer = [0; 4];
                            decoded
                                .extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
                            continue;
                        }
                        _ => return Err(NotPlain),
                    });
                }
                _ => return Err(NotPlain),
            }
        }
        Ok(Text {
            start: decoded_at,
            end: decoded.len(),
            is_decoded: true,
        })
    }

    /// Behind `\u`: a character, by one unit or by a pair of them.
    fn character(&mut self) -> Result<char, NotPlain> {
        let mut point = self.unit()?;
        if (0xd800..0xdc00).contains(&point) {
            if self.peek()? != b'\\' || self.data.get(self.at + 1) != Some(&b'u') {
                return Err(NotPlain);
            }
            self.at += 2;
            let low = self.unit()?;
            if !(0xdc00..0xe000).contains(&low) {
                return Err(NotPlain);
            }
            point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
        }
        char::from_u32(point).ok_or(NotPlain)
    }

    fn unit(&mut self) -> Result<u32, NotPlain> {
        let digits = self.data.get(self.at..self.at + 4).ok_or(NotPlain)?;
        self.at += 4;
        digits.iter().try_fold(0, |unit, &digit| {
            let value = char::from(digit).to_digit(16).ok_or(NotPlain)?;
            Ok(unit << 4 | value)
        })
    }

    pub fn number(&mut self) -> Result<i64, NotPlain> {
        self.skip_space();
        let start = self.at;
        while matches!(self.data.get(self.at), Some(b'-' | b'0'..=b'9')) {
            self.at += 1;
        }
        number(&self.data[start..self.at])
    }
}

/// How many bytes stand before the first quote, backslash or control character. Eight at a time: the tests below are
/// exact up to the first byte that they find, and carries can only make later ones wrong.
fn ordinary(data: &[u8]) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const TOPS: u64 = ONES << 7;
    let mut at = 0;
    while let Some(eight) = data.get(at..at + 8) {
        let word = u64::from_le_bytes(eight.try_into().expect("eight bytes"));
        let is_zero = |word: u64| word.wrapping_sub(ONES) & !word;
        let quote = is_zero(word ^ (ONES * u64::from(b'"')));
        let backslash = is_zero(word ^ (ONES * u64::from(b'\\')));
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let found = (quote | backslash | control) & TOPS;
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let rest = &data[at..];
    at + rest
        .iter()
        .position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))
        .unwrap_or(rest.len())
}

/// A number as everybody writes it: no leading zero, no plus sign, no `-0`, at most 18 digits.
pub fn number(text: &[u8]) -> Result<i64, NotPlain> {
    let (digits, is_negative) = match text {
        [b'-', digits @ ..] => (digits, true),
        digits => (digits, false),
    };
    match digits {
        [b'0'] if !is_negative => return Ok(0),
        [b'1'..=b'9', ..] if digits.len() <= 18 => {}
        _ => return Err(NotPlain),
    }
    let value = digits.iter().try_fold(0_i64, |value, digit| {
        if digit.is_ascii_digit() {
            Ok(value * 10 + i64::from(digit - b'0'))
        } else {
            Err(NotPlain)
        }
    })?;
    Ok(if is_negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(data: &[u8]) -> Result<Vec<u8>, NotPlain> {
        let mut decoded = Vec::new();
        let mut reader = Reader::new(data);
        let text = reader.text(&mut decoded)?;
        reader.end()?;
        Ok(text.of(data, &decoded).to_vec())
    }

    #[test]
    fn texts_are_decoded() {
        assert_eq!(text(b"\"abc\""), Ok(b"abc".to_vec()));
        assert_eq!(text(b" \"\" "), Ok(b"".to_vec()));
        assert_eq!(
            text(br#""K\u0001v\u0002\"\\\/\b\f\n\r\t\u00e9\ud834\udd1E""#),
            Ok("K\x01v\x02\"\\/\x08\x0c\n\r\té𝄞".as_bytes().to_vec())
        );
    }

    #[test]
    fn what_is_no_text_is_not_plain() {
        for data in [
            &b""[..],
            b"\"",
            b"\"a",
            b"\"a\\",
            b"\"a\\\"",
            b"\"\\x\"",
            b"\"\\u12\"",
            b"\"\\u12g4\"",
            b"\"\\u+123\"",
            b"\"\\ud800\"",
            b"\"\\ud800\\u0041\"",
            b"\"\\ud800\\n\"",
            b"\"\\udc00\"",
            b"\"a\x01\"",
            b"\"\\n\x01\"",
            b"\"a\"b",
            b"a",
        ] {
            assert_eq!(text(data), Err(NotPlain), "{data:?}");
        }
    }

    #[test]
    fn ordinary_bytes_are_counted_at_every_place() {
        let fill: Vec<u8> = (0x20..=0xff)
            .filter(|byte| !b"\"\\".contains(byte))
            .collect();
        assert_eq!(ordinary(&fill), fill.len());
        for at in 0..fill.len() {
            for end in [b'"', b'\\', 0, 1, 0x1f] {
                let mut data = fill.clone();
                data[at] = end;
                for start in 0..=at {
                    assert_eq!(ordinary(&data[start..]), at - start);
                }
            }
        }
    }

    #[test]
    fn numbers_are_those_that_everybody_writes() {
        for (text, value) in [
            (&b"0"[..], 0),
            (b"7", 7),
            (b"-12", -12),
            (b"999999999999999999", 999_999_999_999_999_999),
        ] {
            assert_eq!(number(text), Ok(value));
        }
        for text in [
            &b""[..],
            b"-",
            b"-0",
            b"03",
            b"+3",
            b"3-",
            b"1 ",
            b"1.0",
            b"1e3",
            b"1000000000000000000",
        ] {
            assert_eq!(number(text), Err(NotPlain), "{text:?}");
        }
    }
}
