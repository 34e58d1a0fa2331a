//! Sends with a delivery time that follow each other in a run (`sends`), stored by one call (`delay.runs`).
//!
//! Each becomes a record of the timer topic, as `delay.timer` lets it wait there, and gets a recall handle with its
//! reply (`wire.recall`). It stops before a send that has no time, or about which there is more to decide.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::packed::{
    set_up, unless_it_panics, Added, Content, Packing, Place, QueuePart, ReplyForm, SendTerms,
    SentCounts, Target,
};
use crate::page::writable;
use crate::record::HOST_V4_BYTES;
use crate::sends::{Request, Run, Sends};
use crate::timer::{place_text, slot, wish};

/// URL-safe Base64.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Append `data` in URL-safe Base64, padded.
fn encode(out: &mut Vec<u8>, data: &[u8]) {
    for group in data.chunks(3) {
        let mut bits = 0usize;
        for place in 0..3 {
            bits = bits << 8 | usize::from(group.get(place).copied().unwrap_or(0));
        }
        for digit in 0..4 {
            out.push(if digit <= group.len() {
                ALPHABET[bits >> (18 - 6 * digit) & 63]
            } else {
                b'='
            });
        }
    }
}

/// What a call of `store` gives, beside the terms.
struct Call<'a> {
    first: usize,
    place: Place,
    max_delay_ms: i64,
    born_host: [u8; HOST_V4_BYTES],
    broker_name: &'a str,
    /// By place, whether its messages may be let wait.
    may_wait: Vec<bool>,
    /// The queue of the timer topic.
    target: Target<'a>,
}

/// What is known of the records that were packed.
struct Stored<'a> {
    /// Number of the first send that is not stored.
    next: usize,
    packing: Packing<'a>,
    /// What they add to the queue of the timer topic.
    added: Added,
    sent: SentCounts,
}

/// Pack the sends from `call.first` on as waiting records into `room`, up to the first that is not plain.
fn store<'a>(
    data: &[u8],
    run: &Run,
    room: &'a mut [u8],
    terms: &SendTerms,
    form: &ReplyForm,
    mut call: Call<'_>,
) -> Stored<'a> {
    let mut made = Stored {
        next: call.first,
        packing: Packing::new(room, call.place),
        added: Added::default(),
        sent: SentCounts::of(run),
    };
    let Some(before_handle) = &form.before_handle else {
        return made;
    };
    let packing = &mut made.packing;
    let mut key = Vec::new();
    for request in run.requests.iter().skip(call.first) {
        let Request::Send(send) = request else {
            break;
        };
        let content = Content::of_send(send, run, data, call.born_host);
        if call.may_wait.get(send.place) != Some(&true) || terms.has_mark(content.properties) {
            break;
        }
        let wanted = wish(content.properties)
            .and_then(|(number, ms)| slot(number, ms, packing.store_time_ms(), call.max_delay_ms));
        let Some(slot_ms) = wanted else {
            break;
        };
        let place = &run.places[send.place];
        let waits = place_text(slot_ms, &place.topic, i64::from(place.queue_id));
        let queue_offset = call.target.queue_offset;
        let put = packing.put(
            terms,
            &mut call.target,
            &content,
            waits.as_bytes(),
            &mut made.added,
        );
        let Some(log_offset) = put else {
            break;
        };
        if !send.is_oneway {
            let unique_key = &run.texts[send.key.clone()];
            // The next ms, so that rounding it down gives the slot again.
            let handle = format!(
                "v1 {} {} {} {} {log_offset}",
                place.topic,
                call.broker_name,
                slot_ms + 1,
                String::from_utf8_lossy(unique_key),
            );
            key.clear();
            key.extend_from_slice(unique_key);
            key.extend_from_slice(before_handle);
            encode(&mut key, handle.as_bytes());
            form.fill(
                &mut packing.replies,
                log_offset,
                place.queue_id,
                queue_offset,
                &key,
                send.opaque,
            );
        }
        made.next += 1;
        made.sent.add(send.place, content.body.len());
    }
    made
}

type Made<'py> = (
    usize,
    i64,
    i64,
    QueuePart<'py>,
    Vec<(usize, usize, usize)>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

/// Pack sends with a delivery time as waiting records into a log's window. See `ternmq/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (sends, terms, form, first, page, at, end, *, log_offset, store_time_ms, max_delay_ms, born_host,
    broker_name, may_wait, queue_offset, topic_field))]
#[allow(clippy::too_many_arguments)]
pub fn store_timed_sends<'py>(
    py: Python<'py>,
    sends: &Sends,
    terms: &SendTerms,
    form: &ReplyForm,
    first: usize,
    page: PyBuffer<u8>,
    at: usize,
    end: usize,
    log_offset: i64,
    store_time_ms: i64,
    max_delay_ms: i64,
    born_host: &[u8],
    broker_name: &str,
    may_wait: Vec<bool>,
    queue_offset: i64,
    topic_field: &[u8],
) -> PyResult<Option<Made<'py>>> {
    let given = set_up(
        born_host,
        topic_field,
        queue_offset,
        log_offset,
        store_time_ms,
    );
    let Some((born_host, target, place)) = given else {
        return Ok(None);
    };
    let Some(room) = writable(py, &page)?.get_mut(at..end) else {
        return Ok(None);
    };
    let call = Call {
        first,
        place,
        max_delay_ms,
        born_host,
        broker_name,
        may_wait,
        target,
    };
    let data = sends.data.as_bytes(py);
    let work = || store(data, &sends.run, room, terms, form, call);
    let Some(made) = unless_it_panics(work).filter(|made| made.next > first) else {
        return Ok(None);
    };
    let packing = made.packing;
    Ok(made.added.into_python(py).map(|added| {
        (
            made.next,
            packing.end_offset,
            packing.last_offset,
            added,
            made.sent.into_python(),
            PyBytes::new(py, &packing.keys),
            PyBytes::new(py, &packing.replies),
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_padded() {
        for (data, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foo~", "Zm9vfg=="),
            ("\u{3ff}?>", "z78_Pg=="),
        ] {
            let mut made = Vec::new();
            encode(&mut made, data.as_bytes());
            assert_eq!(made, text.as_bytes(), "{data}");
        }
    }
}
