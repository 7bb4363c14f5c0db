//! A response as it is stored in the journal.

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response::Parts};
use idem_runtime::Error;
use serde::{Deserialize, Serialize};

use crate::{
    body::{self, Body},
    fingerprint::Fingerprint,
};

/// The header that is `true` in a replayed response, which was recorded before.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// A recorded response, with the fingerprint of its request.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recorded {
    fingerprint: String,
    status: u16,
    /// The headers in their order, one entry for each value. Each character of a value is one byte
    /// (ISO 8859-1), because a value may not be valid UTF-8.
    headers: Vec<(String, String)>,
    body_base64: String,
}

impl Recorded {
    pub(crate) fn of(
        fingerprint: &Fingerprint,
        response: &Parts,
        is_kept: impl Fn(&HeaderName) -> bool,
        body: &Bytes,
    ) -> Self {
        let named = named_by_connection(&response.headers);
        let kept = response.headers.iter().filter(|(name, _)| {
            !is_of_the_connection(name) && !named.contains(name) && is_kept(name)
        });
        let text = |value: &HeaderValue| {
            value
                .as_bytes()
                .iter()
                .map(|byte| char::from(*byte))
                .collect()
        };
        Self {
            fingerprint: fingerprint.to_string(),
            status: response.status.as_u16(),
            headers: kept
                .map(|(name, value)| (name.to_string(), text(value)))
                .collect(),
            body_base64: BASE64_STANDARD.encode(body),
        }
    }

    pub(crate) fn answers(&self, fingerprint: &Fingerprint) -> bool {
        self.fingerprint == fingerprint.to_string()
    }

    /// Builds the response again, marked as a replay.
    pub(crate) fn replay(&self) -> Result<Response<Body>, Error> {
        let broken = |what: &str| Error::Unexpected(format!("a recorded response without {what}"));
        let bytes = BASE64_STANDARD
            .decode(&self.body_base64)
            .map_err(|_| broken("a body"))?;
        let mut response = Response::new(body::full(bytes));
        *response.status_mut() =
            StatusCode::from_u16(self.status).map_err(|_| broken("a status"))?;
        for (name, value) in &self.headers {
            let name =
                HeaderName::from_bytes(name.as_bytes()).map_err(|_| broken("names of headers"))?;
            let value: Option<Vec<u8>> = value
                .chars()
                .map(|character| u8::try_from(character).ok())
                .collect();
            let value = value.and_then(|bytes| HeaderValue::from_bytes(&bytes).ok());
            response
                .headers_mut()
                .append(name, value.ok_or_else(|| broken("values of headers"))?);
        }
        response
            .headers_mut()
            .insert(REPLAYED, HeaderValue::from_static("true"));
        Ok(response)
    }
}

/// Returns the headers that the header `Connection` lists. They belong to one connection and are
/// not recorded.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter();
    let names = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','));
    names.filter_map(|name| name.trim().parse().ok()).collect()
}

/// Returns whether a header belongs to one connection or one moment instead of the response.
fn is_of_the_connection(name: &HeaderName) -> bool {
    const OTHERS: [&str; 2] = ["keep-alive", "proxy-connection"];
    [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::DATE,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ]
    .contains(name)
        || OTHERS.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use http::Request;
    use serde_json::Value;

    use super::*;
    use crate::cases;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Records {
        responses: Vec<Case>,
        readable: Value,
        unreadable_members: Vec<serde_json::Map<String, Value>>,
        unreadable: Vec<Value>,
        unsendable_texts: Vec<String>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Case {
        response: Stored,
        record: Stored,
    }

    /// The members of a record without its fingerprint.
    #[derive(Debug, PartialEq, Deserialize)]
    struct Stored {
        status: u16,
        headers: Vec<(String, String)>,
        body_base64: String,
    }

    fn fingerprint(body: &[u8]) -> Fingerprint {
        let (parts, ()) = Request::new(()).into_parts();
        Fingerprint::of(&parts, body)
    }

    /// Each character of a value is one byte.
    fn value(text: &str) -> HeaderValue {
        let bytes: Vec<u8> = text.chars().map(|c| u8::try_from(c).unwrap()).collect();
        HeaderValue::from_bytes(&bytes).unwrap()
    }

    fn recorded(response: &Stored) -> Recorded {
        let (mut parts, ()) = Response::new(()).into_parts();
        for (name, text) in &response.headers {
            let name: HeaderName = name.parse().unwrap();
            parts.headers.append(name, value(text));
        }
        parts.status = StatusCode::from_u16(response.status).unwrap();
        let body = BASE64_STANDARD.decode(&response.body_base64).unwrap();
        let is_kept = |name: &HeaderName| name != header::SET_COOKIE;
        Recorded::of(&fingerprint(b""), &parts, is_kept, &body.into())
    }

    /// Reads a record and makes the response from it.
    fn replayed(stored: Value) -> Option<Response<Body>> {
        let recorded: Recorded = serde_json::from_value(stored).ok()?;
        recorded.replay().ok()
    }

    #[test]
    fn records_are_those_of_the_specification() {
        let cases: Records = cases::read("records.json");
        for Case { response, record } in cases.responses {
            let recorded = recorded(&response);
            assert!(recorded.answers(&fingerprint(b"")));
            assert!(!recorded.answers(&fingerprint(b"other")));
            let stored = serde_json::to_value(&recorded).unwrap();
            let replayed = replayed(stored.clone()).unwrap();
            assert_eq!(serde_json::from_value::<Stored>(stored).unwrap(), record);
            assert_eq!(replayed.status().as_u16(), record.status);
            let mut expected: Vec<_> = record.headers.iter().collect();
            let mark = (REPLAYED.to_string(), "true".to_owned());
            expected.push(&mark);
            let found: Vec<_> = replayed.headers().iter().collect();
            assert_eq!(found.len(), expected.len());
            for ((name, found), (expected, text)) in found.into_iter().zip(expected) {
                assert_eq!((name.as_str(), found), (expected.as_str(), &value(text)));
            }
        }
    }

    #[test]
    fn unreadable_records_are_those_of_the_specification() {
        let cases: Records = cases::read("records.json");
        assert!(replayed(cases.readable.clone()).is_some());
        let with = |members: serde_json::Map<String, Value>| {
            let mut stored = cases.readable.clone();
            stored.as_object_mut().unwrap().extend(members);
            stored
        };
        let texts = cases.unsendable_texts.into_iter();
        let unsendable = texts.flat_map(|text| [(text.clone(), "1".into()), ("x-a".into(), text)]);
        let unsendable = unsendable
            .map(|header: (String, String)| serde_json::json!({ "headers": [header] }))
            .map(|members| with(members.as_object().unwrap().clone()));
        let changed = cases.unreadable_members.into_iter().map(with);
        for stored in cases
            .unreadable
            .into_iter()
            .chain(changed)
            .chain(unsendable)
        {
            assert!(replayed(stored.clone()).is_none(), "{stored}");
        }
    }
}
