//! What the calls refuse: the SQLSTATE and the hint of every argument that cannot be meant, of
//! every call there is. A refusal leaves every table as it was and the session alive.
//!
//! [`table`] is data; a call that is in no line of it fails
//! [`every_argument_is_refused_as_documented`].

mod table;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use idem_tests::harness::{Database, Refusal, Session};

use table::{
    BAD, BEFORE, CALLS, IN_BLOCK_ONLY, NULL_IS_AN_ANSWER, READ_COMMITTED_ONLY, READERS, SCENERY,
};

/// A call of the API as the catalog has it.
struct Call {
    name: String,
    is_procedure: bool,
    /// Name and type.
    arguments: Vec<(String, String)>,
}

impl Call {
    /// `name(type, type)`, for people.
    fn signature(&self) -> String {
        let types: Vec<_> = self
            .arguments
            .iter()
            .map(|(_, of_type)| of_type.as_str())
            .collect();
        format!("{}({})", self.name, types.join(", "))
    }

    /// The statement that calls it with what is usual, but for the arguments given.
    fn statement(&self, but: &[(&str, &str)]) -> Result<String> {
        let mut arguments = Vec::new();
        for (name, of_type) in &self.arguments {
            let value = match but.iter().find(|(changed, _)| changed == name) {
                Some((_, value)) => *value,
                None => self.usual(name, of_type)?,
            };
            arguments.push(format!("({value})::{of_type}"));
        }
        let verb = if self.is_procedure { "CALL" } else { "SELECT" };
        // Two statements in one text are a transaction block.
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

    /// An argument that is in order.
    fn usual(&self, name: &str, of_type: &str) -> Result<&'static str> {
        CALLS
            .iter()
            .filter(|(call, _)| *call == "any" || *call == self.name)
            .flat_map(|(_, arguments)| *arguments)
            .find(|(argument, its_type, _)| *argument == name && *its_type == of_type)
            .map(|(_, _, value)| *value)
            .with_context(|| {
                format!(
                    "{} has an argument {name} {of_type} that tests/bad_input does not know",
                    self.signature()
                )
            })
    }
}

/// The calls: what the extension put outside its own schema.
async fn calls(session: &Session) -> Result<Vec<Call>> {
    let rows = session
        .query(
            "SELECT f.proname, f.prokind = 'p',
                    COALESCE((SELECT array_agg(f.proargnames[n] ORDER BY n) FROM generate_series(1, f.pronargs) n), '{}'),
                    COALESCE((SELECT array_agg(format_type(a, NULL) ORDER BY n) FROM unnest(f.proargtypes) WITH ORDINALITY t (a, n)), '{}')
               FROM pg_proc f
               JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = f.oid AND d.deptype = 'e'
               JOIN pg_extension x ON d.refclassid = 'pg_extension'::regclass AND x.oid = d.refobjid AND x.extname = 'idem'
              WHERE f.pronamespace <> 'idem'::regnamespace
              ORDER BY f.oid::regprocedure::text",
            &[],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| Call {
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

/// Everything that is in the tables of schema idem.
async fn contents(session: &Session) -> Result<BTreeMap<String, String>> {
    let rows = session
        .query(
            "SELECT relname::text, md5(query_to_xml('SELECT t::text FROM idem.' || quote_ident(relname) || ' AS t ORDER BY 1', true, false, '')::text)
               FROM pg_class WHERE relnamespace = 'idem'::regnamespace AND relkind = 'r'",
            &[],
        )
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

async fn scene(name: &str) -> Result<(Database, Session)> {
    let db = Database::with_idem(name).await?;
    let session = db.connect().await?;
    for transaction in SCENERY {
        session.run(transaction).await?;
    }
    Ok((db, session))
}

/// What must be done in the same transaction before this call can succeed.
fn before_it(call: &Call) -> &'static str {
    BEFORE
        .iter()
        .find(|(name, _)| *name == call.name)
        .map_or("", |(_, sql)| *sql)
}

fn check(call: &str, refusal: &Refusal, sqlstate: &str) -> Result<()> {
    ensure!(
        refusal.sqlstate == sqlstate,
        "{call}\n{sqlstate} expected: {refusal:?}"
    );
    ensure!(!refusal.message.is_empty(), "{call}: {refusal:?}");
    if ["22023", "55000", "42704", "42710", "25000"].contains(&sqlstate) {
        ensure!(!refusal.hint.is_empty(), "{call}: no hint: {refusal:?}");
    }
    // A message of the calls, not of an assertion somewhere below them.
    ensure!(
        !refusal.message.contains("unwrap") && !refusal.message.contains(".rs:"),
        "{call}: {refusal:?}"
    );
    ensure!(
        refusal.detail.is_empty() || !refusal.detail.contains("backtrace"),
        "{call}: {refusal:?}"
    );
    Ok(())
}

#[tokio::test]
async fn every_argument_is_refused_as_documented() -> Result<()> {
    let (_db, session) = scene("bad_input").await?;
    let pid = session.pid().await?;
    let before = contents(&session).await?;
    ensure!(before.len() > 20, "the tables are there: {before:?}");

    let mut used = BTreeSet::new();
    for call in calls(&session).await? {
        for (name, of_type) in &call.arguments {
            let with_null = call.statement(&[(name, "NULL")])?;
            if NULL_IS_AN_ANSWER.contains(&(call.name.as_str(), name)) {
                session
                    .run(&format!(
                        "BEGIN; {}; {with_null}; ROLLBACK",
                        before_it(&call)
                    ))
                    .await?;
            } else {
                check(&with_null, &session.refused(&with_null).await?, "22004")?;
            }
            for (line, bad) in BAD.iter().enumerate() {
                if (bad.call == "any" || bad.call.split(' ').any(|name| name == call.name))
                    && bad.argument == name
                    && bad.of_type == of_type
                {
                    used.insert(line);
                    let statement = call.statement(&[(name, bad.value)])?;
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
            "{} has left something behind",
            call.signature()
        );
    }
    let unused: Vec<_> = (0..BAD.len())
        .filter(|line| !used.contains(line))
        .map(|line| &BAD[line])
        .collect();
    assert!(unused.is_empty(), "lines that fit no call: {unused:?}");
    assert_eq!(session.pid().await?, pid, "the session has survived");
    assert_eq!(
        session
            .text("SELECT idem_try_claim('after all that', 'orders')")
            .await?,
        "t"
    );
    Ok(())
}

/// What is usual must be in order, or the table above proves nothing.
#[tokio::test]
async fn the_usual_arguments_are_accepted() -> Result<()> {
    let (_db, session) = scene("usual_input").await?;
    for call in calls(&session).await? {
        let statement = call.statement(&[])?;
        if call.is_procedure {
            session.run(&statement).await?;
            continue;
        }
        session
            .run(&format!(
                "BEGIN; {}; {statement}; ROLLBACK",
                before_it(&call)
            ))
            .await
            .with_context(|| call.signature())?;
        // A page or a table that a call forgot to let go of.
        let warnings = session.notices();
        assert!(
            warnings.iter().all(|notice| notice.severity != "WARNING"),
            "{}: {warnings:?}",
            call.signature()
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_read_only_transaction_refuses_what_writes_and_serves_what_reads() -> Result<()> {
    let (_db, session) = scene("read_only").await?;
    let before = contents(&session).await?;
    session
        .run("SET default_transaction_read_only = on")
        .await?;
    for call in calls(&session).await? {
        let statement = call.statement(&[])?;
        if READERS.contains(&call.name.as_str()) {
            session
                .run(&statement)
                .await
                .with_context(|| call.signature())?;
        } else {
            check(&statement, &session.refused(&statement).await?, "25006")?;
        }
    }
    assert_eq!(contents(&session).await?, before);
    Ok(())
}

#[tokio::test]
async fn relays_and_maintenance_refuse_a_snapshot_that_is_not_of_now() -> Result<()> {
    let (_db, session) = scene("read_committed").await?;
    for level in ["repeatable read", "serializable"] {
        session
            .run(&format!("SET default_transaction_isolation = '{level}'"))
            .await?;
        let before = contents(&session).await?;
        for call in calls(&session).await? {
            if READ_COMMITTED_ONLY.contains(&call.name.as_str()) {
                let statement = call.statement(&[])?;
                check(&statement, &session.refused(&statement).await?, "25000")?;
            }
        }
        assert_eq!(contents(&session).await?, before);
    }
    Ok(())
}

#[tokio::test]
async fn an_unknown_destination_or_id_is_not_claimed_and_has_neither_effects_nor_calls_nor_a_letter()
-> Result<()> {
    let (_db, session) = scene("unknown").await?;
    let before = contents(&session).await?;
    for (id, destination) in [
        ("'unknown'", "'orders'"),
        ("'claimed'", "'unknown'"),
        ("gen_random_uuid()", "'orders'"),
    ] {
        for (call, answer) in [
            ("idem_is_claimed", "f"),
            ("idem_effects", ""),
            ("idem_forget", "f"),
            ("idem_replay_effects", "0"),
            ("idem_calls", ""),
            ("idem_requeue", "f"),
            ("idem_discard", "f"),
        ] {
            let statement = format!("SELECT * FROM {call}({id}, {destination})");
            assert_eq!(session.text(&statement).await?, answer, "{statement}");
        }
    }
    assert_eq!(contents(&session).await?, before);
    Ok(())
}

/// A transaction that goes on behind a savepoint has nothing of what was refused, and all of what
/// was not.
#[tokio::test]
async fn a_refusal_behind_a_savepoint_takes_nothing_else_with_it() -> Result<()> {
    let (_db, session) = scene("savepoint").await?;
    session
        .run("BEGIN; SELECT idem_try_claim('kept', 'orders')")
        .await?;
    for bad in [
        "SELECT idem_try_claim_batch(ARRAY['half 1', 'half 2', NULL], 'orders')",
        "SELECT idem_try_claim('half 3', 'a new destination'), idem_try_claim('', 'orders')",
        r#"SELECT idem_record_effects('kept', 'orders', '[{"topic": "half", "payload": 1}, {"topic": "half"}]')"#,
        r#"SELECT idem_try_record('half 4', 'orders', '[{"topic": "half", "payload": 1}, {"topic": ""}]')"#,
        "SELECT idem_receive('half 5', 'orders', '1'::jsonb), idem_receive('half 6', 'orders', '1'::jsonb, key => '')",
        "SELECT idem_acquire('half 7', 'orders'), idem_acquire('half 8', 'orders', lease => '0')",
        "SELECT idem_begin_call('half 9', 'orders', 'charge'), idem_begin_call('half 10', 'orders', '')",
    ] {
        session.run("SAVEPOINT s").await?;
        assert!(
            ["22004", "22023"].contains(&session.refused(bad).await?.sqlstate.as_str()),
            "{bad}"
        );
        session.run("ROLLBACK TO SAVEPOINT s").await?;
    }
    session
        .run(r#"SELECT idem_record_effects('kept', 'orders', '{"topic": "whole", "payload": 1}'); COMMIT"#)
        .await?;
    assert_eq!(
        session
            .text("SELECT id, destination FROM idem.inbox WHERE id = 'kept' OR id LIKE 'half%' OR destination LIKE 'a new%'")
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
