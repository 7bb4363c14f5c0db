//! Tests of invalid arguments: each invalid argument of each function fails with the documented
//! SQLSTATE and a hint. The error leaves every table unchanged and the session usable.
//!
//! [`table`] contains the arguments. The test [`invalid_arguments_fail_as_documented`] fails for a
//! function with an argument that [`table`] does not list.

mod table;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use idem_cluster::{Cluster, Install};
use idem_testkit::{Database, Refusal, Session};

use table::{
    BAD, FIXTURE, IN_BLOCK_ONLY, NULL_IS_VALID, PREPARATIONS, READ_COMMITTED_ONLY, READERS, VALID,
};

/// A function or procedure of the API, from the system catalog.
struct Function {
    name: String,
    is_procedure: bool,
    /// The name and the type of each argument.
    arguments: Vec<(String, String)>,
}

impl Function {
    /// Returns `name(type, type)` for messages.
    fn signature(&self) -> String {
        let types: Vec<_> = self
            .arguments
            .iter()
            .map(|(_, of_type)| of_type.as_str())
            .collect();
        format!("{}({})", self.name, types.join(", "))
    }

    /// Returns a statement that executes the function with valid arguments, except for the
    /// arguments in `but`, which have the values given there.
    fn statement(&self, but: &[(&str, &str)]) -> Result<String> {
        let mut arguments = Vec::new();
        for (name, of_type) in &self.arguments {
            let value = match but.iter().find(|(changed, _)| changed == name) {
                Some((_, value)) => *value,
                None => self.valid(name, of_type)?,
            };
            arguments.push(format!("({value})::{of_type}"));
        }
        let verb = if self.is_procedure { "CALL" } else { "SELECT" };
        // These functions need a transaction block. A query string with two statements is one.
        let block = if IN_BLOCK_ONLY.contains(&&*self.name) {
            "; SELECT"
        } else {
            ""
        };
        Ok(format!(
            "{verb} {}({}){block}",
            self.name,
            arguments.join(", ")
        ))
    }

    /// Returns a valid value for an argument.
    fn valid(&self, name: &str, of_type: &str) -> Result<&'static str> {
        VALID
            .iter()
            .filter(|(function, _)| *function == "any" || *function == self.name)
            .flat_map(|(_, arguments)| *arguments)
            .find(|(argument, its_type, _)| *argument == name && *its_type == of_type)
            .map(|(_, _, value)| *value)
            .with_context(|| {
                format!(
                    "bad_input/table.rs has no value for argument {name} {of_type} of {}",
                    self.signature()
                )
            })
    }
}

/// Returns the functions of the API: those that the extension creates outside schema idem.
async fn functions(session: &Session) -> Result<Vec<Function>> {
    let rows = session
        .query(
            "SELECT f.proname, f.prokind = 'p',
                    COALESCE((SELECT array_agg(f.proargnames[n] ORDER BY n)
                        FROM generate_series(1, f.pronargs) n), '{}'),
                    COALESCE((SELECT array_agg(format_type(a, NULL) ORDER BY n)
                        FROM unnest(f.proargtypes) WITH ORDINALITY t (a, n)), '{}')
               FROM pg_proc f
               JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = f.oid
                AND d.deptype = 'e'
               JOIN pg_extension x ON d.refclassid = 'pg_extension'::regclass AND x.oid = d.refobjid
                AND x.extname = 'idem'
              WHERE f.pronamespace <> 'idem'::regnamespace
              ORDER BY f.oid::regprocedure::text",
            &[],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| Function {
            name: row.get(0),
            is_procedure: row.get(1),
            arguments: row
                .get::<_, Vec<String>>(2)
                .into_iter()
                .zip(row.get::<_, Vec<String>>(3))
                .collect(),
        })
        .collect())
}

/// Returns a hash of the rows of each table in schema idem, by table name.
async fn contents(session: &Session) -> Result<BTreeMap<String, String>> {
    let rows = session
        .query(
            "SELECT relname::text, md5(query_to_xml('SELECT t::text FROM idem.' ||
                 quote_ident(relname) || ' AS t ORDER BY 1', true, false, '')::text)
               FROM pg_class WHERE relnamespace = 'idem'::regnamespace AND relkind = 'r'",
            &[],
        )
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Creates a database with the state of [`FIXTURE`], in a cluster without a worker. A worker would
/// change tables, for example store a reading of the clock, while a test compares them.
async fn fixture(name: &str) -> Result<(Database, Session)> {
    let db = Database::without_worker(name).await?;
    let session = db.connect().await?;
    for transaction in FIXTURE {
        session.run(transaction).await?;
    }
    Ok((db, session))
}

/// Returns the SQL that must be executed in the same transaction before the function can succeed.
fn preparation(function: &Function) -> &'static str {
    PREPARATIONS
        .iter()
        .find(|(name, _)| *name == function.name)
        .map_or("", |(_, sql)| *sql)
}

fn check(statement: &str, refusal: &Refusal, sqlstate: &str) -> Result<()> {
    ensure!(
        refusal.sqlstate == sqlstate,
        "{statement}\n{sqlstate} expected: {refusal:?}"
    );
    ensure!(!refusal.message.is_empty(), "{statement}: {refusal:?}");
    if ["22023", "55000", "42704", "42710", "25000"].contains(&sqlstate) {
        ensure!(
            !refusal.hint.is_empty(),
            "{statement}: no hint: {refusal:?}"
        );
    }
    // The message must be an error message of idem and not the text of a Rust panic.
    ensure!(
        !refusal.message.contains("unwrap") && !refusal.message.contains(".rs:"),
        "{statement}: {refusal:?}"
    );
    ensure!(
        refusal.detail.is_empty() || !refusal.detail.contains("backtrace"),
        "{statement}: {refusal:?}"
    );
    Ok(())
}

/// Each invalid argument fails with the documented SQLSTATE and changes no table.
#[tokio::test]
async fn invalid_arguments_fail_as_documented() -> Result<()> {
    let (_db, session) = fixture("bad_input").await?;
    let pid = session.pid().await?;
    let before = contents(&session).await?;
    ensure!(before.len() > 20, "tables are missing: {before:?}");

    let mut used = BTreeSet::new();
    for function in functions(&session).await? {
        for (name, of_type) in &function.arguments {
            let with_null = function.statement(&[(name, "NULL")])?;
            if NULL_IS_VALID.contains(&(function.name.as_str(), name)) {
                session
                    .run(&format!(
                        "BEGIN; {}; {with_null}; ROLLBACK",
                        preparation(&function)
                    ))
                    .await?;
            } else {
                check(&with_null, &session.refused(&with_null).await?, "22004")?;
            }
            for (line, bad) in BAD.iter().enumerate() {
                if (bad.function == "any"
                    || bad.function.split(' ').any(|name| name == function.name))
                    && bad.argument == name
                    && bad.of_type == of_type
                {
                    used.insert(line);
                    let statement = function.statement(&[(name, bad.value)])?;
                    check(
                        &statement,
                        &session.refused(&statement).await?,
                        bad.sqlstate,
                    )?;
                }
            }
        }
        assert_eq!(
            contents(&session).await?,
            before,
            "{} has changed a table",
            function.signature()
        );
    }
    let unused: Vec<_> = (0..BAD.len())
        .filter(|line| !used.contains(line))
        .map(|line| &BAD[line])
        .collect();
    assert!(
        unused.is_empty(),
        "lines that match no function: {unused:?}"
    );
    assert_eq!(session.pid().await?, pid, "the backend is the same");
    assert_eq!(
        session
            .text("SELECT idem_try_claim('after all that', 'orders')")
            .await?,
        "t"
    );
    Ok(())
}

/// The valid arguments succeed. This shows that the errors in the test of invalid arguments are
/// caused by the invalid arguments.
#[tokio::test]
async fn valid_arguments_are_accepted() -> Result<()> {
    let (_db, session) = fixture("usual_input").await?;
    for function in functions(&session).await? {
        let statement = function.statement(&[])?;
        if function.is_procedure {
            session.run(&statement).await?;
            continue;
        }
        session
            .run(&format!(
                "BEGIN; {}; {statement}; ROLLBACK",
                preparation(&function)
            ))
            .await
            .with_context(|| function.signature())?;
        // The server raises a warning when a function has not released a page or a table.
        let warnings = session.notices();
        assert!(
            warnings.iter().all(|notice| notice.severity != "WARNING"),
            "{}: {warnings:?}",
            function.signature()
        );
    }
    Ok(())
}

/// The functions that work on a server that has not preloaded the library.
const NEED_NO_LIBRARY: &[&str] = &["idem_health"];

/// I12: on a server that has not preloaded the library each function fails with 58000.
#[tokio::test]
async fn i12_functions_fail_without_preloading() -> Result<()> {
    let mut server = Cluster::builder(&Install::from_env()?)
        .name("not-preloaded")
        .start()?;
    let session = Session::in_database_with_idem(&server, "app").await?;
    for transaction in FIXTURE {
        session.run(transaction).await?;
    }
    let functions = functions(&session).await?;
    drop(session);
    server.configure("shared_preload_libraries", None)?;
    server.restart()?;
    let session = Session::superuser(&server, "app").await?;
    let mut other_results = Vec::new();
    for function in functions {
        let statement = function.statement(&[])?;
        if NEED_NO_LIBRARY.contains(&function.name.as_str()) {
            session.run(&statement).await?;
            continue;
        }
        match session.refused(&statement).await {
            Ok(refusal)
                if refusal.sqlstate == "58000"
                    && refusal.hint.contains("shared_preload_libraries") => {}
            other => other_results.push(format!("{}: {other:?}", function.signature())),
        }
    }
    ensure!(other_results.is_empty(), "{}", other_results.join("\n"));
    Ok(())
}

/// In a read-only transaction a function that writes fails with 25006, and a function that reads
/// succeeds.
#[tokio::test]
async fn read_only_transaction_rejects_functions_that_write() -> Result<()> {
    let (_db, session) = fixture("read_only").await?;
    let before = contents(&session).await?;
    session
        .run("SET default_transaction_read_only = on")
        .await?;
    for function in functions(&session).await? {
        let statement = function.statement(&[])?;
        if READERS.contains(&function.name.as_str()) {
            let statement = match function.name.as_str() {
                "idem_forbid_commit" | "idem_allow_commit" => {
                    format!("BEGIN; {}; {statement}; ROLLBACK", preparation(&function))
                }
                _ => statement,
            };
            session
                .run(&statement)
                .await
                .with_context(|| function.signature())?;
        } else {
            check(&statement, &session.refused(&statement).await?, "25006")?;
        }
    }
    assert_eq!(contents(&session).await?, before);
    Ok(())
}

/// A function that must see the newest state fails with 25000 at REPEATABLE READ and SERIALIZABLE.
#[tokio::test]
async fn functions_that_need_read_committed_fail_at_other_levels() -> Result<()> {
    let (_db, session) = fixture("read_committed").await?;
    for level in ["repeatable read", "serializable"] {
        session
            .run(&format!("SET default_transaction_isolation = '{level}'"))
            .await?;
        let before = contents(&session).await?;
        for function in functions(&session).await? {
            if READ_COMMITTED_ONLY.contains(&function.name.as_str()) {
                let statement = function.statement(&[])?;
                check(&statement, &session.refused(&statement).await?, "25000")?;
            }
        }
        assert_eq!(contents(&session).await?, before);
    }
    Ok(())
}

/// An unknown destination or id has no claim, effects, external calls or dead letter, and the
/// functions write nothing for it.
#[tokio::test]
async fn unknown_destination_or_id_has_no_state() -> Result<()> {
    let (_db, session) = fixture("unknown").await?;
    let before = contents(&session).await?;
    for (id, destination) in [
        ("'unknown'", "'orders'"),
        ("'claimed'", "'unknown'"),
        ("gen_random_uuid()", "'orders'"),
    ] {
        for (function, result) in [
            ("idem_is_claimed", "f"),
            ("idem_effects", ""),
            ("idem_forget", "f"),
            ("idem_replay_effects", "0"),
            ("idem_calls", ""),
            ("idem_requeue", "f"),
            ("idem_discard", "f"),
        ] {
            let statement = format!("SELECT * FROM {function}({id}, {destination})");
            assert_eq!(session.text(&statement).await?, result, "{statement}");
        }
    }
    assert_eq!(contents(&session).await?, before);
    Ok(())
}

/// A transaction that continues after ROLLBACK TO SAVEPOINT keeps the results of the successful
/// statements and no result of the failed statements.
#[tokio::test]
async fn error_after_a_savepoint_keeps_the_transaction() -> Result<()> {
    let (_db, session) = fixture("savepoint").await?;
    session
        .run("BEGIN; SELECT idem_try_claim('kept', 'orders')")
        .await?;
    for bad in [
        "SELECT idem_try_claim_batch(ARRAY['half 1', 'half 2', NULL], 'orders')",
        "SELECT idem_try_claim('half 3', 'a new destination'), idem_try_claim('', 'orders')",
        r#"SELECT idem_record_effects('kept', 'orders',
               '[{"topic": "half", "payload": 1}, {"topic": "half"}]')"#,
        r#"SELECT idem_try_record('half 4', 'orders',
               '[{"topic": "half", "payload": 1}, {"topic": ""}]')"#,
        "SELECT idem_receive('half 5', 'orders', '1'::jsonb),
                idem_receive('half 6', 'orders', '1'::jsonb, key => '')",
        "SELECT idem_acquire('half 7', 'orders'), idem_acquire('half 8', 'orders', lease => '0')",
        "SELECT idem_begin_call('half 9', 'orders', 'charge'),
                idem_begin_call('half 10', 'orders', '')",
    ] {
        session.run("SAVEPOINT s").await?;
        assert!(
            ["22004", "22023"].contains(&session.refused(bad).await?.sqlstate.as_str()),
            "{bad}"
        );
        session.run("ROLLBACK TO SAVEPOINT s").await?;
    }
    session
        .run(
            r#"SELECT idem_record_effects('kept', 'orders', '{"topic": "whole", "payload": 1}');
               COMMIT"#,
        )
        .await?;
    assert_eq!(
        session
            .text(
                "SELECT id, destination FROM idem.inbox
                  WHERE id = 'kept' OR id LIKE 'half%' OR destination LIKE 'a new%'"
            )
            .await?,
        "kept|orders"
    );
    assert_eq!(
        session
            .text("SELECT ordinal, topic FROM idem.outbox_row WHERE topic IN ('half', 'whole')")
            .await?,
        "0|whole"
    );
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem.pending WHERE id LIKE 'half%'")
            .await?,
        "0"
    );
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem_calls('half 9', 'orders')")
            .await?,
        "0"
    );
    Ok(())
}
