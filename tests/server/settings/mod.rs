//! Tests that the settings of a server, a database or a session do not change the results or the
//! cost of a function.

mod compiled;
mod script;
mod unusual;

use anyhow::{Context, Result};
use idem_testkit::Session;

use script::{Needs, SCRIPT};

/// Runs the script and returns the result of each step.
async fn run(session: &Session) -> Result<Vec<String>> {
    let repeatable = session.text("SHOW default_transaction_isolation").await? != "read committed";
    let mut results = Vec::new();
    for (needs, step) in SCRIPT {
        let in_block = repeatable && *needs == Needs::ReadCommitted;
        let statements = if in_block {
            format!("BEGIN ISOLATION LEVEL READ COMMITTED; {step}; COMMIT")
        } else if repeatable && *needs == Needs::NoBlock {
            session
                .run("SET default_transaction_isolation = 'read committed'")
                .await?;
            (*step).to_owned()
        } else {
            (*step).to_owned()
        };
        let result = session
            .text(&statements)
            .await
            .with_context(|| (*step).to_owned())?;
        if repeatable && *needs == Needs::NoBlock {
            session.run("RESET default_transaction_isolation").await?;
        }
        results.push(format!("{step}\n{result}"));
    }
    Ok(results)
}

/// The script executes every function: these tests do not cover a function that the script omits.
#[tokio::test]
async fn script_executes_every_function() -> Result<()> {
    let db = idem_testkit::Database::with_idem("script").await?;
    let functions = db
        .connect()
        .await?
        .text(
            "SELECT DISTINCT f.proname FROM pg_proc f
               JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = f.oid
               JOIN pg_extension x ON x.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
                AND x.extname = 'idem'
              WHERE f.pronamespace <> 'idem'::regnamespace",
        )
        .await?;
    let missing: Vec<_> = functions
        .lines()
        .filter(|name| {
            !SCRIPT
                .iter()
                .any(|(_, step)| step.contains(&format!("{name}(")))
        })
        .collect();
    assert_eq!(missing, [""; 0]);
    Ok(())
}
