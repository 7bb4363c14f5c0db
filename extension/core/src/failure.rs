//! The errors of a message, as they are kept with it: `[{"at": ..., "attempt": ..., "error": ...}]`, the oldest first.

use crate::limits::{ERROR_BYTES, FAILURES};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The errors with another one at the end. `at` is in microseconds since 1970.
pub fn note_failure(errors: &str, at: i64, attempt: i32, error: &str) -> String {
    let mut all = read(errors);
    let moment = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at) * 1_000).ok();
    let kept = (0..=error.len().min(ERROR_BYTES))
        .rev()
        .find(|&n| error.is_char_boundary(n))
        .unwrap_or(0);
    all.push(json!({
        "at": moment.and_then(|moment| moment.format(&Rfc3339).ok()),
        "attempt": attempt,
        "error": &error[..kept],
    }));
    let too_many = all.len().saturating_sub(FAILURES);
    all.drain(..too_many);
    Value::Array(all).to_string()
}

/// The text of the newest error.
pub fn last_failure(errors: &str) -> Option<String> {
    let last = read(errors).pop()?;
    last.get("error")?.as_str().map(str::to_owned)
}

/// Whether one of the errors was given back as final: there is to be no other attempt.
pub fn is_final(errors: &str) -> bool {
    read(errors)
        .iter()
        .any(|error| error.get("final") == Some(&Value::Bool(true)))
}

fn read(errors: &str) -> Vec<Value> {
    serde_json::from_str(errors).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_add_up_and_the_newest_is_the_last() {
        let errors = note_failure("[]", 1_893_456_000_000_000, 1, "first");
        let errors = note_failure(&errors, 1_893_456_000_000_001, 2, "second");
        let read: Value = serde_json::from_str(&errors).unwrap();
        assert_eq!(read[0], json!({"at": "2030-01-01T00:00:00Z", "attempt": 1, "error": "first"}));
        assert_eq!(last_failure(&errors).as_deref(), Some("second"));
        assert_eq!(last_failure("[]"), None);
    }

    #[test]
    fn a_final_error_stays_final() {
        let errors = r#"[{"error": "a", "attempt": 1}, {"error": "b", "final": true, "attempt": 2}]"#;
        assert!(is_final(&note_failure(errors, 0, 2, "the lease ran out")));
        assert!(!is_final(&note_failure("[]", 0, 1, "x")));
    }

    #[test]
    fn only_so_many_and_so_long_errors_are_kept() {
        let mut errors = "[]".to_owned();
        for attempt in 0..=FAILURES as i32 {
            errors = note_failure(&errors, 0, attempt, "x");
        }
        let read: Vec<Value> = serde_json::from_str(&errors).unwrap();
        assert_eq!((read.len(), &read[0]["attempt"]), (FAILURES, &json!(1)));
        let long = note_failure("[]", 0, 1, &"\u{e4}".repeat(ERROR_BYTES));
        assert_eq!(last_failure(&long).unwrap().len(), ERROR_BYTES);
    }
}
