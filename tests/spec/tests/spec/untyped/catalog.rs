//! Reads the public API from the system catalog.

use std::collections::BTreeMap;

use anyhow::Result;
use idem_testkit::Session;

/// One function or procedure of the API. Several overloads can share a name.
pub struct Overload {
    pub is_procedure: bool,
    pub arguments: Vec<Argument>,
    /// The number of trailing arguments that have a default.
    pub optional: usize,
    /// The text of COMMENT ON, with the SQLSTATEs that the function raises.
    pub comment: String,
}

pub struct Argument {
    pub name: String,
    pub of_type: String,
}

impl Overload {
    /// Returns the number of arguments that have no default.
    pub fn required(&self) -> usize {
        self.arguments.len() - self.optional
    }
}

/// Returns all overloads by name: the functions and procedures `idem_…` in the schema of the
/// extension.
pub async fn functions(session: &Session) -> Result<BTreeMap<String, Vec<Overload>>> {
    let rows = session
        .query(
            "SELECT f.proname::text, f.prokind = 'p', f.pronargdefaults::int4,
                    COALESCE((SELECT array_agg(f.proargnames[n] ORDER BY n)
                                FROM generate_series(1, f.pronargs) n), '{}'),
                    COALESCE((SELECT array_agg(format_type(a, NULL) ORDER BY n)
                                FROM unnest(f.proargtypes) WITH ORDINALITY t (a, n)), '{}'),
                    COALESCE(obj_description(f.oid, 'pg_proc'), '')
               FROM pg_proc f
               JOIN pg_extension x ON x.extname = 'idem' AND x.extnamespace = f.pronamespace
              WHERE f.proname LIKE 'idem\\_%'
              ORDER BY f.oid::regprocedure::text",
            &[],
        )
        .await?;
    let mut functions = BTreeMap::<String, Vec<Overload>>::new();
    for row in rows {
        let names = row.get::<_, Vec<String>>(3);
        let types = row.get::<_, Vec<String>>(4);
        let arguments = names.into_iter().zip(types);
        functions.entry(row.get(0)).or_default().push(Overload {
            is_procedure: row.get(1),
            arguments: arguments
                .map(|(name, of_type)| Argument { name, of_type })
                .collect(),
            optional: usize::try_from(row.get::<_, i32>(2))?,
            comment: row.get(5),
        });
    }
    Ok(functions)
}
