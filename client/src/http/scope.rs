//! Whose keys they are.

use std::{fmt, sync::Arc};

use http::request::Parts;

use crate::http::problem::Problem;

/// Whose keys the requests of a layer have. A recorded response is returned to every caller that is
/// in the same scope, so each layer needs one.
#[derive(Clone)]
pub struct Scope(Option<Caller>);

type Caller = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

impl Scope {
    /// Each caller has keys of its own: a tenant, an account, a user. `None` refuses the request
    /// with 403.
    ///
    /// Take the caller from what has been authenticated: a client that can name another caller can
    /// read the responses that are recorded for that caller.
    pub fn by(caller: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(caller)))
    }

    /// All callers share the keys. Only for a service whose callers may read each other's
    /// responses, because equal keys of two of them are one key.
    pub fn single_tenant() -> Self {
        Self(None)
    }

    /// The id of a request with this key.
    pub(crate) fn id_of(&self, parts: &Parts, key: String) -> Result<String, Problem> {
        // Layers of one destination may have different kinds of scopes, which share no keys.
        let Some(caller) = &self.0 else {
            return Ok(format!("all:{key}"));
        };
        let caller = caller(parts).ok_or(Problem::UnknownCaller)?;
        // The length keeps "a" with "b" apart from "ab" with "".
        Ok(format!("by:{}:{caller}:{key}", caller.len()))
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(_) => "by caller",
            None => "single tenant",
        })
    }
}
