//! The errors of a message, in the JSON format in which they are stored with the message: `[{"at":
//! ..., "attempt": ..., "error": ...}]`, oldest first. `"final": true` marks an error that is not
//! retried. `"lease_expired": true` marks an attempt that ended with an expired lease.

use crate::limits::{ERROR_BYTES, FAILURES};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The error text of an attempt that ended with an expired lease.
const LEASE_EXPIRED: &str = "the lease expired";

/// How an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure<'a> {
    /// The consumer released the message with an error.
    Reported { error: &'a str, is_final: bool },
    /// The lease expired before the consumer completed or released the message.
    LeaseExpired,
}

/// Appends an error to `errors`. If there are then more than [`FAILURES`] errors, drops the oldest.
/// `at` is in microseconds since 1970.
pub fn note_failure(errors: &str, at: i64, attempt: i32, failure: Failure) -> String {
    let mut all = read(errors);
    let moment = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at) * 1_000).ok();
    let error = match failure {
        Failure::Reported { error, .. } => error,
        Failure::LeaseExpired => LEASE_EXPIRED,
    };
    let mut entry = json!({
        "at": moment.and_then(|moment| moment.format(&Rfc3339).ok()),
        "attempt": attempt,
        "error": truncated_error(error),
    });
    match failure {
        Failure::Reported { is_final: true, .. } => entry["final"] = true.into(),
        Failure::Reported { .. } => (),
        Failure::LeaseExpired => entry["lease_expired"] = true.into(),
    }
    all.push(entry);
    let too_many = all.len().saturating_sub(FAILURES);
    all.drain(..too_many);
    Value::Array(all).to_string()
}

/// Returns the text of the newest error.
pub fn last_failure(errors: &str) -> Option<String> {
    let last = read(errors).pop()?;
    last.get("error")?.as_str().map(str::to_owned)
}

/// Returns whether the newest error belongs to this attempt and has this text.
pub fn is_last_failure(errors: &str, attempt: i32, error: &str) -> bool {
    read(errors).pop().is_some_and(|last| {
        last.get("error").and_then(Value::as_str) == Some(truncated_error(error))
            && last.get("attempt").and_then(Value::as_i64) == Some(attempt.into())
    })
}

/// Returns whether one of the errors is final.
pub fn is_final(errors: &str) -> bool {
    read(errors)
        .iter()
        .any(|error| error.get("final") == Some(&Value::Bool(true)))
}

/// Returns the beginning of an error, which is the part that is stored: at most [`ERROR_BYTES`].
pub fn truncated_error(error: &str) -> &str {
    let end = (0..=error.len().min(ERROR_BYTES))
        .rev()
        .find(|&n| error.is_char_boundary(n))
        .unwrap_or(0);
    &error[..end]
}

fn read(errors: &str) -> Vec<Value> {
    serde_json::from_str(errors).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(error: &str) -> Failure<'_> {
        Failure::Reported {
            error,
            is_final: false,
        }
    }

    #[test]
    fn errors_are_appended_newest_last() {
        let errors = note_failure("[]", 1_893_456_000_000_000, 1, reported("first"));
        let errors = note_failure(&errors, 1_893_456_000_000_001, 2, reported("second"));
        let read: Value = serde_json::from_str(&errors).unwrap();
        assert_eq!(
            read[0],
            json!({"at": "2030-01-01T00:00:00Z", "attempt": 1, "error": "first"})
        );
        assert_eq!(last_failure(&errors).as_deref(), Some("second"));
        assert_eq!(last_failure("[]"), None);
    }

    #[test]
    fn final_error_stays_final() {
        let last = Failure::Reported {
            error: "b",
            is_final: true,
        };
        let errors = note_failure(r#"[{"error": "a", "attempt": 1}]"#, 0, 2, last);
        assert!(is_final(&note_failure(
            &errors,
            0,
            2,
            Failure::LeaseExpired
        )));
        assert!(!is_final(&note_failure("[]", 0, 1, reported("x"))));
    }

    #[test]
    fn expired_lease_is_marked() {
        let errors = note_failure("[]", 0, 3, Failure::LeaseExpired);
        let read: Value = serde_json::from_str(&errors).unwrap();
        assert_eq!(read[0]["lease_expired"], true);
        assert_eq!(last_failure(&errors).as_deref(), Some("the lease expired"));
    }

    #[test]
    fn last_failure_is_recognized_by_attempt_and_text() {
        let long = "x".repeat(ERROR_BYTES + 10);
        let errors = note_failure("[]", 0, 2, reported(&long));
        assert!(is_last_failure(&errors, 2, &long));
        assert!(!is_last_failure(&errors, 3, &long));
        assert!(!is_last_failure(&errors, 2, "x"));
        assert!(!is_last_failure("[]", 2, "x"));
    }

    #[test]
    fn number_and_length_of_kept_errors_are_bounded() {
        let mut errors = "[]".to_owned();
        for attempt in 0..=FAILURES as i32 {
            errors = note_failure(&errors, 0, attempt, reported("x"));
        }
        let read: Vec<Value> = serde_json::from_str(&errors).unwrap();
        assert_eq!((read.len(), &read[0]["attempt"]), (FAILURES, &json!(1)));
        let long = note_failure("[]", 0, 1, reported(&"\u{e4}".repeat(ERROR_BYTES)));
        assert_eq!(last_failure(&long).unwrap().len(), ERROR_BYTES);
    }
}
