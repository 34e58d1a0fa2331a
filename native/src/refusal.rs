//! Sends that are refused without being read (`wire.refusal`): the opaque and the flag are found in the bytes of the
//! header.

use memchr::memmem;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::guard::or_doubt;

const STARTS: [&[u8]; 3] = [b"{\"code\":310,", b"{\"code\":10,", b"{\"code\":320,"];
const OPAQUE: &[u8] = b"\"opaque\":";
const OPAQUE_DIGITS_MAX: usize = 10;
const FLAG: &[u8] = b"\"flag\":";
const PREFIX_BYTES: usize = 8;

/// Replies differ in their opaque only.
struct Form<'a> {
    before: &'a [u8],
    behind: &'a [u8],
}

impl Form<'_> {
    fn add(&self, opaque: &[u8], replies: &mut Vec<u8>) {
        let header = (self.before.len() + opaque.len() + self.behind.len()) as u32;
        replies.extend_from_slice(&(header + 4).to_be_bytes());
        replies.extend_from_slice(&header.to_be_bytes());
        replies.extend_from_slice(self.before);
        replies.extend_from_slice(opaque);
        replies.extend_from_slice(self.behind);
    }
}

/// What is left of the data, if any were refused; the replies, and how many were refused.
#[derive(Default)]
struct Split {
    left: Vec<u8>,
    replies: Vec<u8>,
    count: usize,
}

/// Patterns that are searched for in each header.
struct Finders {
    opaque: memmem::Finder<'static>,
    flag: memmem::Finder<'static>,
}

impl Finders {
    /// The digits of the opaque, if they stand in the header once, as a plain number.
    fn opaque<'a>(&self, header: &'a [u8]) -> Option<&'a [u8]> {
        let at = self.opaque.find(header)?;
        let rest = &header[at + OPAQUE.len()..];
        if self.opaque.find(rest).is_some() {
            return None;
        }
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let is_plain = (1..=OPAQUE_DIGITS_MAX).contains(&digits)
            && matches!(rest.get(digits), Some(b',' | b'}'));
        is_plain.then(|| &rest[..digits])
    }

    /// Whether the request wants no answer; None if that is not plain. A field of the request may have the same name; its
    /// value is a text then.
    fn is_oneway(&self, header: &[u8]) -> Option<bool> {
        let mut found = None;
        for at in self.flag.find_iter(header) {
            let is_oneway = match header.get(at + FLAG.len()..at + FLAG.len() + 2) {
                Some(b"0,") => false,
                Some(b"2,") => true,
                _ => continue,
            };
            if found.is_some() {
                return None;
            }
            found = Some(is_oneway);
        }
        found
    }
}

fn split(data: &[u8], mut room: usize, bytes_max: usize, form: &Form<'_>) -> Split {
    let finders = Finders {
        opaque: memmem::Finder::new(OPAQUE),
        flag: memmem::Finder::new(FLAG),
    };
    let mut split = Split::default();
    let (mut at, mut left_from) = (0, 0);
    while let Some(prefix) = data.get(at..at + PREFIX_BYTES) {
        let length = u32::from_be_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]) as usize;
        // The top byte is the form of the header, 0 for JSON.
        let header_bytes = u32::from_be_bytes([0, prefix[5], prefix[6], prefix[7]]) as usize;
        let end = at + 4 + length;
        if end > data.len() || length + 4 > bytes_max || header_bytes + 4 > length {
            break;
        }
        let header = &data[at + PREFIX_BYTES..at + PREFIX_BYTES + header_bytes];
        if prefix[4] == 0 && STARTS.iter().any(|start| header.starts_with(start)) {
            if room > 0 {
                room -= 1;
            } else if let (Some(opaque), Some(is_oneway)) =
                (finders.opaque(header), finders.is_oneway(header))
            {
                split.count += 1;
                if !is_oneway {
                    form.add(opaque, &mut split.replies);
                }
                split.left.extend_from_slice(&data[left_from..at]);
                left_from = end;
            }
        }
        at = end;
    }
    if split.count > 0 {
        split.left.extend_from_slice(&data[left_from..]);
    }
    split
}

/// See `ternmq/_native.pyi`.
#[pyfunction]
pub fn refuse_sends<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    room: i64,
    bytes_max: usize,
    before: &[u8],
    behind: &[u8],
) -> Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize)> {
    let room = usize::try_from(room).unwrap_or(0);
    let form = Form { before, behind };
    let found = or_doubt(
        || None,
        || Some(split(data.as_bytes(), room, bytes_max, &form)),
    )?;
    let left = match found.count {
        0 => data.clone(),
        _ => PyBytes::new(py, &found.left),
    };
    Some((left, PyBytes::new(py, &found.replies), found.count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sends::tests::{frame, header, KEY};

    const FORM: Form<'static> = Form {
        before: b"<",
        behind: b">",
    };

    fn reply(opaque: &[u8]) -> Vec<u8> {
        let mut replies = Vec::new();
        FORM.add(opaque, &mut replies);
        replies
    }

    #[test]
    fn the_first_sends_are_left_and_the_others_refused() {
        let send = frame(&header(0, KEY), b"x");
        let other = frame(r#"{"code":34,"flag":0,"opaque":8}"#, b"");
        let data = [&send[..], &other, &send, &send, &send[..20]].concat();
        let found = split(&data, 1, 1 << 20, &FORM);
        assert_eq!(found.left, [&send[..], &other, &send[..20]].concat());
        assert_eq!(found.replies, [reply(b"7"), reply(b"7")].concat());
        assert_eq!(found.count, 2);
    }

    #[test]
    fn what_is_not_plain_is_left() {
        for text in [
            r#"{"code":310,"flag":0,"opaque":-7}"#,
            r#"{"code":310,"flag":0,"opaque":"7"}"#,
            r#"{"code":310,"flag":1,"opaque":7}"#,
            r#"{"code":310,"extFields":{"opaque":5},"flag":0,"opaque":7}"#,
            r#"{"code":310,"extFields":{"flag":0,"x":""},"flag":0,"opaque":7}"#,
            r#"{"code":310,"flag":0,"opaque":12345678901}"#,
            r#"{"code":310,"flag":0,"opaque":"#,
        ] {
            let data = frame(text, b"x");
            let found = split(&data, 0, 1 << 20, &FORM);
            assert_eq!((found.left.len(), found.count), (0, 0), "{text}");
        }
    }

    #[test]
    fn no_cut_is_lost() {
        let data = frame(&header(0, KEY), b"x").repeat(2);
        for cut in 0..data.len() {
            let found = split(&data[..cut], 0, 1 << 20, &FORM);
            let whole = cut / (data.len() / 2) * (data.len() / 2);
            let left = if found.count > 0 {
                &found.left[..]
            } else {
                &data[..cut]
            };
            assert_eq!(left, &data[whole..cut], "{cut}");
        }
    }
}
