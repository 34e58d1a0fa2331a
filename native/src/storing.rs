//! A run of plain sends (`sends`), stored by one call (`store.log.run`).
//!
//! `store_sends` makes records, queue entries, index entries and replies. It stops before a send that is not plain for
//! the store: an unknown queue, a property that the broker has to look at, no room, a size beyond a limit.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::packed::{
    unless_it_panics, Added, Content, Packing, Place, ReplyForm, SendTerms, Target,
};
use crate::page::writable;
use crate::record::HOST_V4_BYTES;
use crate::sends::{self, Request, Run, Sends};

/// What is known of the records that were packed.
struct Stored<'a> {
    /// Number of the first send that is not stored.
    next: usize,
    packing: Packing<'a>,
    added: Vec<Added>,
    /// Log offset behind each record whose sender gets a reply.
    ends: Vec<u8>,
}

/// What a call of `store` gives, beside the terms.
struct Call<'a> {
    first: usize,
    /// Number of the first send that must not be stored.
    until: usize,
    place: Place,
    born_host: [u8; HOST_V4_BYTES],
    /// By place: the queue offset, and the topic with its length in front.
    targets: Vec<Option<(i64, &'a [u8])>>,
}

/// Pack the sends from `call.first` on as records into `room`, up to the first that is not plain.
fn store<'a>(
    data: &[u8],
    run: &Run,
    room: &'a mut [u8],
    terms: &SendTerms,
    form: &ReplyForm,
    call: Call<'_>,
) -> Stored<'a> {
    let mut made = Stored {
        next: call.first,
        packing: Packing::new(room, call.place),
        added: run.places.iter().map(|_| Added::default()).collect(),
        ends: Vec::new(),
    };
    let mut targets: Vec<Option<Target<'_>>> = std::iter::zip(&run.places, &call.targets)
        .map(|(place, target)| {
            target.map(|(queue_offset, topic_field)| Target {
                queue_id: place.queue_id,
                queue_offset,
                topic_field,
                topic_hash: place.topic_hash,
            })
        })
        .collect();
    let until = call.until.min(run.requests.len());
    for request in run.requests.iter().take(until).skip(call.first) {
        let Request::Send(send) = request else {
            break;
        };
        let Some(Some(target)) = targets.get_mut(send.place) else {
            break;
        };
        let content = Content::of_send(send, run, data, call.born_host);
        if terms.has_mark(content.properties) {
            break;
        }
        let queue_offset = target.queue_offset;
        let packing = &mut made.packing;
        let added = &mut made.added[send.place];
        let Some(log_offset) = packing.put(terms, target, &content, b"", added) else {
            break;
        };
        if !send.is_oneway {
            made.ends
                .extend_from_slice(&packing.end_offset.to_ne_bytes());
            form.fill(
                &mut packing.replies,
                log_offset,
                target.queue_id,
                queue_offset,
                &run.texts[send.key.clone()],
                send.opaque,
            );
        }
        made.next += 1;
    }
    made
}

/// A queue, its next queue offset, and the topic with its length in front.
type GivenTarget<'py> = (Bound<'py, PyAny>, i64, Bound<'py, PyBytes>);

type Made<'py> = (
    usize,
    i64,
    i64,
    Bound<'py, PyList>,
    Vec<(Bound<'py, PyAny>, usize, usize)>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

/// How many messages were stored of each topic, and the bytes of their bodies, each topic by a number of one of its places.
fn by_topic(places: &[sends::Place], added: &[Added]) -> Vec<(usize, usize, usize)> {
    let mut topics: Vec<(usize, usize, usize)> = Vec::new();
    for (number, added_to) in added.iter().enumerate() {
        let count = added_to.count();
        if count == 0 {
            continue;
        }
        let topic = &places[number].topic;
        match topics
            .iter_mut()
            .find(|(known, ..)| places[*known].topic == *topic)
        {
            Some((_, messages, size)) => {
                *messages += count;
                *size += added_to.body_bytes;
            }
            None => topics.push((number, count, added_to.body_bytes)),
        }
    }
    topics
}

/// Pack sends as records into a log's window. See `ternmq/_native.pyi`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn store_sends<'py>(
    py: Python<'py>,
    sends: &Sends,
    terms: &SendTerms,
    form: &ReplyForm,
    first: usize,
    until: usize,
    page: PyBuffer<u8>,
    at: usize,
    end: usize,
    lead: usize,
    log_offset: i64,
    store_time_ms: i64,
    born_host: &[u8],
    targets: &Bound<'py, PyList>,
) -> PyResult<Option<Made<'py>>> {
    let Ok(born_host) = born_host.try_into() else {
        return Ok(None);
    };
    let given: Vec<Option<GivenTarget<'py>>> = targets.extract()?;
    let Some(room) = writable(py, &page)?.get_mut(at..end) else {
        return Ok(None);
    };
    let call = Call {
        first,
        until,
        place: Place {
            log_offset,
            lead,
            store_time_ms,
        },
        born_host,
        targets: given
            .iter()
            .map(|target| {
                let (_, queue_offset, topic_field) = target.as_ref()?;
                Some((*queue_offset, topic_field.as_bytes()))
            })
            .collect(),
    };
    let data = sends.data.as_bytes(py);
    let work = || store(data, &sends.run, room, terms, form, call);
    let Some(made) = unless_it_panics(work).filter(|made| made.next > first) else {
        return Ok(None);
    };
    let counts = by_topic(&sends.run.places, &made.added)
        .into_iter()
        .filter_map(|(number, count, size)| Some((given[number].as_ref()?.0.clone(), count, size)))
        .collect();
    let added = PyList::empty(py);
    for (added_to, target) in std::iter::zip(made.added, &given) {
        if let (Some(part), Some((queue, ..))) = (added_to.into_python(py), target) {
            let (entries, log_end, body_bytes, tags) = part;
            added.append((queue, entries, log_end, body_bytes, tags))?;
        }
    }
    let packing = made.packing;
    Ok(Some((
        made.next,
        packing.end_offset,
        packing.last_offset,
        added,
        counts,
        PyBytes::new(py, &packing.keys),
        PyBytes::new(py, &packing.replies),
        PyBytes::new(py, &made.ends),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index;
    use crate::packed::tests::{form, terms};
    use crate::sends::tests::{frame, header, KEY};

    fn call(first: usize, places: usize) -> Call<'static> {
        Call {
            first,
            until: 100,
            place: Place {
                log_offset: 1000,
                lead: 0,
                store_time_ms: 9,
            },
            born_host: [2; 8],
            targets: vec![Some((4, b"\x01t")); places],
        }
    }

    #[test]
    fn sends_become_records_entries_and_replies() {
        let data = [
            frame(&header(0, KEY), b"one"),
            frame(&header(0, r"TAGS\u0001x\u0002UNIQ_KEY\u0001B2"), b"two"),
        ]
        .concat();
        let run = Run::parse(&data, 0, 1 << 20);
        assert_eq!(run.requests.len(), 2);
        assert_eq!(run.places.len(), 1);
        let mut room = vec![0; 1000];
        let made = store(&data, &run, &mut room, &terms(), &form(), call(0, 1));
        assert_eq!(made.next, 2);
        assert_eq!(made.added[0].entries.len(), 40);
        assert_eq!(made.added[0].tags, vec![(0, 5), (i64::from(b'x'), 6)]);
        assert_eq!(made.packing.keys.len(), 2 * index::MADE_BYTES);
        let first = &b"\0\0\0\x1f\0\0\0\x1ba00000000000003E8b0c4dA1e7f"[..];
        assert_eq!(&made.packing.replies[..first.len()], first);
        let end = (made.packing.end_offset - 1000) as usize;
        assert!(room[end..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn records_have_the_bytes_between_them_that_the_log_fills() {
        let data = frame(&header(0, KEY), b"one").repeat(3);
        let run = Run::parse(&data, 0, 1 << 20);
        let mut room = vec![7; 1000];
        let mut given = call(0, 1);
        given.place.lead = 48;
        given.until = 2;
        let made = store(&data, &run, &mut room, &terms(), &form(), given);
        assert_eq!(made.next, 2);
        let size = (made.packing.end_offset - 1000 - 48) / 2;
        assert_eq!(made.packing.last_offset, 1000 + size + 48);
        let ends: Vec<i64> = made
            .ends
            .chunks(8)
            .map(|end| i64::from_ne_bytes(end.try_into().unwrap()))
            .collect();
        assert_eq!(ends, vec![1000 + size, made.packing.end_offset]);
        let untouched = [
            &room[size as usize..size as usize + 48],
            &room[(2 * size + 48) as usize..],
        ];
        assert!(untouched.concat().iter().all(|&byte| byte == 7));
        // Room for two records, not for the bytes between them.
        let mut small = vec![7; 2 * size as usize + 47];
        let mut given = call(0, 1);
        given.place.lead = 48;
        assert_eq!(
            store(&data, &run, &mut small, &terms(), &form(), given).next,
            1
        );
    }

    #[test]
    fn a_run_stops_before_what_is_not_plain() {
        let data = [
            frame(&header(0, KEY), b"one"),
            frame(&header(0, &format!(r"{KEY}DELAY\u00013\u0002")), b"two"),
            frame(&header(1, KEY), b"three"),
        ]
        .concat();
        let run = Run::parse(&data, 0, 1 << 20);
        assert_eq!(run.requests.len(), 3);
        let mut room = vec![0; 1000];
        assert_eq!(
            store(&data, &run, &mut room, &terms(), &form(), call(0, 2)).next,
            1
        );
        assert_eq!(
            store(&data, &run, &mut room, &terms(), &form(), call(1, 2)).next,
            1
        );
        assert_eq!(
            store(&data, &run, &mut room, &terms(), &form(), call(2, 2)).next,
            3
        );
        // No such queue, no room.
        assert_eq!(
            store(&data, &run, &mut room, &terms(), &form(), call(2, 1)).next,
            2
        );
        let mut small = vec![0; 100];
        assert_eq!(
            store(&data, &run, &mut small, &terms(), &form(), call(0, 2)).next,
            0
        );
        assert!(small.iter().all(|&byte| byte == 0));
    }
}
