//! Values in a property text, `name \x01 value \x02` repeated, and Java's hash of them.
//!
//! Each function returns `Err(NotPlain)` where the Python version has more to decide: an empty value (an earlier pair
//! may count), or bytes that are not UTF-8.

use memchr::{memchr, memrchr_iter};

/// The Python version must look at this one.
#[derive(Debug, PartialEq, Eq)]
pub struct NotPlain;

/// The value of the last pair of a name. `key` is the name between its separators: `\x02NAME\x01`.
pub fn last_value<'a>(properties: &'a [u8], key: &[u8]) -> Result<Option<&'a [u8]>, NotPlain> {
    // A search for the whole key would first prepare itself, which takes longer than a text of some pairs.
    let ends_key = |end: &usize| {
        let before = &properties[..*end];
        before.ends_with(&key[..key.len() - 1]) || before == &key[1..key.len() - 1]
    };
    let Some(name_end) = memrchr_iter(1, properties).find(ends_key) else {
        return Ok(None);
    };
    let value_at = name_end + 1;
    let rest = &properties[value_at..];
    let value = &rest[..memchr(2, rest).unwrap_or(rest.len())];
    if value.is_empty() {
        return Err(NotPlain);
    }
    Ok(Some(value))
}

/// Java's `String.hashCode` of a text that follows one with the hash `prefix`: over UTF-16 units.
pub fn java_hash(prefix: i32, text: &[u8]) -> Result<i32, NotPlain> {
    if text.is_ascii() {
        return Ok(text.iter().fold(prefix, |hash, &unit| {
            hash.wrapping_mul(31).wrapping_add(i32::from(unit))
        }));
    }
    let text = std::str::from_utf8(text).map_err(|_| NotPlain)?;
    Ok(text.encode_utf16().fold(prefix, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    }))
}

/// The code of the tags in a property text; 0 without tags.
pub fn tags_code(properties: &[u8]) -> Result<i64, NotPlain> {
    match last_value(properties, b"\x02TAGS\x01")? {
        Some(tags) => Ok(i64::from(java_hash(0, tags)?)),
        None => Ok(0),
    }
}

/// The hash of a key as an index entry has it: 0 … 2³¹ − 1. `topic_hash` is that of `topic#`.
fn key_hash(topic_hash: i32, key: &[u8]) -> Result<i32, NotPlain> {
    // Java's Math.abs; the one value without a positive counterpart counts as 0.
    Ok(java_hash(topic_hash, key)?.checked_abs().unwrap_or(0))
}

/// Calls `add` with the hash of the unique key of a record, then of each of its keys.
pub fn each_key_hash(
    properties: &[u8],
    topic_hash: i32,
    mut add: impl FnMut(i32),
) -> Result<(), NotPlain> {
    if let Some(key) = last_value(properties, b"\x02UNIQ_KEY\x01")? {
        add(key_hash(topic_hash, key)?);
    }
    if let Some(keys) = last_value(properties, b"\x02KEYS\x01")? {
        for key in keys
            .split(|&byte| byte == b' ')
            .filter(|key| !key.is_empty())
        {
            add(key_hash(topic_hash, key)?);
        }
    }
    Ok(())
}

/// The hash of `topic#`, with which the hashes of all keys of a topic begin.
pub fn topic_hash(topic: &[u8]) -> Result<i32, NotPlain> {
    java_hash(java_hash(0, topic)?, b"#")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pair_of_a_name_counts() {
        let text = b"TAGS\x01a\x02K\x01v\x02TAGS\x01b\x02";
        assert_eq!(last_value(text, b"\x02TAGS\x01"), Ok(Some(&b"b"[..])));
        assert_eq!(
            last_value(b"TAGS\x01a", b"\x02TAGS\x01"),
            Ok(Some(&b"a"[..]))
        );
        assert_eq!(
            last_value(b"TAGS\x01a\x01TAGS\x01b\x02", b"\x02TAGS\x01"),
            Ok(Some(&b"a\x01TAGS\x01b"[..]))
        );
        assert_eq!(last_value(b"AGS\x01a\x02\x01", b"\x02TAGS\x01"), Ok(None));
        assert_eq!(last_value(b"XTAGS\x01a\x02", b"\x02TAGS\x01"), Ok(None));
        assert_eq!(last_value(b"TAGS\x01\x02", b"\x02TAGS\x01"), Err(NotPlain));
    }

    #[test]
    fn hashes_are_those_of_java() {
        assert_eq!(java_hash(0, b"hello"), Ok(99_162_322));
        assert_eq!(
            java_hash(0, "é𝄞".as_bytes()),
            Ok((0xe9 * 31 + 0xd834) * 31 + 0xdd1e)
        );
        assert_eq!(java_hash(0, b"\xff"), Err(NotPlain));
    }

    #[test]
    fn keys_are_split_at_spaces() {
        let mut found = Vec::new();
        each_key_hash(b"KEYS\x01a  b\x02UNIQ_KEY\x01u\x02", 0, |hash| {
            found.push(hash)
        })
        .unwrap();
        assert_eq!(
            found,
            vec![i32::from(b'u'), i32::from(b'a'), i32::from(b'b')]
        );
    }
}
