//! A run of plain sends of one read, parsed once (`wire.frame`); `storing` and others make records of it.
//!
//! `parse_sends` takes the frames that follow each other and are sends of the usual shape: a plain header (`send_header`),
//! properties with a unique key of letters and digits, no batch. A producer of transactions has its sends and the ends of
//! earlier transactions in turns, so these are part of a run, too. It stops before any other frame. Where access control
//! is on, it is given an account, and stops also before a send that this account has not signed (`signed_sends`), and
//! before an end.

use std::ops::Range;

use memchr::{memchr, memmem};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::guard::or_doubt;
use crate::properties::{tags_code, topic_hash, NotPlain};
use crate::send_header::{
    Buffers, Field, Frame, Header, END_TRANSACTION, SEND_MESSAGE, SEND_MESSAGE_V2,
};
use crate::sha1_lanes::LANES;
use crate::signed_sends::{Account, SignedSends};
use crate::signing::Claims;

/// Bounds of a run: one call must not keep the broker from other work. A single frame may be larger.
const RUN_SENDS_MAX: usize = 64;
const RUN_BYTES_MAX: usize = 256 * 1024;

const RUN_CODES: [i64; 3] = [SEND_MESSAGE, SEND_MESSAGE_V2, END_TRANSACTION];
const FLAG_ONEWAY: i64 = 2;
/// Clients make keys of 32 letters.
const KEY_BYTES_MAX: usize = 255;
const UNIQUE_KEY: &[u8] = b"UNIQ_KEY\x01";
/// What a half has in its properties; some that are none have it, too.
const TRANSACTION: &[u8] = b"TRAN_MSG\x01";

/// The value of the last unique key of a property text, if it needs no escaping in a reply.
fn unique_key(properties: &[u8]) -> Option<Range<usize>> {
    let at = memmem::rfind(properties, UNIQUE_KEY)?;
    if at > 0 && properties[at - 1] != 2 {
        return None;
    }
    let begin = at + UNIQUE_KEY.len();
    let length = memchr(2, &properties[begin..])?;
    let key = &properties[begin..begin + length];
    // A reply has the key: those that wait for the disk or for other brokers must stay small.
    ((1..=KEY_BYTES_MAX).contains(&key.len()) && key.iter().all(u8::is_ascii_alphanumeric))
        .then_some(begin..begin + length)
}

/// One send of a run. Ranges are in the data of the run or in its texts.
pub struct Parsed {
    pub frame: Range<usize>,
    pub body_at: usize,
    /// Number of its place: topic and queue id.
    pub place: usize,
    pub opaque: i32,
    pub is_oneway: bool,
    pub sysflag: i32,
    pub flag: i32,
    pub reconsume_times: i32,
    pub born_time_ms: i64,
    /// In `texts`, the last pair ended.
    pub properties: Range<usize>,
    pub key: Range<usize>,
    pub tags_code: i64,
}

/// The end of a transaction. Ranges are as those of `Parsed`.
pub struct Ending {
    pub frame: Range<usize>,
    pub opaque: i32,
    pub is_oneway: bool,
    pub group: Range<usize>,
    pub decision: i32,
    pub log_offset: i64,
    pub queue_offset: i64,
    /// Empty if it is not said.
    pub transaction_id: Range<usize>,
}

/// One request of a run.
pub enum Request {
    Send(Parsed),
    End(Ending),
}

impl Request {
    fn frame(&self) -> &Range<usize> {
        match self {
            Request::Send(send) => &send.frame,
            Request::End(ending) => &ending.frame,
        }
    }
}

pub struct Place {
    pub topic: String,
    pub topic_hash: i32,
    pub queue_id: i32,
}

/// Where a run comes from.
struct Source<'a> {
    data: &'a [u8],
    bytes_max: usize,
}

/// How far a run had come.
#[derive(Clone, Copy, Default)]
struct Mark {
    requests: usize,
    places: usize,
    texts: usize,
}

/// Who must have signed the requests of a run. Runs that nobody signs have code of their own: they are faster so.
trait Proof {
    /// Whether signatures are needed at all.
    const IS_NEEDED: bool;

    /// One more send, which is the last of the run; `mark` is the run before it.
    fn add(
        &mut self,
        mark: Mark,
        header: &Header<'_>,
        body: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<(), NotPlain>;

    /// Called before each send, and with `is_last` behind the last one. The run ends before the first send that is not
    /// signed; `NotPlain` if there is one.
    fn settle(&mut self, run: &mut Run, is_last: bool) -> Result<(), NotPlain>;
}

struct NoProof;

impl Proof for NoProof {
    const IS_NEEDED: bool = false;

    fn add(
        &mut self,
        _mark: Mark,
        _header: &Header<'_>,
        _body: &[u8],
        _buffers: &mut Buffers<'_>,
    ) -> Result<(), NotPlain> {
        Ok(())
    }

    fn settle(&mut self, _run: &mut Run, _is_last: bool) -> Result<(), NotPlain> {
        Ok(())
    }
}

/// Sends at the end of a run whose signatures are not checked yet: that takes less time for a few of them together.
struct Unproved<'a> {
    account: &'a Account,
    claims: Claims,
    /// The run before each of them.
    marks: [Mark; LANES],
    count: usize,
}

impl Proof for Unproved<'_> {
    const IS_NEEDED: bool = true;

    fn add(
        &mut self,
        mark: Mark,
        header: &Header<'_>,
        body: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<(), NotPlain> {
        if self
            .account
            .claim(header, body, buffers, &mut self.claims)?
        {
            self.marks[self.count] = mark;
            self.count += 1;
        }
        Ok(())
    }

    fn settle(&mut self, run: &mut Run, is_last: bool) -> Result<(), NotPlain> {
        if !is_last && !self.claims.is_full() {
            return Ok(());
        }
        self.count = 0;
        match self.account.settle(&mut self.claims) {
            None => Ok(()),
            Some(first) => {
                run.cut(self.marks[first]);
                Err(NotPlain)
            }
        }
    }
}

/// The parsed requests of a run.
#[derive(Default)]
pub struct Run {
    pub requests: Vec<Request>,
    pub places: Vec<Place>,
    pub texts: Vec<u8>,
    /// It ends because of its bounds, not because of what follows.
    pub is_full: bool,
}

impl Run {
    /// The plain requests that follow each other from `begin` on.
    pub fn parse(data: &[u8], begin: usize, bytes_max: usize) -> Self {
        Self::of(&Source { data, bytes_max }, begin, &mut NoProof)
    }

    /// The sends that follow each other and that an account has signed.
    pub fn parse_signed(data: &[u8], begin: usize, bytes_max: usize, account: &Account) -> Self {
        let mut unproved = Unproved {
            account,
            claims: Claims::new(),
            marks: Default::default(),
            count: 0,
        };
        Self::of(&Source { data, bytes_max }, begin, &mut unproved)
    }

    fn of<P: Proof>(source: &Source<'_>, begin: usize, proof: &mut P) -> Self {
        let mut run = Self::default();
        let mut buffers = Buffers::default();
        let mut at = begin;
        while let Ok(end) = run.add(source, at, &mut buffers, proof) {
            at = end;
            if run.requests.len() == RUN_SENDS_MAX || at - begin >= RUN_BYTES_MAX {
                run.is_full = true;
                break;
            }
        }
        // What it was full of may be no more.
        run.is_full &= proof.settle(&mut run, true).is_ok();
        run
    }

    fn mark(&self) -> Mark {
        Mark {
            requests: self.requests.len(),
            places: self.places.len(),
            texts: self.texts.len(),
        }
    }

    fn cut(&mut self, mark: Mark) {
        self.requests.truncate(mark.requests);
        self.places.truncate(mark.places);
        self.texts.truncate(mark.texts);
    }

    /// Add the request whose frame begins at `at`, and return its end; if it is not plain, or not of the account, the run
    /// is as before, or ends even earlier.
    fn add<'a, P: Proof>(
        &mut self,
        source: &Source<'a>,
        at: usize,
        buffers: &mut Buffers<'a>,
        proof: &mut P,
    ) -> Result<usize, NotPlain> {
        proof.settle(self, false)?;
        let mark = self.mark();
        let added = self.try_add(source, at, buffers, proof, mark);
        if added.is_err() {
            self.cut(mark);
        }
        added
    }

    fn try_add<'a, P: Proof>(
        &mut self,
        source: &Source<'a>,
        at: usize,
        buffers: &mut Buffers<'a>,
        proof: &mut P,
        mark: Mark,
    ) -> Result<usize, NotPlain> {
        let text_at = mark.texts;
        let frame = Frame::at(source.data, at, source.bytes_max).ok_or(NotPlain)?;
        let header = Header::read(frame.header, &RUN_CODES, buffers)?;
        if header.flag & !FLAG_ONEWAY != 0 {
            return Err(NotPlain);
        }
        if header.code == END_TRANSACTION {
            if P::IS_NEEDED {
                return Err(NotPlain);
            }
            let ending = self.ending(&frame, &header, &buffers.decoded)?;
            self.requests.push(Request::End(ending));
            return Ok(frame.end());
        }
        let values = header.values(&buffers.decoded);
        let queue_id = values.int32(Field::QueueId)?.ok_or(NotPlain)?;
        // Python refuses what is wrong in these.
        values.int32(Field::DefaultQueues)?;
        values.int32(Field::MaxReconsumeTimes)?;
        values.is_set(Field::UnitMode)?;
        // A batch has a way of its own.
        if values.is_set(Field::Batch)? {
            return Err(NotPlain);
        }
        self.texts
            .extend_from_slice(values.text(Field::Properties).ok_or(NotPlain)?);
        if *self.texts[text_at..].last().ok_or(NotPlain)? != 2 {
            self.texts.push(2);
        }
        let properties = &self.texts[text_at..];
        let key = unique_key(properties).ok_or(NotPlain)?;
        let mut send = Parsed {
            frame: at..frame.end(),
            body_at: frame.body_at(),
            place: 0,
            opaque: header.opaque.try_into().map_err(|_| NotPlain)?,
            is_oneway: header.flag != 0,
            sysflag: values.int32(Field::Sysflag)?.unwrap_or(0),
            flag: values.int32(Field::Flag)?.unwrap_or(0),
            reconsume_times: values.int32(Field::ReconsumeTimes)?.unwrap_or(0),
            born_time_ms: values.int64(Field::BornTime)?.unwrap_or(0),
            key: text_at + key.start..text_at + key.end,
            tags_code: tags_code(properties)?,
            properties: text_at..self.texts.len(),
        };
        let topic = values.text(Field::Topic).ok_or(NotPlain)?;
        send.place = self.place_of(topic, queue_id)?;
        // Last, as it takes the most time: what is not plain is checked where it is handled.
        proof.add(mark, &header, frame.body, buffers)?;
        self.requests.push(Request::Send(send));
        Ok(frame.end())
    }

    fn ending(
        &mut self,
        frame: &Frame<'_>,
        header: &Header<'_>,
        decoded: &[u8],
    ) -> Result<Ending, NotPlain> {
        let values = header.values(decoded);
        // Python refuses what is wrong in it.
        values.is_set(Field::FromCheck)?;
        // And it drops a body.
        if !frame.body.is_empty() {
            return Err(NotPlain);
        }
        Ok(Ending {
            frame: frame.begin..frame.end(),
            opaque: header.opaque.try_into().map_err(|_| NotPlain)?,
            is_oneway: header.flag != 0,
            decision: values.int32(Field::Decision)?.ok_or(NotPlain)?,
            log_offset: values.int64(Field::HalfLogOffset)?.ok_or(NotPlain)?,
            queue_offset: values.int64(Field::HalfQueueOffset)?.ok_or(NotPlain)?,
            group: self.keep(values.text(Field::Group).ok_or(NotPlain)?),
            transaction_id: self.keep(values.text(Field::TransactionId).unwrap_or_default()),
        })
    }

    fn keep(&mut self, text: &[u8]) -> Range<usize> {
        let begin = self.texts.len();
        self.texts.extend_from_slice(text);
        begin..self.texts.len()
    }

    fn place_of(&mut self, topic: &[u8], queue_id: i32) -> Result<usize, NotPlain> {
        let known = self
            .places
            .iter()
            .position(|place| place.queue_id == queue_id && place.topic.as_bytes() == topic);
        if let Some(place) = known {
            return Ok(place);
        }
        self.places.push(Place {
            topic: std::str::from_utf8(topic).map_err(|_| NotPlain)?.to_owned(),
            topic_hash: topic_hash(topic)?,
            queue_id,
        });
        Ok(self.places.len() - 1)
    }
}

/// Requests of one read that follow each other. See `ternmq/_native.pyi`.
#[pyclass(frozen, module = "ternmq._native")]
pub struct Sends {
    #[pyo3(get)]
    pub data: Py<PyBytes>,
    #[pyo3(get)]
    pub account: Option<Py<SignedSends>>,
    pub run: Run,
}

/// Parse the plain requests that follow each other from `at` on, with an `account` the sends that it has signed; None if
/// there is none.
#[pyfunction]
#[pyo3(signature = (data, at, bytes_max, account=None))]
pub fn parse_sends(
    py: Python<'_>,
    data: Py<PyBytes>,
    at: usize,
    bytes_max: usize,
    account: Option<Py<SignedSends>>,
) -> Option<Sends> {
    let bytes = data.as_bytes(py);
    let work = || match &account {
        None => Run::parse(bytes, at, bytes_max),
        Some(account) => Run::parse_signed(bytes, at, bytes_max, &account.get().account),
    };
    let run = or_doubt(|| None, || Some(work()))?;
    (!run.requests.is_empty()).then_some(Sends { data, account, run })
}

#[pymethods]
impl Sends {
    /// How many requests these are.
    #[getter]
    fn count(&self) -> usize {
        self.run.requests.len()
    }

    /// Bytes of their frames.
    #[getter]
    fn frame_bytes(&self) -> usize {
        self.end() - self.run.requests[0].frame().start
    }

    /// Where the last frame ends in `data`.
    #[getter]
    fn end(&self) -> usize {
        self.run.requests[self.run.requests.len() - 1].frame().end
    }

    /// Whether the run ends because of its bounds, not because of what follows.
    #[getter]
    fn is_full(&self) -> bool {
        self.run.is_full
    }

    /// Topic and queue id of each queue that is named.
    #[getter]
    fn places<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        // Nearly always, all have one topic: one text for all is one object, and is hashed once.
        let mut last: Option<(&str, Bound<'py, PyString>)> = None;
        let places = PyList::empty(py);
        for place in &self.run.places {
            let topic = match &last {
                Some((known, text)) if *known == place.topic => text.clone(),
                _ => PyString::new(py, &place.topic),
            };
            places.append((&topic, place.queue_id))?;
            last = Some((&place.topic, topic));
        }
        Ok(places)
    }

    /// Where the frame of a request begins and ends in `data`.
    fn frame(&self, number: usize) -> PyResult<(usize, usize)> {
        let frame = self.get(number)?.frame();
        Ok((frame.start, frame.end))
    }

    /// Whether a request ends a transaction, or is a send that may begin one.
    fn is_transactional(&self, number: usize) -> PyResult<bool> {
        Ok(match self.get(number)? {
            Request::Send(send) => {
                memmem::find(&self.run.texts[send.properties.clone()], TRANSACTION).is_some()
            }
            Request::End(_) => true,
        })
    }
}

impl Sends {
    fn get(&self, number: usize) -> PyResult<&Request> {
        let request = self.run.requests.get(number);
        request.ok_or_else(|| PyIndexError::new_err("there is no such request"))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn frame(header: &str, body: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        data.extend_from_slice(&((4 + header.len() + body.len()) as u32).to_be_bytes());
        data.extend_from_slice(&(header.len() as u32).to_be_bytes());
        data.extend_from_slice(header.as_bytes());
        data.extend_from_slice(body);
        data
    }

    pub fn header(queue_id: i32, properties: &str) -> String {
        format!(
            r#"{{"code":310,"extFields":{{"a":"g","b":"t","e":"{queue_id}","f":"0","g":"5","i":"{properties}"}},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":401}}"#
        )
    }

    pub const KEY: &str = r"UNIQ_KEY\u0001A1\u0002";

    #[test]
    fn any_cut_is_refused() {
        let data = frame(&header(0, KEY), b"");
        assert_eq!(Run::parse(&data, 0, 1 << 20).requests.len(), 1);
        for cut in 0..data.len() {
            assert!(
                Run::parse(&data[..cut], 0, 1 << 20).requests.is_empty(),
                "{cut}"
            );
        }
        // The frame is whole, but its header is cut.
        let text = header(0, KEY);
        for cut in 0..text.len() {
            let run = Run::parse(&frame(&text[..cut], b"x"), 0, 1 << 20);
            assert!(run.requests.is_empty() && run.texts.is_empty(), "{cut}");
        }
    }
    #[test]
    fn ends_of_transactions_stand_among_sends() {
        let good = r#"{"code":37,"extFields":{"producerGroup":"g","tranStateTableOffset":"5","commitLogOffset":"700","commitOrRollback":"8","fromTransactionCheck":"false","msgId":"A1","transactionId":"A1"},"flag":2,"opaque":9}"#;
        let data = [
            frame(&header(0, KEY), b"x"),
            frame(good, b""),
            frame(&header(0, KEY), b"y"),
        ]
        .concat();
        let run = Run::parse(&data, 0, 1 << 20);
        assert_eq!(run.requests.len(), 3);
        let Request::End(ending) = &run.requests[1] else {
            panic!("it is an end");
        };
        assert_eq!(
            (ending.log_offset, ending.queue_offset, ending.decision),
            (700, 5, 8)
        );
        assert_eq!(&run.texts[ending.group.clone()], b"g");
        assert_eq!(&run.texts[ending.transaction_id.clone()], b"A1");
        for (old, new) in [
            (r#""commitOrRollback":"8","#, ""),
            (r#""producerGroup":"g","#, ""),
            (
                r#""producerGroup":"g""#,
                r#""producerGroup":"g","producerGroup":"h""#,
            ),
            (r#""5""#, r#""05""#),
            (r#""false""#, r#""no""#),
            (r#""flag":2"#, r#""flag":1"#),
        ] {
            assert!(good.contains(old));
            let odd = frame(&good.replace(old, new), b"");
            let run = Run::parse(&odd, 0, 1 << 20);
            assert!(run.requests.is_empty() && run.texts.is_empty(), "{new}");
        }
        assert!(Run::parse(&frame(good, b"x"), 0, 1 << 20)
            .requests
            .is_empty());
    }
}
