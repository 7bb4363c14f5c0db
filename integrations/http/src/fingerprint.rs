//! Fingerprints, which distinguish different requests with the same key.

use std::fmt;

use http::{Uri, request::Parts};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// SHA-256 over the method, the path with its query, and the body. Displayed as hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(crate) fn of(parts: &Parts, body: &[u8]) -> Self {
        let target = target(parts);
        let mut digest = Sha256::new();
        // A zero byte separates the parts, because a method and a path contain none.
        digest.update(parts.method.as_str());
        digest.update([0]);
        digest.update(target.path());
        if let Some(query) = target.query() {
            digest.update("?");
            digest.update(query);
        }
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

/// Returns the target that the client has sent. A router of axum removes the prefix of a nested
/// router from the URI of the request.
fn target(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return original;
    }
    &parts.uri
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use http::Request;

    use super::*;
    use crate::cases;

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Fingerprints {
        requests: Vec<Case>,
        absolute_targets: Vec<Absolute>,
    }

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Case {
        method: String,
        target: String,
        body: String,
        sha256: String,
    }

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Absolute {
        target: String,
        path: String,
    }

    fn of(method: &str, target: &str, body: &str) -> String {
        let request = Request::builder().method(method).uri(target).body(());
        let (parts, ()) = request.unwrap().into_parts();
        Fingerprint::of(&parts, body.as_bytes()).to_string()
    }

    /// Requests that differ in method, path, query or body have different fingerprints. The host
    /// does not count.
    #[test]
    fn fingerprints_are_those_of_the_specification() {
        let cases: Fingerprints = cases::read("fingerprints.json");
        let mut different = HashSet::new();
        for case in &cases.requests {
            let found = of(&case.method, &case.target, &case.body);
            assert_eq!(found, case.sha256, "{}", case.target);
            assert!(different.insert(found), "{}", case.target);
        }
        for case in cases.absolute_targets {
            assert_eq!(of("POST", &case.target, ""), of("POST", &case.path, ""));
        }
    }
}
