//! The fields of a record of the first version with IPv4 hosts (`wire.record`).

pub const MAGIC_V1: i32 = -626_843_481;
pub const FIXED_V4_BYTES: usize = 88;
const RECORD_BYTES_MIN: usize = FIXED_V4_BYTES + 3;

pub fn get_i32(data: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(data[at..at + 4].try_into().expect("four bytes"))
}

pub fn get_i64(data: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(data[at..at + 8].try_into().expect("eight bytes"))
}

/// The variable parts of a record.
pub struct Parts<'a> {
    pub body: &'a [u8],
    /// The topic with its length in front.
    pub topic_field: &'a [u8],
    pub properties: &'a [u8],
}

impl Parts<'_> {
    /// Whether the body has the checksum that its record tells.
    pub fn is_sound(&self, record: &[u8]) -> bool {
        self.body.is_empty()
            || crc32fast::hash(self.body) & 0x7FFF_FFFF == get_i32(record, 8) as u32
    }
}

/// The parts of `record`, which is whole and has no more than it says; None if it is of another kind.
pub fn plain_parts(record: &[u8], log_offset: i64) -> Option<Parts<'_>> {
    if record.len() < RECORD_BYTES_MIN
        || usize::try_from(get_i32(record, 0)).ok()? != record.len()
        || get_i32(record, 4) != MAGIC_V1
        || get_i64(record, 28) != log_offset
    {
        return None;
    }
    let body_bytes = usize::try_from(get_i32(record, 84)).ok()?;
    let topic_at = FIXED_V4_BYTES.checked_add(body_bytes)?;
    let topic_bytes = usize::from(*record.get(topic_at)?);
    let properties_at = topic_at + topic_bytes + 3;
    if topic_bytes > 127 || properties_at > record.len() {
        return None;
    }
    let length = u16::from_be_bytes([record[properties_at - 2], record[properties_at - 1]]);
    let properties = &record[properties_at..];
    if usize::from(length) != properties.len() {
        return None;
    }
    Some(Parts {
        body: &record[FIXED_V4_BYTES..topic_at],
        topic_field: &record[topic_at..properties_at - 2],
        properties,
    })
}
