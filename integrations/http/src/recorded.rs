//! A response as it is stored in the journal.

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
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
        status: StatusCode,
        headers: &HeaderMap,
        is_kept: impl Fn(&HeaderName) -> bool,
        body: &Bytes,
    ) -> Self {
        let named = named_by_connection(headers);
        let kept = headers.iter().filter(|(name, _)| {
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
            status: status.as_u16(),
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

    use super::*;

    /// A replayed response has the same status, the same recorded headers and the same bytes.
    #[test]
    fn replayed_response_is_identical() {
        let (parts, ()) = Request::new(()).into_parts();
        let fingerprint = Fingerprint::of(&parts, b"");
        let mut headers = HeaderMap::new();
        headers.append("x-two", HeaderValue::from_static("first"));
        headers.append("x-two", HeaderValue::from_static("second"));
        headers.append("x-bytes", HeaderValue::from_bytes(b"\xfc\xff").unwrap());
        headers.append("x-secret", HeaderValue::from_static("not kept"));
        headers.append("connection", HeaderValue::from_static("close, X-Hop"));
        headers.append("x-hop", HeaderValue::from_static("1"));
        let body = Bytes::from_static(b"\0\xffbytes");
        let recorded = Recorded::of(
            &fingerprint,
            StatusCode::CREATED,
            &headers,
            |name| name != "x-secret",
            &body,
        );
        let recorded: Recorded =
            serde_json::from_str(&serde_json::to_string(&recorded).unwrap()).unwrap();

        assert!(recorded.answers(&fingerprint));
        assert!(!recorded.answers(&Fingerprint::of(&parts, b"other")));
        let replayed = recorded.replay().unwrap();
        assert_eq!(replayed.status(), StatusCode::CREATED);
        let two: Vec<_> = replayed.headers().get_all("x-two").iter().collect();
        assert_eq!(two, ["first", "second"]);
        assert_eq!(replayed.headers()["x-bytes"].as_bytes(), b"\xfc\xff");
        assert_eq!(replayed.headers()[REPLAYED], "true");
        assert_eq!(replayed.headers().len(), 4);
        assert_eq!(recorded.body_base64, "AP9ieXRlcw==");
    }
}
