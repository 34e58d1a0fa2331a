//! Sends with a delivery time that follow each other in a run (`sends`), stored by one call (`delay.runs`).
//!
//! Each becomes a record of the timer topic, as `delay.timer` lets it wait there, and gets a recall handle with its
//! reply (`wire.recall`). It stops before a send that has no time, or about which there is more to decide.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::guard::or_doubt;
use crate::index;
use crate::page::writable;
use crate::properties::topic_hash;
use crate::record::{pack, Fields, HOST_V4_BYTES};
use crate::sends::{Request, Run, Sends};
use crate::storing::{Added, ReplyForm, SendTerms, KEYS_BYTES_MAX};
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
    log_offset: i64,
    store_time_ms: i64,
    max_delay_ms: i64,
    born_host: [u8; HOST_V4_BYTES],
    broker_name: &'a str,
    /// By place, whether its messages may be let wait.
    may_wait: Vec<bool>,
    /// Of the timer topic: the next queue offset, the topic with its length in front, and the hash of its keys.
    queue_offset: i64,
    topic_field: &'a [u8],
    topic_hash: i32,
}

/// What is known of the records that were packed.
struct Stored {
    /// Number of the first send that is not stored.
    next: usize,
    end_offset: i64,
    last_offset: i64,
    /// What they add to the queue of the timer topic.
    added: Added,
    /// By place, how many messages and bytes of bodies it sent.
    sent: Vec<(usize, usize)>,
    keys: Vec<u8>,
    replies: Vec<u8>,
}

/// Pack the sends from `call.first` on as waiting records into `room`, up to the first that is not plain.
fn store(
    data: &[u8],
    run: &Run,
    room: &mut [u8],
    terms: &SendTerms,
    form: &ReplyForm,
    mut call: Call<'_>,
) -> Stored {
    let mut made = Stored {
        next: call.first,
        end_offset: call.log_offset,
        last_offset: call.log_offset,
        added: Added::default(),
        sent: vec![(0, 0); run.places.len()],
        keys: Vec::new(),
        replies: Vec::new(),
    };
    let Some(before_handle) = &form.before_handle else {
        return made;
    };
    let mut at = 0;
    let mut key = Vec::new();
    for request in run.requests.iter().skip(call.first) {
        let Request::Send(send) = request else {
            break;
        };
        let properties = &run.texts[send.properties.clone()];
        if call.may_wait.get(send.place) != Some(&true) || terms.has_mark(properties) {
            break;
        }
        let wanted = wish(properties)
            .and_then(|(number, ms)| slot(number, ms, call.store_time_ms, call.max_delay_ms));
        let Some(slot_ms) = wanted else {
            break;
        };
        if made.keys.len() > KEYS_BYTES_MAX {
            break;
        }
        let place = &run.places[send.place];
        let waits = place_text(slot_ms, &place.topic, i64::from(place.queue_id));
        let body = &data[send.body_at..send.frame.end];
        let properties_bytes = properties.len() + terms.more_properties.len() + waits.len();
        let size = terms.record_bytes(body.len(), call.topic_field.len(), properties_bytes);
        let Some(size) = size.filter(|&size| size <= room.len() - at) else {
            break;
        };
        let log_offset = made.end_offset;
        if index::make(
            &mut made.keys,
            properties,
            call.topic_hash,
            log_offset,
            call.store_time_ms,
        )
        .is_err()
        {
            break;
        }
        let fields = Fields {
            queue_id: 0,
            flag: send.flag,
            queue_offset: call.queue_offset,
            log_offset,
            sysflag: send.sysflag & terms.sysflag_mask,
            born_time_ms: send.born_time_ms,
            born_host: &call.born_host,
            store_time_ms: call.store_time_ms,
            store_host: &terms.store_host,
            reconsume_times: send.reconsume_times,
            prepared_offset: 0,
        };
        pack(
            &mut room[at..at + size],
            &fields,
            body,
            call.topic_field,
            [properties, &terms.more_properties, waits.as_bytes()],
        );
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
                &mut made.replies,
                log_offset,
                place.queue_id,
                call.queue_offset,
                &key,
                send.opaque,
            );
        }
        call.queue_offset += 1;
        at += size;
        made.last_offset = log_offset;
        made.end_offset = log_offset + size as i64;
        made.next += 1;
        made.added.add(
            log_offset,
            size,
            send.tags_code,
            call.queue_offset,
            body.len(),
        );
        let (count, body_bytes) = &mut made.sent[send.place];
        *count += 1;
        *body_bytes += body.len();
    }
    made
}

type Made<'py> = (
    usize,
    i64,
    i64,
    (Bound<'py, PyBytes>, i64, usize, Vec<(i64, i64)>),
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
    let (Ok(born_host), Some(Ok(topic_hash))) =
        (born_host.try_into(), topic_field.get(1..).map(topic_hash))
    else {
        return Ok(None);
    };
    let Some(room) = writable(py, &page)?.get_mut(at..end) else {
        return Ok(None);
    };
    let call = Call {
        first,
        log_offset,
        store_time_ms,
        max_delay_ms,
        born_host,
        broker_name,
        may_wait,
        queue_offset,
        topic_field,
        topic_hash,
    };
    let data = sends.data.as_bytes(py);
    // What a panic leaves behind the end of the log was never sealed: it does not exist.
    let work = || Some(store(data, &sends.run, room, terms, form, call));
    let Some(made) = or_doubt(|| None, work) else {
        return Ok(None);
    };
    if made.next == first {
        return Ok(None);
    }
    let sent = made.sent.iter().enumerate();
    Ok(Some((
        made.next,
        made.end_offset,
        made.last_offset,
        (
            PyBytes::new(py, &made.added.entries),
            made.added.log_end,
            made.added.body_bytes,
            made.added.tags,
        ),
        sent.filter(|(_, &(count, _))| count > 0)
            .map(|(place, &(count, body_bytes))| (place, count, body_bytes))
            .collect(),
        PyBytes::new(py, &made.keys),
        PyBytes::new(py, &made.replies),
    )))
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
