//! The scope of idempotency keys.

use std::{fmt, sync::Arc};

use http::request::Parts;
use idem_client::MessageId;

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
    pub(crate) fn id_of(&self, parts: &Parts, key: String) -> Result<MessageId, Problem> {
        // Layers of one destination can have different kinds of scopes. Such layers must not share
        // keys, so the id begins with the kind of the scope.
        let id = match &self.0 {
            None => format!("all:{key}"),
            Some(caller) => {
                // The name of a caller can be any text, but PostgreSQL cannot store a zero byte.
                let caller = caller(parts)
                    .filter(|caller| !caller.is_empty() && !caller.contains('\0'))
                    .ok_or(Problem::UnknownCaller)?;
                // The length distinguishes caller "a" with key "b:c" from caller "a:b" with key
                // "c".
                format!("by:{}:{caller}:{key}", caller.len())
            }
        };
        MessageId::text(id).map_err(|_| Problem::IdTooLong)
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

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::cases;

    #[derive(serde::Deserialize)]
    struct Case {
        caller: Option<String>,
        key: String,
        #[serde(flatten)]
        expected: Expected,
    }

    #[derive(serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Expected {
        Id(String),
        Problem(String),
    }

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Ids {
        single_tenant: Vec<Case>,
        by_caller: Vec<Case>,
    }

    fn assert_id(scope: &Scope, case: Case) {
        let (parts, ()) = Request::new(()).into_parts();
        let found = scope.id_of(&parts, case.key);
        match (found, case.expected) {
            (Ok(found), Expected::Id(id)) => assert_eq!(found, MessageId::text(id).unwrap()),
            (Err(found), Expected::Problem(name)) => assert_eq!(found.kind().1, name),
            (found, _) => panic!("{:?}: {found:?}", case.caller),
        }
    }

    #[test]
    fn ids_are_those_of_the_specification() {
        let ids: Ids = cases::read("ids.json");
        for case in ids.single_tenant {
            assert_id(&Scope::single_tenant(), case);
        }
        for case in ids.by_caller {
            let caller = case.caller.clone();
            assert_id(&Scope::by(move |_| caller.clone()), case);
        }
    }
}
