//! The statuses of the responses that are recorded.

use http::StatusCode;

/// The statuses below 500 after which another attempt may succeed: with other credentials, at
/// another time, or with the same request.
const TEMPORARY: [StatusCode; 7] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::PROXY_AUTHENTICATION_REQUIRED,
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::CONFLICT,
    StatusCode::TOO_EARLY,
    StatusCode::TOO_MANY_REQUESTS,
];

/// Returns whether a response with this status is recorded. Statuses after which another attempt
/// may succeed are not recorded.
pub(crate) fn keeps(status: StatusCode) -> bool {
    (200..500).contains(&status.as_u16()) && !TEMPORARY.contains(&status)
}

/// Returns whether the writes of a handler are committed together with a recorded response that has
/// no [`KeepWrites`](crate::KeepWrites).
pub(crate) fn keeps_writes(status: StatusCode) -> bool {
    !status.is_client_error()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Statuses {
        recorded: Vec<u16>,
        not_recorded: Vec<u16>,
        writes_are_kept: Vec<u16>,
        writes_are_rolled_back: Vec<u16>,
    }

    #[test]
    fn recorded_statuses_are_those_of_the_specification() {
        let cases: Statuses = cases::read("statuses.json");
        for (statuses, rule, expected) in [
            (cases.recorded, keeps as fn(_) -> _, true),
            (cases.not_recorded, keeps, false),
            (cases.writes_are_kept, keeps_writes, true),
            (cases.writes_are_rolled_back, keeps_writes, false),
        ] {
            for status in statuses {
                let found = rule(StatusCode::from_u16(status).unwrap());
                assert_eq!(found, expected, "{status}");
            }
        }
    }
}
