//! Compiled kernels of TernMQ.
//!
//! Each is a function of buffers and numbers that the package has in pure Python, too: that version is the reference
//! and decides everything that is not plain. A kernel that is in doubt writes nothing and says so (`None`, or an earlier
//! end). `ternmq.kernels` loads this module; `ternmq/_native.pyi` tells what the functions promise.

use pyo3::prelude::*;

mod batch;
mod columns;
mod delivery;
mod entries;
mod guard;
mod index;
mod json;
mod ops;
mod packed;
mod packing;
mod page;
mod properties;
mod record;
mod refusal;
mod rows;
mod scan;
mod send_frames;
mod send_header;
mod sends;
mod sent;
mod sha1_lanes;
mod signed_sends;
mod signing;
mod stored;
mod storing;
mod timed_sends;
mod timer;
mod transactions;
mod waiting;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(batch::contains_any, module)?)?;
    module.add_function(wrap_pyfunction!(batch::expand_batch, module)?)?;
    module.add_function(wrap_pyfunction!(batch::offset_ids, module)?)?;
    module.add_function(wrap_pyfunction!(columns::record_starts, module)?)?;
    module.add_function(wrap_pyfunction!(columns::part_crcs, module)?)?;
    module.add_function(wrap_pyfunction!(columns::property_values, module)?)?;
    module.add_function(wrap_pyfunction!(columns::property_pairs, module)?)?;
    module.add_function(wrap_pyfunction!(delivery::deliver, module)?)?;
    module.add_function(wrap_pyfunction!(delivery::has_sound_entries, module)?)?;
    module.add_function(wrap_pyfunction!(entries::seal_entries, module)?)?;
    module.add_function(wrap_pyfunction!(entries::check_entries, module)?)?;
    module.add_function(wrap_pyfunction!(index::index_entries, module)?)?;
    module.add_function(wrap_pyfunction!(index::index_put, module)?)?;
    module.add_function(wrap_pyfunction!(index::check_chain, module)?)?;
    module.add_function(wrap_pyfunction!(index::count_same, module)?)?;
    module.add_function(wrap_pyfunction!(ops::store_ops, module)?)?;
    module.add_function(wrap_pyfunction!(packing::pack_batch, module)?)?;
    module.add_function(wrap_pyfunction!(packing::pack_properties, module)?)?;
    module.add_function(wrap_pyfunction!(refusal::refuse_sends, module)?)?;
    module.add_function(wrap_pyfunction!(rows::pack_rows, module)?)?;
    module.add_function(wrap_pyfunction!(scan::scan, module)?)?;
    module.add_function(wrap_pyfunction!(sends::parse_sends, module)?)?;
    module.add_class::<sends::Sends>()?;
    module.add_class::<send_frames::SendHead>()?;
    module.add_function(wrap_pyfunction!(sent::read_sent, module)?)?;
    module.add_function(wrap_pyfunction!(stored::read_rows, module)?)?;
    module.add_function(wrap_pyfunction!(storing::store_sends, module)?)?;
    module.add_class::<packed::SendTerms>()?;
    module.add_class::<packed::ReplyForm>()?;
    module.add_function(wrap_pyfunction!(timed_sends::store_timed_sends, module)?)?;
    module.add_function(wrap_pyfunction!(timer::timed, module)?)?;
    module.add_function(wrap_pyfunction!(transactions::store_transactions, module)?)?;
    module.add_function(wrap_pyfunction!(waiting::fold_waiting, module)?)?;
    module.add_class::<signed_sends::SignedSends>()?;
    module.add_class::<signing::SigningKey>()?;
    Ok(())
}
