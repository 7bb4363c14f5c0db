//! Fingerprints, which distinguish different requests with the same key.

use std::fmt;

use http::request::Parts;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// SHA-256 over the method, the path with its query, and the body. Displayed as hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(crate) fn of(parts: &Parts, body: &[u8]) -> Self {
        let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
        let mut digest = Sha256::new();
        // A zero byte separates the parts, because a method and a path contain none.
        digest.update(parts.method.as_str());
        digest.update([0]);
        digest.update(path);
        digest.update([0]);
        digest.update(body);
        Self(digest.finalize().into())
    }

    /// Returns the value that the journal entry stores as its request.
    pub(crate) fn request(&self) -> Value {
        json!({ "fingerprint": self.to_string() })
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn of(method: &str, uri: &str, body: &str) -> Fingerprint {
        let (parts, ()) = Request::builder()
            .method(method)
            .uri(uri)
            .body(())
            .unwrap()
            .into_parts();
        Fingerprint::of(&parts, body.as_bytes())
    }

    /// Requests that differ in method, path, query or body have different fingerprints. The host
    /// does not count.
    #[test]
    fn fingerprint_covers_method_path_query_and_body() {
        let first = of("POST", "/orders?a=1", "{}");
        assert_eq!(first, of("POST", "http://elsewhere/orders?a=1", "{}"));
        for other in [
            of("PATCH", "/orders?a=1", "{}"),
            of("POST", "/order?a=1", "{}"),
            of("POST", "/orders?a=2", "{}"),
            of("POST", "/orders", "{}"),
            of("POST", "/orders?a=1", "{ }"),
        ] {
            assert_ne!(first, other);
        }
        assert_eq!(first.to_string().len(), 64);
    }
}
