//! Columns of many records, as Arrow has them (`spark.source.records`, `spark.source.properties`).
//!
//! Numbers that belong together are returned as bytes, in the order of bytes of this machine: NumPy and Arrow use them
//! where they are. Positions come from Python, which has checked the records; they are checked again here, as another
//! program may write to a mapped file.

use memchr::memchr;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::guard::or_doubt;
use crate::page::readable;
use crate::record::{get_i32, RECORD_BYTES_MIN};

/// A record with more different properties than this is left to Python, whose search does not take the square of it.
const NAMES_MAX: usize = 64;

/// The start of each record between two positions; None if their sizes do not fill it.
fn starts(data: &[u8], begin: usize, end: usize) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = data.get(begin..end)?;
    while !rest.is_empty() {
        if rest.len() < RECORD_BYTES_MIN {
            return None;
        }
        let size = usize::try_from(get_i32(rest, 0)).ok()?;
        if size < RECORD_BYTES_MIN {
            return None;
        }
        found.extend_from_slice(&((end - rest.len()) as i64).to_ne_bytes());
        rest = rest.get(size..)?;
    }
    Some(found)
}

/// A part of each record: where they begin, and their bytes.
struct Places<'a> {
    data: &'a [u8],
    at: &'a [i64],
    sizes: &'a [i64],
}

impl<'a> Places<'a> {
    /// None unless there are as many positions as sizes.
    fn of(
        py: Python<'a>,
        data: &'a PyBuffer<u8>,
        at: &'a PyBuffer<i64>,
        sizes: &'a PyBuffer<i64>,
    ) -> PyResult<Option<Self>> {
        let (data, at, sizes) = (readable(py, data)?, readable(py, at)?, readable(py, sizes)?);
        Ok((at.len() == sizes.len()).then_some(Self { data, at, sizes }))
    }

    fn len(&self) -> usize {
        self.at.len()
    }

    /// The parts, None for one that is not inside the data.
    fn parts(&self) -> impl Iterator<Item = Option<&'a [u8]>> + '_ {
        self.at.iter().zip(self.sizes).map(|(&at, &size)| {
            let at = usize::try_from(at).ok()?;
            let end = at.checked_add(usize::try_from(size).ok()?)?;
            self.data.get(at..end)
        })
    }
}

/// Texts one behind the other, and where each begins and ends: an Arrow array of strings.
#[derive(Default)]
struct Texts {
    /// Of 4 bytes each, one more than texts.
    offsets: Vec<u8>,
    data: Vec<u8>,
}

impl Texts {
    fn with_room(count: usize) -> Self {
        let mut made = Self {
            offsets: Vec::with_capacity((count + 1) * 4),
            data: Vec::new(),
        };
        made.offsets.extend_from_slice(&0i32.to_ne_bytes());
        made
    }

    /// False if Arrow cannot count the bytes any more.
    #[must_use]
    fn add(&mut self, text: &[u8]) -> bool {
        self.data.extend_from_slice(text);
        let Ok(end) = i32::try_from(self.data.len()) else {
            return false;
        };
        self.offsets.extend_from_slice(&end.to_ne_bytes());
        true
    }

    fn into_bytes(self, py: Python<'_>) -> (Bound<'_, PyBytes>, Bound<'_, PyBytes>) {
        (
            PyBytes::new(py, &self.offsets),
            PyBytes::new(py, &self.data),
        )
    }
}

/// The pairs of a property text as `wire.properties.parse` finds them: of names that occur twice, both.
fn pairs(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = text;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let pair = &rest[..memchr(2, rest).unwrap_or(rest.len())];
            rest = rest.get(pair.len() + 1..).unwrap_or_default();
            let name = &pair[..memchr(1, pair).unwrap_or(pair.len())];
            let value = pair.get(name.len() + 1..).unwrap_or_default();
            if !name.is_empty() && !value.is_empty() {
                return Some((name, value));
            }
        }
        None
    })
}

/// The values of one property.
struct Values {
    texts: Texts,
    /// A bit for each record, from the lowest on: whether it has the property.
    valid: Vec<u8>,
    nulls: usize,
}

/// The values of some properties in each text; None if a text is not UTF-8.
fn values<T: AsRef<[u8]>>(places: &Places<'_>, names: &[T]) -> Option<Vec<Values>> {
    let mut made: Vec<Values> = names
        .iter()
        .map(|_| Values {
            texts: Texts::with_room(places.len()),
            valid: vec![0; places.len().div_ceil(8)],
            nulls: 0,
        })
        .collect();
    let mut found = vec![None; names.len()];
    for (number, text) in places.parts().enumerate() {
        let text = text?;
        std::str::from_utf8(text).ok()?;
        found.fill(None);
        for (name, value) in pairs(text) {
            for (wanted, found) in names.iter().zip(&mut found) {
                if wanted.as_ref() == name {
                    *found = Some(value);
                }
            }
        }
        for (values, found) in made.iter_mut().zip(&found) {
            match found {
                Some(_) => values.valid[number / 8] |= 1 << (number % 8),
                None => values.nulls += 1,
            }
            if !values.texts.add(found.unwrap_or_default()) {
                return None;
            }
        }
    }
    Some(made)
}

/// All names and values, and behind which pair each text ends.
struct AllPairs {
    names: Texts,
    values: Texts,
    ends: Vec<u8>,
}

/// The pairs of all texts, each name of a text once; None if a text is not UTF-8, or has too many.
fn all_pairs(places: &Places<'_>) -> Option<AllPairs> {
    let mut made = AllPairs {
        names: Texts::with_room(places.len()),
        values: Texts::with_room(places.len()),
        ends: Vec::with_capacity((places.len() + 1) * 4),
    };
    made.ends.extend_from_slice(&0i32.to_ne_bytes());
    let mut own: Vec<(&[u8], &[u8])> = Vec::new();
    let mut count = 0i32;
    for text in places.parts() {
        let text = text?;
        std::str::from_utf8(text).ok()?;
        own.clear();
        for (name, value) in pairs(text) {
            // As in a dict: the place of the first pair of a name, and the value of the last one.
            match own.iter().position(|(known, _)| *known == name) {
                Some(place) => own[place].1 = value,
                None if own.len() == NAMES_MAX => return None,
                None => own.push((name, value)),
            }
        }
        for (name, value) in &own {
            if !made.names.add(name) || !made.values.add(value) {
                return None;
            }
        }
        count = count.checked_add(own.len() as i32)?;
        made.ends.extend_from_slice(&count.to_ne_bytes());
    }
    Some(made)
}

/// Where records begin. See `ternmq/_native.pyi`.
#[pyfunction]
pub fn record_starts(
    py: Python<'_>,
    data: PyBuffer<u8>,
    begin: usize,
    end: usize,
) -> PyResult<Option<Bound<'_, PyBytes>>> {
    let data = readable(py, &data)?;
    Ok(or_doubt(|| None, || starts(data, begin, end)).map(|found| PyBytes::new(py, &found)))
}

/// The checksums of parts. See `ternmq/_native.pyi`.
#[pyfunction]
pub fn part_crcs<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    at: PyBuffer<i64>,
    sizes: PyBuffer<i64>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let Some(places) = Places::of(py, &data, &at, &sizes)? else {
        return Ok(None);
    };
    let crcs = || {
        let mut made = Vec::with_capacity(places.len() * 4);
        for part in places.parts() {
            made.extend_from_slice(&crc32fast::hash(part?).to_ne_bytes());
        }
        Some(made)
    };
    Ok(or_doubt(|| None, crcs).map(|made| PyBytes::new(py, &made)))
}

type MadeValues<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    usize,
);

/// Values of some properties. See `ternmq/_native.pyi`.
#[pyfunction]
pub fn property_values<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    at: PyBuffer<i64>,
    sizes: PyBuffer<i64>,
    names: Vec<PyBackedBytes>,
) -> PyResult<Option<Vec<MadeValues<'py>>>> {
    let Some(places) = Places::of(py, &data, &at, &sizes)? else {
        return Ok(None);
    };
    Ok(or_doubt(|| None, || values(&places, &names)).map(|made| {
        made.into_iter()
            .map(|values| {
                let (offsets, data) = values.texts.into_bytes(py);
                (offsets, data, PyBytes::new(py, &values.valid), values.nulls)
            })
            .collect()
    }))
}

type MadePairs<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

/// All properties. See `ternmq/_native.pyi`.
#[pyfunction]
pub fn property_pairs<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    at: PyBuffer<i64>,
    sizes: PyBuffer<i64>,
) -> PyResult<Option<MadePairs<'py>>> {
    let Some(places) = Places::of(py, &data, &at, &sizes)? else {
        return Ok(None);
    };
    Ok(or_doubt(|| None, || all_pairs(&places)).map(|made| {
        let (name_offsets, names) = made.names.into_bytes(py);
        let (value_offsets, values) = made.values.into_bytes(py);
        let ends = PyBytes::new(py, &made.ends);
        (name_offsets, names, value_offsets, values, ends)
    }))
}

#[cfg(test)]
mod tests {
    use super::{pairs, starts};

    fn record(size: i32) -> Vec<u8> {
        let mut made = vec![0; size as usize];
        made[..4].copy_from_slice(&size.to_be_bytes());
        made
    }

    #[test]
    fn each_record_begins_behind_the_one_before() {
        let data = [vec![7; 3], record(91), record(100), record(91)].concat();
        let found = starts(&data, 3, data.len()).unwrap();
        let expected: Vec<u8> = [3i64, 94, 194]
            .iter()
            .flat_map(|at| at.to_ne_bytes())
            .collect();
        assert_eq!(found, expected);
        assert_eq!(starts(&data, 5, 5), Some(vec![]));
    }

    #[test]
    fn sizes_that_do_not_fill_the_range_are_refused() {
        let data = [record(91), record(100)].concat();
        for (begin, end) in [
            (0, 190),
            (0, 90),
            (1, 191),
            (0, 192),
            (2, 1),
            (usize::MAX, 1),
        ] {
            assert!(starts(&data, begin, end).is_none(), "{begin} {end}");
        }
        for size in [90, 0, -1, i32::MIN, i32::MAX] {
            let mut changed = data.clone();
            changed[..4].copy_from_slice(&i32::to_be_bytes(size));
            assert!(starts(&changed, 0, 191).is_none(), "{size}");
        }
    }

    #[test]
    fn pairs_are_those_that_python_finds() {
        let found = |text: &'static [u8]| pairs(text).collect::<Vec<_>>();
        assert_eq!(
            found(b"a\x01b\x02c\x01d"),
            [(&b"a"[..], &b"b"[..]), (b"c", b"d")]
        );
        assert_eq!(
            found(b"\x02\x01b\x02a\x01\x02a\x02x\x01y\x01z\x02"),
            [(&b"x"[..], &b"y\x01z"[..])]
        );
        assert_eq!(found(b""), []);
    }
}
