//! Checks of settings and topics that the crates for brokers share.

use std::ops::RangeInclusive;

use crate::{Error, PublishError};

/// Checks a number in the settings of a broker.
///
/// # Errors
///
/// [`Error::Invalid`]: the number is not in the range.
pub fn check_setting(name: &str, value: u16, range: RangeInclusive<u16>) -> Result<(), Error> {
    if range.contains(&value) {
        return Ok(());
    }
    let (first, last) = range.into_inner();
    Err(Error::Invalid(format!(
        "the setting {name} is {value}, but must be between {first} and {last}"
    )))
}

/// Checks that the login in a URL does not end early: a `/`, `?` or `#` in a password would end it,
/// and the user would be read as the host. The reason contains no part of the URL.
pub fn check_login(url: &str) -> Result<(), &'static str> {
    let (_, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, after) = rest.split_at(end);
    // No URL of a broker has a fragment.
    if after.contains('#') || after.contains('@') || authority.matches('@').count() > 1 {
        return Err(
            "write / as %2F, ? as %3F, # as %23 and @ as %40 in its user, password and path",
        );
    }
    Ok(())
}

/// Checks that a topic does not belong to the broker itself. Whoever may record an effect would
/// otherwise command the broker with the rights of the relay.
///
/// # Errors
///
/// [`PublishError::Permanent`]: the topic begins with one of these prefixes, and
/// `system_topics` is false.
pub fn check_topic(
    topic: &str,
    prefixes: &[&str],
    system_topics: bool,
) -> Result<(), PublishError> {
    if system_topics || !prefixes.iter().any(|prefix| topic.starts_with(prefix)) {
        return Ok(());
    }
    let cause = "the topic belongs to the broker (the setting system_topics allows such topics)";
    Err(PublishError::Permanent(cause.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_out_of_its_range_is_an_error_that_names_it() {
        check_setting("timeout_s", 1, 1..=10).unwrap();
        check_setting("timeout_s", 10, 1..=10).unwrap();
        for value in [0, 11] {
            let error = check_setting("timeout_s", value, 1..=10).unwrap_err();
            let said = format!("timeout_s is {value}, but must be between 1 and 10");
            assert!(error.to_string().contains(&said), "{error}");
        }
    }

    #[test]
    fn topic_of_the_broker_is_a_permanent_failure_unless_allowed() {
        let refused = check_topic("$JS.API.STREAM.DELETE.orders", &["$", "_INBOX."], false);
        assert!(matches!(refused, Err(PublishError::Permanent(_))));
        check_topic("$JS.API.STREAM.DELETE.orders", &["$"], true).unwrap();
        check_topic("orders.$JS", &["$", "_INBOX."], false).unwrap();
    }
}
