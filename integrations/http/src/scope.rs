//! The scope of idempotency keys.

use std::{fmt, sync::Arc};

use http::request::Parts;

use crate::problem::Problem;

/// Defines which callers share keys. All callers in the same scope get each other's recorded
/// responses, so each layer needs a scope.
#[derive(Clone)]
pub struct Scope(Option<Caller>);

type Caller = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

impl Scope {
    /// Gives each caller its own keys. `caller` returns the name of a tenant, an account or a user.
    /// If it returns `None` or an empty name, the request gets status 403.
    ///
    /// Derive the caller from authenticated data. A client that can name another caller can read
    /// the recorded responses of that caller.
    pub fn by(caller: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(caller)))
    }

    /// Lets all callers share the keys. Use this only for a service in which callers may read each
    /// other's responses, because equal keys of two callers are the same key.
    pub fn single_tenant() -> Self {
        Self(None)
    }

    /// Returns the message id of a request with this key.
    pub(crate) fn id_of(&self, parts: &Parts, key: String) -> Result<String, Problem> {
        // Layers of one destination can have different kinds of scopes. Such layers must not share
        // keys, so the id begins with the kind of the scope.
        let Some(caller) = &self.0 else {
            return Ok(format!("all:{key}"));
        };
        let caller = caller(parts).filter(|caller| !caller.is_empty());
        let caller = caller.ok_or(Problem::UnknownCaller)?;
        // The length distinguishes caller "a" with key "b:c" from caller "a:b" with key "c".
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
