//! The options of a layer.

use std::{fmt, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use http::{HeaderName, Method, StatusCode, header, request::Parts};
use idem_client::{Destination, MessageId};

use crate::{key, problem::Problem, running::RunningRequests, scope::Scope};

/// How a request is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In the transaction that claims the request and records the response.
    Transaction,
    /// Under a lease.
    Lease,
}

pub(crate) type KeepHeader = Arc<dyn Fn(&HeaderName) -> bool + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) mode: Mode,
    pub(crate) pool: Pool,
    pub(crate) destination: Destination,
    pub(crate) methods: Vec<Method>,
    pub(crate) is_required: bool,
    pub(crate) scope: Scope,
    pub(crate) request_limit: usize,
    pub(crate) response_limit: usize,
    pub(crate) keep_header: KeepHeader,
    pub(crate) lease: Duration,
    pub(crate) running: RunningRequests,
}

impl Options {
    pub(crate) fn new(mode: Mode, pool: Pool, destination: Destination, scope: Scope) -> Self {
        Self {
            mode,
            pool,
            destination,
            methods: vec![Method::POST, Method::PATCH],
            is_required: true,
            scope,
            request_limit: 1 << 20,
            response_limit: 1 << 20,
            // A cookie may identify a session, so a replayed response contains no cookie.
            keep_header: Arc::new(|name| name != header::SET_COOKIE),
            lease: Duration::from_secs(30),
            running: RunningRequests::default(),
        }
    }

    /// Returns the id of the request, or `None` if the request is not protected.
    pub(crate) fn identify(&self, parts: &Parts) -> Result<Option<MessageId>, Problem> {
        if !self.methods.contains(&parts.method) {
            return Ok(None);
        }
        let Some(key) = key::of(&parts.headers)? else {
            return match self.is_required {
                true => Err(Problem::MissingKey),
                false => Ok(None),
            };
        };
        self.scope.id_of(parts, key).map(Some)
    }
}

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

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("mode", &self.mode)
            .field("destination", &self.destination)
            .field("methods", &self.methods)
            .field("is_required", &self.is_required)
            .field("scope", &self.scope)
            .field("request_limit", &self.request_limit)
            .field("response_limit", &self.response_limit)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
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
