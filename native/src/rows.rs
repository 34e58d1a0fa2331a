//! Rows of an Arrow batch, packed as the messages of a batch send (`spark.sink.rows`, `wire.batch`).

use memchr::{memchr2, memmem};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::guard::or_doubt;
use crate::page::readable;

/// Size, 8 bytes, flag, length of the body; behind the body the length of the properties.
const HEAD_BYTES: usize = 20;
const UNIQUE_KEY: &[u8] = b"UNIQ_KEY\x01";
/// A row's number has four digits, and the last one is that of the chunk.
const ROWS_MAX: usize = 0xFFFF;

/// Reserved at once; chunks are not larger, whatever the numbers say that come from Python.
const RESERVED_BYTES_MAX: usize = 4 << 20;

/// A column of strings or bytes, with offsets of four bytes.
struct Column<'a> {
    offsets: &'a [u8],
    data: &'a [u8],
    /// A bit for each value, from the lowest on; None: there are no nulls.
    valid: Option<&'a [u8]>,
}

impl<'a> Column<'a> {
    /// The value of a row, None within if it is null; None if it is not inside the column.
    fn value(&self, row: usize) -> Option<Option<&'a [u8]>> {
        if let Some(valid) = self.valid {
            if valid.get(row / 8)? & (1 << (row % 8)) == 0 {
                return Some(None);
            }
        }
        let place = |number: usize| {
            let at = number.checked_mul(4)?;
            let octets = self.offsets.get(at..at.checked_add(4)?)?;
            usize::try_from(i32::from_ne_bytes(octets.try_into().ok()?)).ok()
        };
        Some(Some(
            self.data.get(place(row)?..place(row.checked_add(1)?)?)?,
        ))
    }
}

/// What the rows of a chunk share.
struct Terms<'a> {
    chunk_id: &'a [u8],
    /// Properties that each row has.
    always: &'a [u8],
    topic_crc: u32,
    /// For the rows that are packed now.
    room_bytes: usize,
    body_bytes_max: usize,
    properties_bytes_max: usize,
}

#[derive(Default)]
struct Packed {
    data: Vec<u8>,
    rows: usize,
    checksum: u64,
}

/// MurmurHash3's end: sums of CRCs are linear, those of mixed ones are not (`_checksum` in `spark.sink.rows`).
fn mixed(crc: u32) -> u64 {
    let mut mixed = u64::from(crc);
    for factor in [0xFF51_AFD7_ED55_8CCD, 0xC4CE_B9FE_1A85_EC53] {
        mixed ^= mixed >> 33;
        mixed = mixed.wrapping_mul(factor);
    }
    mixed ^ (mixed >> 33)
}

/// Append `name \x01 value \x02`, unless there is no value; None if Python must look at it.
fn put_pair(out: &mut Vec<u8>, name: &[u8], value: Option<&[u8]>) -> Option<()> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Some(());
    };
    if memchr2(1, 2, value).is_some() || std::str::from_utf8(value).is_err() {
        return None;
    }
    out.extend_from_slice(name);
    out.push(1);
    out.extend_from_slice(value);
    out.push(2);
    Some(())
}

impl Packed {
    /// Append one row; None if it is not plain, or has no room. `text` is used for its properties.
    fn add(
        &mut self,
        body: &[u8],
        tags: Option<&[u8]>,
        keys: Option<&[u8]>,
        number: usize,
        terms: &Terms<'_>,
        text: &mut Vec<u8>,
    ) -> Option<()> {
        if body.is_empty() || body.len() > terms.body_bytes_max || number >= ROWS_MAX {
            return None;
        }
        text.clear();
        text.extend_from_slice(terms.always);
        if tags.is_some_and(|tags| memmem::find(tags, b"||").is_some()) {
            return None;
        }
        put_pair(text, b"TAGS", tags)?;
        put_pair(text, b"KEYS", keys)?;
        let properties_bytes = UNIQUE_KEY.len() + terms.chunk_id.len() + 5 + text.len();
        let size = HEAD_BYTES + body.len() + 2 + properties_bytes;
        if text.len() > terms.properties_bytes_max
            || size > terms.room_bytes.saturating_sub(self.data.len())
        {
            return None;
        }
        let (size, body_bytes) = (i32::try_from(size).ok()?, i32::try_from(body.len()).ok()?);
        let length = i16::try_from(properties_bytes).ok()?;
        let out = &mut self.data;
        out.extend_from_slice(&size.to_be_bytes());
        out.extend_from_slice(&[0; 12]);
        out.extend_from_slice(&body_bytes.to_be_bytes());
        out.extend_from_slice(body);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(UNIQUE_KEY);
        out.extend_from_slice(terms.chunk_id);
        out.extend(
            (0..4)
                .rev()
                .map(|place| b"0123456789ABCDEF"[(number >> (4 * place)) & 15]),
        );
        out.push(2);
        out.extend_from_slice(text);
        let mut crc = crc32fast::Hasher::new_with_initial(terms.topic_crc);
        crc.update(text);
        crc.update(body);
        self.checksum = self.checksum.wrapping_add(mixed(crc.finalize()));
        self.rows += 1;
        Some(())
    }
}

/// The value of a column that may be missing: then it is null.
fn value<'a>(column: &Option<Column<'a>>, row: usize) -> Option<Option<&'a [u8]>> {
    column
        .as_ref()
        .map_or(Some(None), |column| column.value(row))
}

/// Pack rows from `begin` on, as long as they are plain and have room.
fn pack(
    columns: &[Option<Column<'_>>; 3],
    begin: usize,
    end: usize,
    number: usize,
    terms: &Terms<'_>,
) -> Packed {
    let [bodies, tags, keys] = columns;
    let (mut made, mut text) = (Packed::default(), Vec::new());
    for row in begin..end {
        let (Some(Some(body)), Some(tags), Some(keys)) =
            (value(bodies, row), value(tags, row), value(keys, row))
        else {
            break;
        };
        let number = number.saturating_add(made.rows);
        if made
            .add(body, tags, keys, number, terms, &mut text)
            .is_none()
        {
            break;
        }
        if made.rows == 1 {
            // The others will have about the size of the first.
            let expected = made.data.len().saturating_mul(end - begin);
            made.data
                .reserve(expected.min(terms.room_bytes).min(RESERVED_BYTES_MAX));
        }
    }
    made
}

/// A column's offsets, data, and validity bits.
type Buffers = (PyBuffer<u8>, Option<PyBuffer<u8>>, Option<PyBuffer<u8>>);

/// Pack rows. See `ternmq/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (bodies, tags, keys, begin, end, *, chunk_id, number, always, topic_crc, room_bytes, body_bytes_max,
    properties_bytes_max))]
#[allow(clippy::too_many_arguments)]
pub fn pack_rows<'py>(
    py: Python<'py>,
    bodies: Buffers,
    tags: Option<Buffers>,
    keys: Option<Buffers>,
    begin: usize,
    end: usize,
    chunk_id: &str,
    number: usize,
    always: &str,
    topic_crc: u32,
    room_bytes: usize,
    body_bytes_max: usize,
    properties_bytes_max: usize,
) -> PyResult<(Bound<'py, PyBytes>, usize, u64)> {
    let bodies = Some(bodies);
    let mut columns = [None, None, None];
    for (column, buffers) in columns.iter_mut().zip([&bodies, &tags, &keys]) {
        let Some((offsets, data, valid)) = buffers else {
            continue;
        };
        *column = Some(Column {
            offsets: readable(py, offsets)?,
            data: match data {
                Some(data) => readable(py, data)?,
                None => &[],
            },
            valid: match valid {
                Some(valid) => Some(readable(py, valid)?),
                None => None,
            },
        });
    }
    let terms = Terms {
        chunk_id: chunk_id.as_bytes(),
        always: always.as_bytes(),
        topic_crc,
        room_bytes,
        body_bytes_max,
        properties_bytes_max,
    };
    let made = or_doubt(Packed::default, || {
        pack(&columns, begin, end, number, &terms)
    });
    Ok((PyBytes::new(py, &made.data), made.rows, made.checksum))
}

#[cfg(test)]
mod tests {
    use super::{mixed, pack, Column, Terms};

    const TERMS: Terms<'_> = Terms {
        chunk_id: b"C",
        always: b"",
        topic_crc: 0,
        room_bytes: 100,
        body_bytes_max: 10,
        properties_bytes_max: 100,
    };

    fn offsets(places: &[i32]) -> Vec<u8> {
        places.iter().flat_map(|at| at.to_ne_bytes()).collect()
    }

    #[test]
    fn packing_stops_before_a_row_without_room_or_body() {
        let offsets = offsets(&[0, 3, 6, 6, 9]);
        let columns = || {
            let bodies = Column {
                offsets: &offsets,
                data: b"onetwosix",
                valid: None,
            };
            [Some(bodies), None, None]
        };
        assert_eq!(pack(&columns(), 0, 4, 0, &TERMS).rows, 2);
        assert_eq!(pack(&columns(), 2, 4, 0, &TERMS).rows, 0);
        assert_eq!(pack(&columns(), 3, 9, 0, &TERMS).rows, 1);
        assert_eq!(pack(&columns(), 0, 4, 0xFFFE, &TERMS).rows, 1);
        let narrow = Terms {
            room_bytes: 79,
            ..TERMS
        };
        assert_eq!(pack(&columns(), 0, 4, 0, &narrow).rows, 1);
    }

    #[test]
    fn offsets_that_lie_are_refused() {
        for places in [[-1, 3], [0, 10], [3, 1], [0, i32::MAX], [i32::MIN, 0]] {
            let offsets = offsets(&places);
            let column = Column {
                offsets: &offsets,
                data: b"123456789",
                valid: Some(&[1]),
            };
            assert!(column.value(0).is_none(), "{places:?}");
            assert!(column.value(usize::MAX).is_none());
        }
    }

    #[test]
    fn checksums_are_mixed() {
        assert_ne!(mixed(1) + mixed(4), mixed(2) + mixed(3));
    }
}
