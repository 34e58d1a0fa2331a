//! Headers of sends and of ends of transactions, read in one pass over their bytes: for runs (`sends`), and for sends
//! one by one (`signed_sends`).
//!
//! A header is plain if it is JSON of the kind that clients write: the code first, each member and each field once, all
//! fields texts. Everything else is `NotPlain`, and Python reads it.

use crate::json::{number, Reader, Text};
use crate::properties::NotPlain;

/// Requests have a dozen fields. With more than this, or longer, Python reads them.
const FIELDS_MAX: usize = 32;
const HEADER_BYTES_MAX: usize = 64 * 1024;
const PREFIX_BYTES: usize = 8;

pub const SEND_MESSAGE: i64 = 10;
pub const END_TRANSACTION: i64 = 37;
pub const SEND_MESSAGE_V2: i64 = 310;
pub const SEND_BATCH_MESSAGE: i64 = 320;

/// The fields of a send, in the order of the letters that stand for their names in all codes but SEND_MESSAGE; then those
/// that only the end of a transaction has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Group,
    Topic,
    DefaultTopic,
    DefaultQueues,
    QueueId,
    Sysflag,
    BornTime,
    Flag,
    Properties,
    ReconsumeTimes,
    UnitMode,
    MaxReconsumeTimes,
    Batch,
    Broker,
    HalfLogOffset,
    HalfQueueOffset,
    Decision,
    FromCheck,
    TransactionId,
}

const FIELDS: usize = Field::TransactionId as usize + 1;

fn place_of(code: i64, name: &[u8]) -> Option<usize> {
    if code == END_TRANSACTION {
        let field = match name {
            b"producerGroup" => Field::Group,
            b"commitLogOffset" => Field::HalfLogOffset,
            b"tranStateTableOffset" => Field::HalfQueueOffset,
            b"commitOrRollback" => Field::Decision,
            b"fromTransactionCheck" => Field::FromCheck,
            b"transactionId" => Field::TransactionId,
            _ => return None,
        };
        return Some(field as usize);
    }
    if code != SEND_MESSAGE {
        return match name {
            [letter @ b'a'..=b'n'] => Some(usize::from(letter - b'a')),
            _ => None,
        };
    }
    let field = match name {
        b"producerGroup" => Field::Group,
        b"topic" => Field::Topic,
        b"defaultTopic" => Field::DefaultTopic,
        b"defaultTopicQueueNums" => Field::DefaultQueues,
        b"queueId" => Field::QueueId,
        b"sysFlag" => Field::Sysflag,
        b"bornTimestamp" => Field::BornTime,
        b"flag" => Field::Flag,
        b"properties" => Field::Properties,
        b"reconsumeTimes" => Field::ReconsumeTimes,
        b"unitMode" => Field::UnitMode,
        b"maxReconsumeTimes" => Field::MaxReconsumeTimes,
        b"batch" => Field::Batch,
        b"bname" => Field::Broker,
        _ => return None,
    };
    Some(field as usize)
}

/// A whole frame with a JSON header.
pub struct Frame<'a> {
    pub begin: usize,
    pub header: &'a [u8],
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The frame that begins at `begin`; None if it is not whole, too large, or has a header of another form.
    pub fn at(data: &'a [u8], begin: usize, bytes_max: usize) -> Option<Self> {
        let rest = data.get(begin..)?;
        let prefix = rest.get(..PREFIX_BYTES)?;
        let length = u32::from_be_bytes(prefix[..4].try_into().ok()?) as usize;
        // The top byte is the form of the header, 0 for JSON; with another one this is larger than any header.
        let header_bytes = u32::from_be_bytes(prefix[4..].try_into().ok()?) as usize;
        let bytes = length.checked_add(4)?;
        if bytes > bytes_max || header_bytes > HEADER_BYTES_MAX {
            return None;
        }
        let header_end = PREFIX_BYTES + header_bytes;
        Some(Self {
            begin,
            header: rest.get(PREFIX_BYTES..header_end)?,
            body: rest.get(header_end..bytes)?,
        })
    }

    pub fn header_at(&self) -> usize {
        self.begin + PREFIX_BYTES
    }

    pub fn body_at(&self) -> usize {
        self.header_at() + self.header.len()
    }

    pub fn end(&self) -> usize {
        self.body_at() + self.body.len()
    }
}

/// What reading a header leaves beside it; used again for the next one.
#[derive(Default)]
pub struct Buffers<'a> {
    /// Texts that had escapes.
    pub decoded: Vec<u8>,
    /// All fields, with those that are not known, as they stand there.
    pub fields: Vec<(&'a [u8], Text)>,
    /// Numbers of the fields in the order of their names, as of the last header that was checked.
    pub order: Vec<u8>,
}

/// A header, as far as it is plain.
#[derive(Default)]
pub struct Header<'a> {
    pub code: i64,
    pub flag: i64,
    pub opaque: i64,
    pub version: i64,
    pub language: Option<Text>,
    pub data: &'a [u8],
    places: [Option<Text>; FIELDS],
}

impl<'a> Header<'a> {
    /// The header of a request of one of `codes`. The code comes first, as all clients write it: a header of another one
    /// costs nothing more.
    pub fn read(
        data: &'a [u8],
        codes: &[i64],
        buffers: &mut Buffers<'a>,
    ) -> Result<Self, NotPlain> {
        buffers.decoded.clear();
        buffers.fields.clear();
        let mut reader = Reader::new(data);
        let mut header = Self {
            data,
            ..Self::default()
        };
        reader.expect(b'{')?;
        if reader.name()? != b"code" {
            return Err(NotPlain);
        }
        header.code = reader.number()?;
        if !codes.contains(&header.code) || std::str::from_utf8(data).is_err() {
            return Err(NotPlain);
        }
        let mut seen = 0_u32;
        while reader.has_more()? {
            let bit = match reader.name()? {
                b"extFields" => {
                    header.read_fields(&mut reader, buffers)?;
                    1
                }
                b"flag" => {
                    header.flag = reader.number()?;
                    2
                }
                b"language" => {
                    header.language = Some(reader.text(&mut buffers.decoded)?);
                    4
                }
                b"opaque" => {
                    header.opaque = reader.number()?;
                    8
                }
                b"version" => {
                    header.version = reader.number()?;
                    16
                }
                b"serializeTypeCurrentRPC" => {
                    reader.text(&mut buffers.decoded)?;
                    32
                }
                _ => return Err(NotPlain),
            };
            // Of two members of one name the last one would count.
            if seen & bit != 0 {
                return Err(NotPlain);
            }
            seen |= bit;
        }
        reader.end()?;
        if seen & 1 == 0 {
            return Err(NotPlain);
        }
        Ok(header)
    }

    fn read_fields(
        &mut self,
        reader: &mut Reader<'a>,
        buffers: &mut Buffers<'a>,
    ) -> Result<(), NotPlain> {
        reader.expect(b'{')?;
        loop {
            let name = reader.name()?;
            let value = reader.text(&mut buffers.decoded)?;
            if buffers.fields.len() == FIELDS_MAX {
                return Err(NotPlain);
            }
            if let Some(place) = place_of(self.code, name) {
                if self.places[place].replace(value).is_some() {
                    return Err(NotPlain);
                }
            }
            buffers.fields.push((name, value));
            if !reader.has_more()? {
                return Ok(());
            }
        }
    }

    /// The fields that are known. `decoded` is what reading this header left there.
    pub fn values<'b>(&'b self, decoded: &'b [u8]) -> Values<'b> {
        Values {
            header: self,
            decoded,
        }
    }
}

/// The fields of a header by their types; `NotPlain` for those that are not as everybody writes them.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    header: &'a Header<'a>,
    decoded: &'a [u8],
}

impl<'a> Values<'a> {
    pub fn text(&self, field: Field) -> Option<&'a [u8]> {
        self.header.places[field as usize].map(|text| text.of(self.header.data, self.decoded))
    }

    pub fn int64(&self, field: Field) -> Result<Option<i64>, NotPlain> {
        self.text(field).map(number).transpose()
    }

    pub fn int32(&self, field: Field) -> Result<Option<i32>, NotPlain> {
        match self.int64(field)? {
            Some(value) => value.try_into().map(Some).map_err(|_| NotPlain),
            None => Ok(None),
        }
    }

    /// Whether it is set; false if it is absent.
    pub fn is_set(&self, field: Field) -> Result<bool, NotPlain> {
        match self.text(field) {
            None | Some(b"false") => Ok(false),
            Some(b"true") => Ok(true),
            Some(_) => Err(NotPlain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(data: &[u8]) -> Result<Vec<&[u8]>, NotPlain> {
        let mut buffers = Buffers::default();
        Header::read(data, &[SEND_MESSAGE_V2], &mut buffers)?;
        Ok(buffers.fields.iter().map(|(name, _)| *name).collect())
    }

    #[test]
    fn fields_are_found_by_their_names() {
        let data = br#"{"code":310,"extFields":{"b":"x","AccessKey":"k","e":"-7"},"flag":0}"#;
        assert_eq!(names(data), Ok(vec![&b"b"[..], b"AccessKey", b"e"]));
        let mut buffers = Buffers::default();
        let header = Header::read(data, &[SEND_MESSAGE_V2], &mut buffers).unwrap();
        let values = header.values(&buffers.decoded);
        assert_eq!(values.text(Field::Topic), Some(&b"x"[..]));
        assert_eq!(values.int32(Field::QueueId), Ok(Some(-7)));
        assert_eq!(values.int32(Field::Topic), Err(NotPlain));
        assert_eq!(values.int64(Field::BornTime), Ok(None));
        assert_eq!(values.is_set(Field::Batch), Ok(false));
        assert_eq!(values.is_set(Field::Topic), Err(NotPlain));
    }

    #[test]
    fn what_is_not_plain_is_left() {
        for data in [
            &br#"{"code":310,"extFields":{"b":"x","b":"x"}}"#[..],
            br#"{"code":310,"extFields":{"b":"x"},"code":310}"#,
            br#"{"code":310,"extFields":{"b":"x"},"extFields":{}}"#,
            br#"{"code":310,"extFields":{"b":"x"},"more":1}"#,
            br#"{"code":310,"extFields":{"b":1}}"#,
            br#"{"code":310,"extFields":{"b":null}}"#,
            br#"{"code":310,"extFields":{}}"#,
            br#"{"code":310,"extFields":null}"#,
            br#"{"code":310}"#,
            br#"{"extFields":{"b":"x"}}"#,
            br#"{"extFields":{"b":"x"},"code":310}"#,
            br#"{"code":10,"extFields":{"b":"x"}}"#,
            br#"{"code":310.0,"extFields":{"b":"x"}}"#,
            br#"{"code":310,"extFields":{"b":"x"}} x"#,
            br#"{"code":310,"extFields":{"b":"x",}}"#,
            br#"{"code":310,"extFields":{"\u0062":"x"}}"#,
            b"{\"code\":310,\"extFields\":{\"b\":\"\xff\"}}",
        ] {
            assert_eq!(names(data), Err(NotPlain), "{}", data.escape_ascii());
        }
    }

    #[test]
    fn more_fields_than_a_request_has_are_left() {
        let ext: Vec<String> = (0..=FIELDS_MAX)
            .map(|at| format!("\"{at}\":\"\""))
            .collect();
        for (count, is_plain) in [(FIELDS_MAX, true), (FIELDS_MAX + 1, false)] {
            let data = format!(
                "{{\"code\":310,\"extFields\":{{{}}}}}",
                ext[..count].join(",")
            );
            assert_eq!(names(data.as_bytes()).is_ok(), is_plain);
        }
    }

    #[test]
    fn only_whole_frames_of_allowed_sizes_are_read() {
        let data = [0, 0, 0, 7, 0, 0, 0, 2, b'{', b'}', b'x'];
        let frame = Frame::at(&data, 0, 100).unwrap();
        assert_eq!((frame.header, frame.body), (&b"{}"[..], &b"x"[..]));
        assert_eq!(
            (frame.header_at(), frame.body_at(), frame.end()),
            (8, 10, 11)
        );
        assert!(Frame::at(&data, 0, 11).is_some());
        assert!(Frame::at(&data, 0, 10).is_none());
        assert!(Frame::at(&data[..10], 0, 100).is_none());
        assert!(Frame::at(&data[..5], 0, 100).is_none());
        assert!(Frame::at(&data, 11, 100).is_none());
        assert!(Frame::at(&data, usize::MAX, 100).is_none());
        // A header that is longer than its frame, or in the binary form.
        assert!(Frame::at(&[0, 0, 0, 4, 0, 0, 0, 1, b'{'], 0, 100).is_none());
        assert!(Frame::at(&[0, 0, 0, 4, 1, 0, 0, 0], 0, 100).is_none());
        assert!(Frame::at(&[0, 0, 0, 3, 0, 0, 0, 0], 0, 100).is_none());
    }

    #[test]
    fn the_letters_are_those_of_the_names() {
        for (code, name, field) in [
            (SEND_MESSAGE, &b"topic"[..], Some(Field::Topic)),
            (SEND_MESSAGE_V2, b"b", Some(Field::Topic)),
            (SEND_BATCH_MESSAGE, b"m", Some(Field::Batch)),
            (SEND_MESSAGE_V2, b"l", Some(Field::MaxReconsumeTimes)),
            (SEND_MESSAGE_V2, b"n", Some(Field::Broker)),
            (SEND_MESSAGE_V2, b"o", None),
            (SEND_MESSAGE_V2, b"topic", None),
            (SEND_MESSAGE, b"b", None),
            (
                END_TRANSACTION,
                b"commitLogOffset",
                Some(Field::HalfLogOffset),
            ),
            (END_TRANSACTION, b"b", None),
            (SEND_MESSAGE, b"commitLogOffset", None),
        ] {
            assert_eq!(place_of(code, name), field.map(|field| field as usize));
        }
    }
}
