//! The fields of a record of the first version with IPv4 hosts (`wire.record`).

use crate::page::Writer;

pub const MAGIC_V1: i32 = -626_843_481;
pub const FIXED_V4_BYTES: usize = 88;
pub const HOST_V4_BYTES: usize = 8;
pub const PROPERTIES_BYTES_MAX: usize = 32_767;
pub const RECORD_BYTES_MIN: usize = FIXED_V4_BYTES + 3;

/// The fields of a record that is to be packed, but for its sizes and its variable parts.
pub struct Fields<'a> {
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub log_offset: i64,
    pub sysflag: i32,
    pub born_time_ms: i64,
    pub born_host: &'a [u8; HOST_V4_BYTES],
    pub store_time_ms: i64,
    pub store_host: &'a [u8; HOST_V4_BYTES],
    pub reconsume_times: i32,
    /// Of a commit: the log offset of its half. Else 0.
    pub prepared_offset: i64,
}

/// Pack a record. `page` has exactly its size, and its properties have their parts joined.
pub fn pack(
    page: &mut [u8],
    fields: &Fields<'_>,
    body: &[u8],
    topic_field: &[u8],
    properties: [&[u8]; 3],
) {
    let size = page.len();
    let mut page = Writer { page, at: 0 };
    page.put(&(size as i32).to_be_bytes());
    page.put(&MAGIC_V1.to_be_bytes());
    page.put(&(crc32fast::hash(body) & 0x7FFF_FFFF).to_be_bytes());
    page.put(&fields.queue_id.to_be_bytes());
    page.put(&fields.flag.to_be_bytes());
    page.put(&fields.queue_offset.to_be_bytes());
    page.put(&fields.log_offset.to_be_bytes());
    page.put(&fields.sysflag.to_be_bytes());
    page.put(&fields.born_time_ms.to_be_bytes());
    page.put(fields.born_host);
    page.put(&fields.store_time_ms.to_be_bytes());
    page.put(fields.store_host);
    page.put(&fields.reconsume_times.to_be_bytes());
    page.put(&fields.prepared_offset.to_be_bytes());
    page.put(&(body.len() as i32).to_be_bytes());
    page.put(body);
    page.put(topic_field);
    let properties_bytes: usize = properties.iter().map(|part| part.len()).sum();
    page.put(&(properties_bytes as i16).to_be_bytes());
    for part in properties {
        page.put(part);
    }
    debug_assert_eq!(page.at, size);
}

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
