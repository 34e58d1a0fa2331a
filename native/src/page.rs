//! Pages that Python owns: mapped files, and byte arrays in simulations.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The bytes (or numbers, which PyO3 has checked to be of this type, and aligned) of a writable, contiguous buffer.
///
/// The slice lives as long as the borrowed buffer, which keeps the memory exported: neither an mmap nor a bytearray
/// can be closed or resized meanwhile.
#[allow(clippy::mut_from_ref)]
pub fn writable<'a, T: Element>(_py: Python<'a>, buffer: &'a PyBuffer<T>) -> PyResult<&'a mut [T]> {
    if buffer.readonly() || !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err(
            "the page must be writable and contiguous",
        ));
    }
    // SAFETY: pointer and length come from a live export of contiguous bytes. The caller holds the GIL and calls no
    // Python code while it uses the slice, and no thread of ours writes to a page without the GIL: the store's pages
    // belong to its one thread, all other threads only read the files or sync them.
    Ok(
        unsafe {
            std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<T>(), buffer.item_count())
        },
    )
}

/// Writes one part behind the other.
pub struct Writer<'a> {
    pub page: &'a mut [u8],
    pub at: usize,
}

impl Writer<'_> {
    pub fn put(&mut self, bytes: &[u8]) {
        self.page[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

/// The same of one that may be read-only, for as long as it is borrowed.
pub fn readable<'a, T: Element>(_py: Python<'a>, buffer: &'a PyBuffer<T>) -> PyResult<&'a [T]> {
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("the source must be contiguous"));
    }
    // SAFETY: as above. The bytes may be those of a page; the caller does not use this slice and one of `writable` at
    // the same time.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<T>(), buffer.item_count()) })
}
