//! Tests of I9, least privilege: the privileges that `idem_grant` gives to a role are sufficient,
//! and the role has no other privileges.

mod backtraces;
mod grants;
mod hostile;
mod roles_page;

use anyhow::Result;
use idem_testkit::Session;

/// A function of the extension.
struct Function {
    /// `schema.name(type, type)`
    signature: String,
    /// A statement that executes the function with NULL arguments. PostgreSQL checks the privilege
    /// before the function checks its arguments.
    call: String,
}

/// Returns all functions and procedures of the extension that SQL can execute: the functions of the
/// API and the functions in schema idem.
async fn functions(session: &Session) -> Result<Vec<Function>> {
    let rows = session
        .query(
            "SELECT format('%s.%s(%s)', n.nspname, f.proname,
                           pg_get_function_identity_arguments(f.oid)),
                    format('%s %I.%I(%s)', CASE f.prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT' END,
                           n.nspname, f.proname,
                           (SELECT string_agg('NULL::' || format_type(a, NULL), ', ' ORDER BY i)
                              FROM unnest(f.proargtypes) WITH ORDINALITY t (a, i)))
               FROM pg_proc f
               JOIN pg_namespace n ON n.oid = f.pronamespace
               JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = f.oid
                AND d.deptype = 'e'
               JOIN pg_extension x ON d.refclassid = 'pg_extension'::regclass AND x.oid = d.refobjid
                AND x.extname = 'idem'
              WHERE f.prorettype <> 'trigger'::regtype
              ORDER BY 1",
            &[],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| Function {
            signature: row.get(0),
            call: row.get(1),
        })
        .collect())
}
