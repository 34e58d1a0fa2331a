//! Signed sends of one account, read and checked in one pass over their bytes (`wire.shapes`).

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyList, PyMemoryView, PySlice, PyString, PyTuple};

use crate::guard::or_doubt;
use crate::json::Text;
use crate::properties::NotPlain;
use crate::send_header::{
    Buffers, Field, Frame, Header, Values, SEND_BATCH_MESSAGE, SEND_MESSAGE, SEND_MESSAGE_V2,
};
use crate::signing::{Claims, SigningKey};

const FLAG_RESPONSE: i64 = 1;

/// Who signs, and what it may send.
pub struct Account {
    access_key: Vec<u8>,
    key: SigningKey,
    codes: Vec<i64>,
    body_bytes_max: usize,
}

impl Account {
    /// Whether a request is of a code that the account may send, and signed by it. `buffers` must be those of the header.
    pub fn check(
        &self,
        header: &Header<'_>,
        body: &[u8],
        buffers: &mut Buffers<'_>,
        claims: &mut Claims,
    ) -> Result<(), NotPlain> {
        if self.claim(header, body, buffers, claims)? && self.settle(claims).is_some() {
            return Err(NotPlain);
        }
        Ok(())
    }

    /// The same, but a short request is only added to `claims`, which have room for it. Returns whether it was; else it
    /// is signed.
    pub fn claim(
        &self,
        header: &Header<'_>,
        body: &[u8],
        buffers: &mut Buffers<'_>,
        claims: &mut Claims,
    ) -> Result<bool, NotPlain> {
        if !self.codes.contains(&header.code)
            || header.flag & FLAG_RESPONSE != 0
            || body.len() > self.body_bytes_max
        {
            return Err(NotPlain);
        }
        sort(&buffers.fields, &mut buffers.order)?;
        let parts = SignedParts::of(header, buffers)?;
        if parts.access_key != self.access_key {
            return Err(NotPlain);
        }
        let claim = claims.next();
        claim.clear();
        let mut values = parts.values();
        if values.try_for_each(|value| claim.add(value)).is_ok() && claim.add(body).is_ok() {
            if !claim.sign(parts.signature) {
                return Err(NotPlain);
            }
            claims.push();
            return Ok(true);
        }
        let mut mac = self.key.mac();
        parts.values().for_each(|value| mac.update(value));
        mac.update(body);
        if mac.has_made(parts.signature) {
            Ok(false)
        } else {
            Err(NotPlain)
        }
    }

    /// See `Claims`.
    pub fn settle(&self, claims: &mut Claims) -> Option<usize> {
        claims.settle(&self.key)
    }
}

/// The values of a header in the order of their names; that of the signature is apart.
struct SignedParts<'a> {
    data: &'a [u8],
    buffers: &'a Buffers<'a>,
    signature_at: u8,
    signature: &'a [u8],
    access_key: &'a [u8],
}

impl<'a> SignedParts<'a> {
    /// `buffers` are those of the header, sorted.
    fn of(header: &'a Header<'_>, buffers: &'a Buffers<'_>) -> Result<Self, NotPlain> {
        let find = |wanted: &[u8]| {
            let at = buffers.fields.iter().rposition(|(name, _)| *name == wanted);
            at.ok_or(NotPlain)
        };
        let value = |at: usize| buffers.fields[at].1.of(header.data, &buffers.decoded);
        let signature_at = find(b"Signature")?;
        Ok(Self {
            data: header.data,
            buffers,
            signature_at: signature_at as u8,
            signature: value(signature_at),
            access_key: value(find(b"AccessKey")?),
        })
    }

    fn values(&self) -> impl Iterator<Item = &'a [u8]> + use<'a, '_> {
        let Buffers {
            decoded,
            fields,
            order,
        } = self.buffers;
        let signed = order.iter().filter(|at| **at != self.signature_at);
        signed.map(|at| fields[usize::from(*at)].1.of(self.data, decoded))
    }
}

/// Put the numbers of the fields in the order of their names. That of the header before is mostly right: the sends of a
/// client have the same fields. `NotPlain` if a name comes twice, as the last one would count.
fn sort(fields: &[(&[u8], Text)], order: &mut Vec<u8>) -> Result<(), NotPlain> {
    // By bytes of UTF-8, which is the order of code points, as Python sorts. The first byte tells most names apart.
    let compare = |one: u8, other: u8| {
        let (one, other) = (fields[usize::from(one)].0, fields[usize::from(other)].0);
        let first = one.first().cmp(&other.first());
        first.then_with(|| one.cmp(other))
    };
    let is_sorted = |order: &[u8]| {
        order
            .windows(2)
            .all(|pair| compare(pair[0], pair[1]).is_lt())
    };
    if order.len() == fields.len() && is_sorted(order) {
        return Ok(());
    }
    order.clear();
    order.extend((0..).take(fields.len()));
    order.sort_unstable_by(|one, other| compare(*one, *other));
    is_sorted(order).then_some(()).ok_or(NotPlain)
}

/// Texts of the header before: the sends of a read have the same group and mostly the same topic, and a text that
/// exists already is cheaper than a new one, here and where it is looked up.
#[derive(Default)]
struct Recent<'py> {
    texts: [Option<Bound<'py, PyString>>; RECENT],
}

/// Group, topic and default topic, as in `SignedSend`; and the language.
const RECENT: usize = 4;
const LANGUAGE: usize = 3;

impl<'py> Recent<'py> {
    fn text(
        &mut self,
        py: Python<'py>,
        place: usize,
        text: &[u8],
    ) -> Result<Bound<'py, PyAny>, NotPlain> {
        if let Some(known) = &self.texts[place] {
            if known.to_cow().is_ok_and(|known| known.as_bytes() == text) {
                return Ok(known.clone().into_any());
            }
        }
        let text = std::str::from_utf8(text).map_err(|_| NotPlain)?;
        let made = PyString::new(py, text);
        self.texts[place] = Some(made.clone());
        Ok(made.into_any())
    }
}

/// Reads sends that one account has signed, of codes that it may send. It is not changed by what it reads.
#[pyclass(frozen, module = "ternmq._native")]
pub struct SignedSends {
    pub account: Account,
    #[pyo3(get)]
    secret: Py<PyAny>,
    request_type: Py<PyAny>,
    header_type: Py<PyAny>,
    no_body: Py<PyAny>,
}

#[pymethods]
impl SignedSends {
    #[new]
    #[pyo3(signature = (access_key, key, secret, *, codes, body_bytes_max, request_type, header_type, no_body))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        access_key: &str,
        key: &Bound<'_, SigningKey>,
        secret: Py<PyAny>,
        codes: Vec<i64>,
        body_bytes_max: usize,
        request_type: Py<PyAny>,
        header_type: Py<PyAny>,
        no_body: Py<PyAny>,
    ) -> PyResult<Self> {
        if !codes
            .iter()
            .all(|code| matches!(*code, SEND_MESSAGE | SEND_MESSAGE_V2 | SEND_BATCH_MESSAGE))
        {
            return Err(PyValueError::new_err("these are not codes of sends"));
        }
        Ok(Self {
            account: Account {
                access_key: access_key.as_bytes().to_vec(),
                key: key.get().clone(),
                codes,
                body_bytes_max,
            },
            secret,
            request_type,
            header_type,
            no_body,
        })
    }

    /// Append the requests of at most `count_max` frames from `at` on to `commands`, up to the first that is not a plain
    /// send signed by this account, or not complete; return where that begins. `view` is a view of `data`.
    #[allow(clippy::too_many_arguments)]
    fn read<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        view: &Bound<'py, PyMemoryView>,
        at: usize,
        frame_bytes_max: usize,
        count_max: usize,
        commands: &Bound<'py, PyList>,
    ) -> PyResult<usize> {
        let mut done = at;
        let mut recent = Recent::default();
        let mut buffers = Buffers::default();
        let mut claims = Claims::new();
        let work = || -> PyResult<()> {
            for _ in 0..count_max {
                let frame = Frame::at(data.as_bytes(), done, frame_bytes_max);
                let Some(frame) = frame else { break };
                let read = self.read_one(
                    py,
                    data,
                    view,
                    &frame,
                    &mut buffers,
                    &mut claims,
                    &mut recent,
                )?;
                let Some(request) = read else { break };
                commands.append(request)?;
                done = frame.end();
            }
            Ok(())
        };
        or_doubt(|| Ok(()), work)?;
        Ok(done)
    }
}

impl SignedSends {
    /// The request in a frame; None if it is not a plain send signed by this account. `claims` are empty.
    #[allow(clippy::too_many_arguments)]
    fn read_one<'py, 'a>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        view: &Bound<'py, PyMemoryView>,
        frame: &Frame<'a>,
        buffers: &mut Buffers<'a>,
        claims: &mut Claims,
        recent: &mut Recent<'py>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Ok(header) = Header::read(frame.header, &self.account.codes, buffers) else {
            return Ok(None);
        };
        let checked = self.account.check(&header, frame.body, buffers, claims);
        if checked.is_err() {
            return Ok(None);
        }
        let decoded = &buffers.decoded;
        let Ok(values) = typed(py, header.values(decoded), recent) else {
            return Ok(None);
        };
        let language = match header.language {
            Some(text) => recent.text(py, LANGUAGE, text.of(header.data, decoded)),
            None => Ok(py.None().into_bound(py)),
        };
        let Ok(language) = language else {
            return Ok(None);
        };
        let [a, b, c, d, e, f, g, h, i, j, k, m, l, n] = values;
        let secret = self.secret.bind(py);
        let span = frame.header_at() << 24 | frame.header.len();
        let header_object = self.header_type.bind(py).call1(PyTuple::new(
            py,
            [
                &a,
                &b,
                &c,
                &d,
                &e,
                &f,
                &g,
                &h,
                &i,
                &j,
                &k,
                &m,
                &l,
                &n,
                secret,
                data.as_any(),
                span.into_pyobject(py)?.as_any(),
            ],
        )?)?;
        let body_object = if frame.body.is_empty() {
            self.no_body.bind(py).clone()
        } else {
            let (start, end) = (frame.body_at() as isize, frame.end() as isize);
            view.get_item(PySlice::new(py, start, end, 1))?
        };
        let request = self.request_type.bind(py).call1((
            header.code,
            header.opaque,
            header.flag,
            header.version,
            language,
            py.None(),
            header_object,
            body_object,
            0,
            py.None(),
            frame.end() - frame.begin,
        ))?;
        Ok(Some(request))
    }
}

fn text_of<'py>(py: Python<'py>, text: &[u8]) -> Result<Bound<'py, PyAny>, NotPlain> {
    let text = std::str::from_utf8(text).map_err(|_| NotPlain)?;
    Ok(PyString::new(py, text).into_any())
}

/// The values of a header by their types, in the order of `SignedSend`; `NotPlain` if a field is missing, or is not as
/// everybody writes it.
fn typed<'py>(
    py: Python<'py>,
    values: Values<'_>,
    recent: &mut Recent<'py>,
) -> Result<[Bound<'py, PyAny>; 14], NotPlain> {
    let none = || py.None().into_bound(py);
    let mut text =
        |place: usize, field: Field| recent.text(py, place, values.text(field).ok_or(NotPlain)?);
    let optional_text = |field: Field| match values.text(field) {
        // Python's lenient conversion has its own ideas about this word.
        Some(text) if text.eq_ignore_ascii_case(b"null") => Err(NotPlain),
        Some(text) => text_of(py, text),
        None => Ok(none()),
    };
    let object = |value: i64| {
        let Ok(value) = value.into_pyobject(py);
        value.into_any()
    };
    let needed = |field: Field| {
        let value = values.int32(field)?.ok_or(NotPlain)?;
        Ok(object(value.into()))
    };
    let optional = |field: Field| {
        let value = values.int32(field)?;
        Ok(value.map_or_else(none, |value| object(value.into())))
    };
    let flag = |field: Field| Ok(PyBool::new(py, values.is_set(field)?).to_owned().into_any());
    Ok([
        text(0, Field::Group)?,
        text(1, Field::Topic)?,
        text(2, Field::DefaultTopic)?,
        needed(Field::DefaultQueues)?,
        needed(Field::QueueId)?,
        needed(Field::Sysflag)?,
        object(values.int64(Field::BornTime)?.ok_or(NotPlain)?),
        needed(Field::Flag)?,
        optional_text(Field::Properties)?,
        optional(Field::ReconsumeTimes)?,
        flag(Field::UnitMode)?,
        flag(Field::Batch)?,
        optional(Field::MaxReconsumeTimes)?,
        optional_text(Field::Broker)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sends::tests::{frame, KEY};
    use crate::sends::Run;

    const SECRET: &[u8] = b"secret-of-the-shop";

    fn account(secret: &[u8], codes: &[i64]) -> Account {
        Account {
            access_key: b"shop-key".to_vec(),
            key: SigningKey::from_secret(secret),
            codes: codes.to_vec(),
            body_bytes_max: 100,
        }
    }

    /// A send, its values one behind the other in the order of their names signed.
    fn signed(key: &str, more: &str, body: &[u8]) -> Vec<u8> {
        signed_to(0, key, more, body)
    }

    fn signed_to(queue_id: i32, key: &str, more: &str, body: &[u8]) -> Vec<u8> {
        let properties = "UNIQ_KEY\x01A1\x02";
        let text = format!("t{key}g{queue_id}{properties}");
        let signing = SigningKey::from_secret(SECRET);
        let mut mac = signing.mac();
        mac.update(text.as_bytes());
        mac.update(body);
        let signature = mac.signature();
        let signature = std::str::from_utf8(&signature).unwrap();
        let header = format!(
            r#"{{"code":310,"extFields":{{"i":"{KEY}","e":"{queue_id}","AA":"t","b":"g","AccessKey":"{key}",{more}"Signature":"{signature}"}},"flag":0,"opaque":7}}"#
        );
        frame(&header, body)
    }

    fn count(data: &[u8], account: &Account) -> usize {
        Run::parse_signed(data, 0, 1 << 20, account).requests.len()
    }

    #[test]
    fn a_run_ends_before_a_send_that_the_account_has_not_signed() {
        let shop = account(SECRET, &[SEND_MESSAGE_V2]);
        let good = signed("shop-key", "", b"body");
        assert_eq!(count(&good.repeat(3), &shop), 3);
        let mut tampered = good.clone();
        *tampered.last_mut().unwrap() ^= 1;
        let full = signed("shop-key", "", &[0; 100]);
        assert_eq!(count(&full, &shop), 1);
        for other in [
            tampered,
            signed("shop-key", "", &[0; 101]),
            signed("boss-key", "", b"body"),
            signed("shop-key", r#""z":"","z":"","#, b"body"),
            signed("shop-key", r#""z":"more","#, b"body"),
            frame(r#"{"code":310,"extFields":{"b":"t"}}"#, b""),
            // The end of a transaction, which is in a run without access control.
            frame(
                r#"{"code":37,"extFields":{"producerGroup":"g","tranStateTableOffset":"5","commitLogOffset":"7","commitOrRollback":"8"},"flag":2,"opaque":9}"#,
                b"",
            ),
        ] {
            let run = Run::parse_signed(&[good.clone(), other].concat(), 0, 1 << 20, &shop);
            assert_eq!(
                (run.requests.len(), run.places.len(), run.is_full),
                (1, 1, false)
            );
        }
        // Fields that are not of a send are signed, and else nothing.
        assert_eq!(count(&signed("shop-key", r#""z":"","#, b"body"), &shop), 1);
    }

    #[test]
    fn a_run_ends_before_the_first_false_send_wherever_it_stands() {
        let shop = account(SECRET, &[SEND_MESSAGE_V2]);
        let good = signed("shop-key", "", b"body");
        let elsewhere = signed_to(5, "shop-key", "", b"body");
        // Its text is too long to wait for others.
        let long_shop = Account {
            body_bytes_max: 10_000,
            ..account(SECRET, &[SEND_MESSAGE_V2])
        };
        let long = signed("shop-key", "", &[7; 1_000]);
        let mut false_one = good.clone();
        *false_one.last_mut().unwrap() ^= 1;
        for count in 1..=9 {
            for wrong in 0..=count {
                let mut frames = vec![good.clone(); count];
                let far = count / 2;
                frames[far] = elsewhere.clone();
                frames[count / 3] = long.clone();
                if wrong < count {
                    frames[wrong] = false_one.clone();
                }
                let run = Run::parse_signed(&frames.concat(), 0, 1 << 20, &long_shop);
                assert_eq!(run.requests.len(), wrong, "{count} {wrong}");
                let places = usize::from(wrong > 0) + usize::from(wrong > far && far > count / 3);
                assert_eq!(run.places.len(), places, "{count} {wrong}");
                let texts = 1 + r"UNIQ_KEY A1".len();
                assert_eq!(run.texts.len(), wrong * texts, "{count} {wrong}");
                assert!(!run.is_full);
            }
        }
        // Of 64 sends it is full, unless the last one is false.
        let mut frames = vec![good; 70];
        assert!(Run::parse_signed(&frames.concat(), 0, 1 << 20, &shop).is_full);
        frames[63] = false_one;
        let run = Run::parse_signed(&frames.concat(), 0, 1 << 20, &shop);
        assert_eq!((run.requests.len(), run.is_full), (63, false));
    }

    #[test]
    fn another_secret_or_code_is_not_that_of_the_account() {
        let good = signed("shop-key", "", b"body");
        assert_eq!(
            count(&good, &account(b"another secret", &[SEND_MESSAGE_V2])),
            0
        );
        assert_eq!(count(&good, &account(SECRET, &[SEND_MESSAGE])), 0);
    }
}
