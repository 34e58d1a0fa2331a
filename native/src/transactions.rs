//! Halves and commits of transactions that follow each other in a run (`sends`), stored by one call
//! (`transaction.runs`).
//!
//! A producer writes the commit of one transaction together with the half of its next one, so a read has both in turns:
//! a kernel for one kind would be called for each request. A half becomes a record of the half topic, a commit the record
//! of its message under its own topic, read from the half in the same segment. It stops before a request that is neither,
//! or about which there is more to decide.
//!
//! In three steps, as the page must not be borrowed while Python code runs: `plan` reads the requests and the halves that
//! are ended, Python tells where their messages go, `store` packs the records.

use std::ops::Range;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySet};

use crate::packed::{
    numbered, set_up, unless_it_panics, Added, Content, Packing, Place, QueuePart, ReplyForm,
    SendTerms, SentCounts, Target,
};
use crate::page::{readable, writable};
use crate::properties::{last_value, tags_code, topic_hash};
use crate::record::{get_i32, get_i64, plain_parts, Parts, HOST_V4_BYTES};
use crate::sends::{Ending, Parsed, Request, Run, Sends};

const COMMIT: i32 = 8;
/// Flags of hosts that are not IPv4.
const HOST_FLAGS: i32 = 0x10 | 0x20;
const QUEUE_ID_DIGITS_MAX: usize = 9;
/// Larger halves are committed one by one. The request is short whatever its half has, and one call of many of them must
/// not keep the broker from other work.
const HALF_BYTES_MAX: usize = 16 * 1024;

/// The value of a property that counts, if it is not empty.
fn value<'a>(properties: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    last_value(properties, key).ok().flatten()
}

/// What `plan` and `store` are given by the caller.
struct Call<'a> {
    first: usize,
    /// Log offset of the page's first byte.
    base: i64,
    /// Records before this log offset are not read.
    from_offset: i64,
    born_host: [u8; HOST_V4_BYTES],
    group_bytes_max: usize,
    /// By place, whether its messages may become halves.
    may_begin: Vec<bool>,
    /// By number of the request: whether it ends a half that is open, and not in doubt.
    may_end: Vec<bool>,
    /// The queue of the half topic.
    halves: Target<'a>,
}

/// The terms of halves, and those of commits.
struct Terms<'a> {
    half: &'a SendTerms,
    commit: &'a SendTerms,
}

/// The queue of a message that is committed.
struct Destination {
    topic: String,
    topic_hash: i32,
    queue_id: i32,
}

/// What becomes of a request.
enum Step {
    Half {
        /// The last of its properties.
        note: String,
    },
    Commit {
        /// Where its half stands in the page.
        half: Range<usize>,
        /// Number of its destination.
        destination: usize,
    },
}

/// What is to be done with the requests from `first` on.
#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    destinations: Vec<Destination>,
}

impl Plan {
    /// Plan the requests that come first; `page` ends where the log does.
    fn of(run: &Run, page: &[u8], terms: &Terms<'_>, call: &Call<'_>) -> Self {
        let mut plan = Self::default();
        for (number, request) in run.requests.iter().enumerate().skip(call.first) {
            let step = match request {
                Request::Send(send) => half_note(run, send, terms, call),
                Request::End(ending) if call.may_end.get(number) == Some(&true) => {
                    plan.commit(run, ending, page, terms, call)
                }
                Request::End(_) => None,
            };
            let Some(step) = step else {
                break;
            };
            plan.steps.push(step);
        }
        plan
    }

    fn commit(
        &mut self,
        run: &Run,
        ending: &Ending,
        page: &[u8],
        terms: &Terms<'_>,
        call: &Call<'_>,
    ) -> Option<Step> {
        if ending.decision != COMMIT || ending.log_offset < call.from_offset {
            return None;
        }
        let at = usize::try_from(ending.log_offset.checked_sub(call.base)?).ok()?;
        let rest = page.get(at..)?;
        let size = usize::try_from(i32::from_be_bytes(rest.get(..4)?.try_into().ok()?)).ok()?;
        if size > HALF_BYTES_MAX {
            return None;
        }
        let record = rest.get(..size)?;
        let parts = plain_parts(record, ending.log_offset)?;
        let properties = parts.properties;
        if parts.topic_field != call.halves.topic_field
            || get_i64(record, 20) != ending.queue_offset
            || get_i32(record, 36) & HOST_FLAGS != 0
            || !parts.is_sound(record)
            || std::str::from_utf8(properties).is_err()
            || terms.commit.has_mark(properties)
            || value(properties, b"\x02PGROUP\x01")? != &run.texts[ending.group.clone()]
        {
            return None;
        }
        let transaction_id = &run.texts[ending.transaction_id.clone()];
        let unique_key = value(properties, b"\x02UNIQ_KEY\x01")?;
        if !transaction_id.is_empty() && transaction_id != unique_key {
            return None;
        }
        let half = at..at + size;
        let is_known =
            |step: &Step| matches!(step, Step::Commit { half: known, .. } if *known == half);
        if self.steps.iter().any(is_known) {
            return None;
        }
        let destination = self.destination(&parts)?;
        Some(Step::Commit { half, destination })
    }

    /// The number of the queue to which the message of a half goes.
    fn destination(&mut self, parts: &Parts<'_>) -> Option<usize> {
        let topic = value(parts.properties, b"\x02REAL_TOPIC\x01")?;
        let digits = value(parts.properties, b"\x02REAL_QID\x01")?;
        if digits.len() > QUEUE_ID_DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let queue_id = digits
            .iter()
            .fold(0i32, |value, digit| value * 10 + i32::from(digit - b'0'));
        let is_same =
            |known: &Destination| known.queue_id == queue_id && known.topic.as_bytes() == topic;
        if let Some(destination) = self.destinations.iter().position(is_same) {
            return Some(destination);
        }
        self.destinations.push(Destination {
            topic: std::str::from_utf8(topic).ok()?.to_owned(),
            topic_hash: topic_hash(topic).ok()?,
            queue_id,
        });
        Some(self.destinations.len() - 1)
    }
}

/// The step for a send, if it is a half.
fn half_note(run: &Run, send: &Parsed, terms: &Terms<'_>, call: &Call<'_>) -> Option<Step> {
    let properties = &run.texts[send.properties.clone()];
    if call.may_begin.get(send.place) != Some(&true)
        || !value(properties, b"\x02TRAN_MSG\x01")?.eq_ignore_ascii_case(b"true")
        || value(properties, b"\x02PGROUP\x01")?.len() > call.group_bytes_max
        || terms.half.has_mark(properties)
    {
        return None;
    }
    let place = &run.places[send.place];
    Some(Step::Half {
        note: format!(
            "REAL_TOPIC\x01{}\x02REAL_QID\x01{}\x02__transactionId__\x01{}\x02",
            place.topic,
            place.queue_id,
            // Letters and digits.
            String::from_utf8_lossy(&run.texts[send.key.clone()]),
        ),
    })
}

/// What the answers are made of: to a half, and to a commit before and behind its opaque.
struct Forms<'a> {
    half: &'a ReplyForm,
    commit: (&'a [u8], &'a [u8]),
}

impl Forms<'_> {
    /// Append the answer to a commit.
    fn fill_commit(&self, out: &mut Vec<u8>, opaque: i32) {
        let (before, behind) = self.commit;
        let opaque = opaque.to_string();
        let head_bytes = (before.len() + opaque.len() + behind.len()) as u32;
        out.extend_from_slice(&(head_bytes + 4).to_be_bytes());
        out.extend_from_slice(&head_bytes.to_be_bytes());
        out.extend_from_slice(before);
        out.extend_from_slice(opaque.as_bytes());
        out.extend_from_slice(behind);
    }
}

/// What is known of the records that were packed.
struct Stored<'a> {
    /// Number of the first request that is not carried out.
    next: usize,
    packing: Packing<'a>,
    /// What they add to the half queue, and by destination to the queues of messages.
    halves: Added,
    messages: Vec<Added>,
    sent: SentCounts,
    /// Queue offsets of the halves that were committed.
    closed: Vec<i64>,
}

/// What a call of `store` works on.
struct Store<'a> {
    data: &'a [u8],
    run: &'a Run,
    plan: &'a Plan,
    terms: Terms<'a>,
    forms: Forms<'a>,
    /// By destination.
    targets: Vec<Option<Target<'a>>>,
}

impl Store<'_> {
    /// Pack what was planned into `room`, up to the first that has no place there. `written` is the page before it.
    fn store<'a>(
        &mut self,
        written: &[u8],
        room: &'a mut [u8],
        place: Place,
        mut call: Call<'_>,
    ) -> Stored<'a> {
        let destinations = self.plan.destinations.iter();
        let mut made = Stored {
            next: call.first,
            packing: Packing::new(room, place),
            halves: Added::default(),
            messages: destinations.map(|_| Added::default()).collect(),
            sent: SentCounts::of(self.run),
            closed: Vec::new(),
        };
        let requests = self.run.requests.iter().skip(call.first);
        for (request, step) in requests.zip(&self.plan.steps) {
            let put = match (request, step) {
                (Request::Send(send), Step::Half { note }) => {
                    self.begin(send, note.as_bytes(), &mut call, &mut made)
                }
                (Request::End(ending), Step::Commit { half, destination }) => {
                    self.commit(ending, &written[half.clone()], *destination, &mut made)
                }
                _ => None,
            };
            if put.is_none() {
                break;
            }
            made.next += 1;
        }
        made
    }

    /// Pack a half.
    fn begin(
        &self,
        send: &Parsed,
        note: &[u8],
        call: &mut Call<'_>,
        made: &mut Stored<'_>,
    ) -> Option<()> {
        let content = Content::of_send(send, self.run, self.data, call.born_host);
        let queue_offset = call.halves.queue_offset;
        let (packing, added) = (&mut made.packing, &mut made.halves);
        let log_offset = packing.put(self.terms.half, &mut call.halves, &content, note, added)?;
        if !send.is_oneway {
            self.forms.half.fill(
                &mut packing.replies,
                log_offset,
                self.run.places[send.place].queue_id,
                queue_offset,
                &self.run.texts[send.key.clone()],
                send.opaque,
            );
        }
        made.sent.add(send.place, content.body.len());
        Some(())
    }

    /// Pack the message of a half.
    fn commit(
        &mut self,
        ending: &Ending,
        half: &[u8],
        number: usize,
        made: &mut Stored<'_>,
    ) -> Option<()> {
        let target = self.targets[number].as_mut()?;
        let parts = plain_parts(half, ending.log_offset)?;
        let content = Content {
            flag: get_i32(half, 16),
            sysflag: get_i32(half, 36),
            own_sysflag: COMMIT,
            born_time_ms: get_i64(half, 40),
            born_host: half[48..56].try_into().expect("eight bytes"),
            reconsume_times: get_i32(half, 72),
            prepared_offset: ending.log_offset,
            body: parts.body,
            properties: parts.properties,
            tags_code: tags_code(parts.properties).ok()?,
        };
        let (packing, added) = (&mut made.packing, &mut made.messages[number]);
        packing.put(self.terms.commit, target, &content, b"", added)?;
        if !ending.is_oneway {
            self.forms.fill_commit(&mut packing.replies, ending.opaque);
        }
        made.closed.push(ending.queue_offset);
        Some(())
    }
}

type Made<'py> = (
    usize,
    i64,
    i64,
    Option<QueuePart<'py>>,
    Vec<(usize, usize, usize)>,
    Bound<'py, PyList>,
    Vec<i64>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

/// Pack halves and commits as records into a log's window. See `ternmq/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (sends, half_terms, commit_terms, form, done, first, page, at, end, *, log_offset, from_offset,
    store_time_ms, born_host, group_bytes_max, may_begin, open_halves, in_doubt, queue_offset, topic_field, target))]
#[allow(clippy::too_many_arguments)]
pub fn store_transactions<'py>(
    py: Python<'py>,
    sends: &Sends,
    half_terms: &SendTerms,
    commit_terms: &SendTerms,
    form: &ReplyForm,
    done: (Bound<'py, PyBytes>, Bound<'py, PyBytes>),
    first: usize,
    page: PyBuffer<u8>,
    at: usize,
    end: usize,
    log_offset: i64,
    from_offset: i64,
    store_time_ms: i64,
    born_host: &[u8],
    group_bytes_max: usize,
    may_begin: Vec<bool>,
    open_halves: Option<&Bound<'py, PyDict>>,
    in_doubt: &Bound<'py, PySet>,
    queue_offset: i64,
    topic_field: &[u8],
    target: &Bound<'py, PyAny>,
) -> PyResult<Option<Made<'py>>> {
    let given = set_up(
        born_host,
        topic_field,
        queue_offset,
        log_offset,
        store_time_ms,
    );
    let Some((born_host, halves, place)) = given else {
        return Ok(None);
    };
    let run = &sends.run;
    let mut may_end = vec![false; run.requests.len()];
    if let Some(open_halves) = open_halves {
        for (number, request) in run.requests.iter().enumerate().skip(first) {
            if let Request::End(ending) = request {
                let half = open_halves.get_item(ending.queue_offset)?;
                may_end[number] = matches!(half, Some(half) if half.extract::<i64>()? == ending.log_offset)
                    && !in_doubt.contains(ending.queue_offset)?;
            }
        }
    }
    let call = Call {
        first,
        base: log_offset.saturating_sub_unsigned(at as u64),
        from_offset,
        born_host,
        group_bytes_max,
        may_begin,
        may_end,
        halves,
    };
    let terms = Terms {
        half: half_terms,
        commit: commit_terms,
    };
    let Some(written) = readable(py, &page)?.get(..at) else {
        return Ok(None);
    };
    let plan = unless_it_panics(|| Plan::of(run, written, &terms, &call));
    let Some(plan) = plan.filter(|plan| !plan.steps.is_empty()) else {
        return Ok(None);
    };
    let mut found: Vec<Option<(i64, Bound<'py, PyBytes>)>> = Vec::new();
    for destination in &plan.destinations {
        let queue = target.call1((&destination.topic, destination.queue_id))?;
        found.push(queue.extract()?);
    }
    let targets = plan.destinations.iter().zip(&found);
    let mut store = Store {
        data: sends.data.as_bytes(py),
        run,
        plan: &plan,
        terms,
        forms: Forms {
            half: form,
            commit: (done.0.as_bytes(), done.1.as_bytes()),
        },
        targets: targets
            .map(|(destination, queue)| {
                let (queue_offset, topic_field) = queue.as_ref()?;
                Some(Target {
                    queue_id: destination.queue_id,
                    queue_offset: *queue_offset,
                    topic_field: topic_field.as_bytes(),
                    topic_hash: destination.topic_hash,
                })
            })
            .collect(),
    };
    let Some((written, room)) = writable(py, &page)?
        .get_mut(..end)
        .and_then(|page| page.split_at_mut_checked(at))
    else {
        return Ok(None);
    };
    let made = unless_it_panics(|| store.store(written, room, place, call));
    let Some(made) = made.filter(|made| made.next > first) else {
        return Ok(None);
    };
    let messages = numbered(py, made.messages)?;
    let packing = made.packing;
    Ok(Some((
        made.next,
        packing.end_offset,
        packing.last_offset,
        made.halves.into_python(py),
        made.sent.into_python(),
        messages,
        made.closed,
        PyBytes::new(py, &packing.keys),
        PyBytes::new(py, &packing.replies),
    )))
}
