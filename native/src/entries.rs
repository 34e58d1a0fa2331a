//! Entries of a Raft log (`wire.layouts.raft_entry`): headers filled in front of records, and entries of another member
//! checked before they are appended (`raft.log`).

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::guard::or_doubt;
use crate::page::{readable, writable, Writer};
use crate::record::{get_i32, get_i64, MAGIC_V1};

pub const HEADER_BYTES: usize = 48;
/// The header before its CRC.
const BEFORE_BYTES: usize = 36;
const ENTRY_MAGIC: i32 = 1;
const MAGIC_V2: i32 = -626_843_477;
/// Of an entry: a header, and the smallest record.
const ENTRY_BYTES_MIN: usize = HEADER_BYTES + 91;
const BLANK_BYTES: usize = 8;
/// No term is so large.
const TERM_END: i64 = 1 << 62;

/// A CRC that continues another one; 0 means that there is none, so it is never that.
fn crc(data: &[u8], before: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(data);
    hasher.finalize().max(1)
}

/// What a header tells.
pub struct Header {
    pub size: usize,
    pub index: i64,
    pub term: i64,
    pub position: i64,
    crc: u32,
    record_crc: u32,
}

impl Header {
    /// The header of an entry; None if it is none, or damaged.
    pub fn read(data: &[u8]) -> Option<Self> {
        let data = data.get(..HEADER_BYTES)?;
        let record_bytes = get_i32(data, 44);
        let found = Self {
            size: usize::try_from(get_i32(data, 4)).ok()?,
            index: get_i64(data, 8),
            term: get_i64(data, 16),
            position: get_i64(data, 24),
            crc: get_i32(data, 36) as u32,
            record_crc: get_i32(data, 40) as u32,
        };
        let is_sound = get_i32(data, 0) == ENTRY_MAGIC
            && record_bytes > 0
            && found.size == HEADER_BYTES + record_bytes as usize
            && found.position >= 0
            && (0..=found.position / ENTRY_BYTES_MIN as i64).contains(&found.index)
            && (0..TERM_END).contains(&found.term)
            && (found.crc == 0 || crc(&data[..BEFORE_BYTES], 0) == found.crc);
        is_sound.then_some(found)
    }

    /// Whether `record`, behind the header, has the CRC that this one says, if it says one.
    pub fn is_of(&self, record: &[u8]) -> bool {
        self.record_crc == 0 || crc(record, self.crc) == self.record_crc
    }

    fn write(page: &mut [u8], record: &[u8], index: i64, term: i64, position: i64) {
        let mut header = Writer { page, at: 0 };
        header.put(&ENTRY_MAGIC.to_be_bytes());
        header.put(&((HEADER_BYTES + record.len()) as i32).to_be_bytes());
        header.put(&index.to_be_bytes());
        header.put(&term.to_be_bytes());
        header.put(&position.to_be_bytes());
        header.put(&[0; 4]);
        let own = crc(&header.page[..BEFORE_BYTES], 0);
        header.put(&own.to_be_bytes());
        header.put(&crc(record, own).to_be_bytes());
        header.put(&(record.len() as i32).to_be_bytes());
    }
}

/// Append the unit of an entry in the index.
fn add_unit(units: &mut Vec<u8>, position: i64, size: usize, index: i64, term: i64) {
    units.extend_from_slice(&ENTRY_MAGIC.to_be_bytes());
    units.extend_from_slice(&position.to_be_bytes());
    units.extend_from_slice(&(size as i32).to_be_bytes());
    units.extend_from_slice(&index.to_be_bytes());
    units.extend_from_slice(&term.to_be_bytes());
}

/// Fill the headers of the entries that `room` consists of; None if it does not.
fn seal(room: &mut [u8], mut index: i64, term: i64, position: i64) -> Option<Vec<u8>> {
    let mut units = Vec::new();
    let mut at = 0;
    while at < room.len() {
        let (header, rest) = room[at..].split_at_mut_checked(HEADER_BYTES)?;
        let size = usize::try_from(i32::from_be_bytes(rest.get(..4)?.try_into().ok()?)).ok()?;
        let record = rest.get(..size).filter(|record| !record.is_empty())?;
        let begin = position.checked_add(at as i64)?;
        Header::write(header, record, index, term, begin);
        add_unit(&mut units, begin, HEADER_BYTES + size, index, term);
        index = index.checked_add(1)?;
        at += HEADER_BYTES + size;
    }
    Some(units)
}

/// What the next entry of another member must be.
struct Expected {
    index: i64,
    term: i64,
    position: i64,
    file_bytes: i64,
    members_flag: i32,
}

/// Check the plain entries that follow each other from `at` on: where they end, and their units in the index.
fn check(data: &[u8], mut at: usize, expected: &Expected) -> (usize, Vec<u8>) {
    let (mut index, mut position) = (expected.index, expected.position);
    let mut units = Vec::new();
    // Room in the data file; none for numbers that are no places.
    let mut room = match position.checked_rem(expected.file_bytes) {
        Some(in_file @ 0..) => expected.file_bytes - in_file,
        _ => 0,
    };
    while let Some(header) = data.get(at..).and_then(Header::read) {
        let Some(entry) = data.get(at..at + header.size) else {
            break;
        };
        if header.size <= ENTRY_BYTES_MIN
            || header.index != index
            || header.term != expected.term
            || header.position != position
            || (header.size + BLANK_BYTES) as i64 > room
        {
            break;
        }
        let record = &entry[HEADER_BYTES..];
        let magic = get_i32(record, 4);
        if get_i32(record, 0) as usize != record.len()
            || get_i64(record, 28).checked_sub(position) != Some(HEADER_BYTES as i64)
            || (magic != MAGIC_V1 && magic != MAGIC_V2)
            || get_i32(record, 16) == expected.members_flag
            || !header.is_of(record)
        {
            break;
        }
        add_unit(&mut units, position, header.size, index, header.term);
        at += header.size;
        room -= header.size as i64;
        let next = (
            position.checked_add(header.size as i64),
            index.checked_add(1),
        );
        let (Some(behind), Some(following)) = next else {
            break;
        };
        (position, index) = (behind, following);
    }
    (at, units)
}

/// Fill the headers in front of records. See `ternmq/_native.pyi`.
#[pyfunction]
pub fn seal_entries<'py>(
    py: Python<'py>,
    page: PyBuffer<u8>,
    at: usize,
    end: usize,
    index: i64,
    term: i64,
    position: i64,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let Some(room) = writable(py, &page)?.get_mut(at..end) else {
        return Ok(None);
    };
    let units = or_doubt(|| None, || seal(room, index, term, position));
    Ok(units.map(|units| PyBytes::new(py, &units)))
}

/// Check entries of another member. See `ternmq/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (data, at, *, index, term, position, file_bytes, members_flag))]
#[allow(clippy::too_many_arguments)]
pub fn check_entries<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    at: usize,
    index: i64,
    term: i64,
    position: i64,
    file_bytes: i64,
    members_flag: i32,
) -> PyResult<(usize, Bound<'py, PyBytes>)> {
    let data = readable(py, &data)?;
    let expected = Expected {
        index,
        term,
        position,
        file_bytes,
        members_flag,
    };
    let (at, units) = or_doubt(|| (at, Vec::new()), || check(data, at, &expected));
    Ok((at, PyBytes::new(py, &units)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(log_offset: i64, body: &[u8]) -> Vec<u8> {
        let size = 91 + body.len();
        let mut data = vec![0; size];
        data[..4].copy_from_slice(&(size as i32).to_be_bytes());
        data[4..8].copy_from_slice(&MAGIC_V1.to_be_bytes());
        data[28..36].copy_from_slice(&log_offset.to_be_bytes());
        data[84..88].copy_from_slice(&(body.len() as i32).to_be_bytes());
        data[88..88 + body.len()].copy_from_slice(body);
        data
    }

    fn room() -> Vec<u8> {
        let first = record(1048, b"one");
        let second = record(1048 + first.len() as i64 + 48, b"three");
        [vec![0; 48], first, vec![0; 48], second].concat()
    }

    fn expected() -> Expected {
        Expected {
            index: 5,
            term: 3,
            position: 1000,
            file_bytes: 4096,
            members_flag: 77,
        }
    }

    #[test]
    fn sealed_entries_are_found_sound() {
        let mut room = room();
        let units = seal(&mut room, 5, 3, 1000).unwrap();
        assert_eq!(units.len(), 64);
        assert_eq!(check(&room, 0, &expected()), (room.len(), units));
    }

    #[test]
    fn any_flipped_bit_and_any_cut_end_the_check() {
        let mut room = room();
        seal(&mut room, 5, 3, 1000).unwrap();
        let second = 48 + 94;
        for at in 0..room.len() {
            // The channel, which is covered by the CRC, too; DLedger does not use it.
            let mut damaged = room.clone();
            damaged[at] ^= 4;
            let begin = if at < second { 0 } else { second };
            assert_eq!(check(&damaged, 0, &expected()).0, begin, "{at}");
            let begin = if at < second { 0 } else { second };
            assert_eq!(check(&room[..at], 0, &expected()).0, begin, "{at}");
        }
    }

    #[test]
    fn what_does_not_follow_is_left() {
        let mut room = room();
        seal(&mut room, 5, 3, 1000).unwrap();
        for change in [
            |each: &mut Expected| each.index += 1,
            |each: &mut Expected| each.term += 1,
            |each: &mut Expected| each.term -= 1,
            |each: &mut Expected| each.position += 1,
            |each: &mut Expected| each.members_flag = 0,
            // No room for it in this file.
            |each: &mut Expected| each.file_bytes = 1000 + 142 + 7,
        ] {
            let mut other = expected();
            change(&mut other);
            assert_eq!(check(&room, 0, &other), (0, Vec::new()));
        }
    }

    #[test]
    fn what_are_no_records_is_not_sealed() {
        assert!(seal(&mut room()[1..], 0, 1, 0).is_none());
        let length = room().len();
        assert!(seal(&mut room()[..length - 1], 0, 1, 0).is_none());
        assert!(seal(&mut [0; 100], 0, 1, 0).is_none());
        assert!(seal(&mut [0; 20], 0, 1, 0).is_none());
    }
}
