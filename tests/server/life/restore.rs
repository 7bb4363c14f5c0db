//! Restores beside the worker (I1, I4, I6, I12): pg_restore loads one table after the other, in any
//! order, and passes of the worker fall in between.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use idem_cluster::Cluster;
use idem_testkit::{Dump, Session, until};

use super::cluster;

/// The number of claims in the dump.
const CLAIMS: u32 = 1000;

/// The state of an old database: its clock shows weeks, and its messages, payloads and external
/// calls are in slices that a new database would empty first.
const AGED: &str = "
    UPDATE idem.clock SET ran = '60 days', zero_at = zero_at - interval '60 days';
    UPDATE idem.ring SET slices = '{2,3,4,5,6,7,0,1}', rotated_at = '60 days'
     WHERE name <> 'outbox';
    UPDATE idem.ring SET rotated_at = '60 days' WHERE name = 'outbox';
    UPDATE idem.pending_rotation SET current = 1;
    UPDATE idem.payload_rotation SET current = 1";

fn server() -> Result<Cluster> {
    cluster("restored")?
        .setting("idem.naptime", "100ms")
        .setting("autovacuum", "off")
        .start()
}

/// Fills the database `original`: claims, a received message and an external call without a result.
async fn original(cluster: &Cluster, claims: u32) -> Result<Session> {
    let session = Session::in_database_with_idem(cluster, "original").await?;
    session.run(AGED).await?;
    session
        .run(&format!(
            "SELECT idem_try_claim_batch(ARRAY(SELECT 'm' || n FROM generate_series(1, {claims}) n),
                                         'orders')"
        ))
        .await?;
    session
        .run("SELECT idem_receive('received', 'mail', '\"letter\"'::jsonb)")
        .await?;
    session
        .run("SELECT idem_begin_call('paid', 'orders', 'charge')")
        .await?;
    Ok(session)
}

/// Waits until the worker has begun and ended a pass over the database of the session.
async fn until_pass(session: &Session) -> Result<()> {
    for _ in 0..2 {
        let began = Instant::now();
        until("the worker has ended a pass", async || {
            let since = session
                .text("SELECT extract(epoch FROM since_pass) FROM idem.worker_state()")
                .await?;
            let since: f64 = since.parse().unwrap_or(f64::MAX);
            Ok(since < began.elapsed().as_secs_f64())
        })
        .await?;
    }
    Ok(())
}

/// Asserts that the functions fail and that health reports the restore.
pub(super) async fn assert_restoring(session: &Session) -> Result<()> {
    for call in [
        "idem_try_claim('m1', 'orders')",
        "idem_try_claim_batch('{m1}', 'orders')",
        "idem_acquire('m1', 'orders', '1 minute')",
        "idem_receive('m1', 'orders', '1'::jsonb)",
        "idem_next('mail', 1)",
        "idem_begin_call('paid', 'orders', 'charge')",
        "idem_send('t', '1'::jsonb)",
        "idem_relay_next('default')",
        "idem_is_claimed('m1', 'orders')",
        "idem_new_installation()",
    ] {
        let refusal = session.refused(&format!("SELECT {call}")).await?;
        assert_eq!(refusal.sqlstate, "58000", "{call}: {refusal:?}");
        ensure!(
            refusal.hint.contains("pg_restore has ended"),
            "{call}: {refusal:?}"
        );
    }
    let health = session
        .text("SELECT status, detail FROM idem_health() WHERE check_name = 'restore'")
        .await?;
    ensure!(
        health.starts_with("critical|") && health.contains("idem_finish_restore()"),
        "{health}"
    );
    Ok(())
}

/// Asserts that the database has everything that the original has.
async fn assert_complete(session: &Session, claims: u32) -> Result<()> {
    until_pass(session).await?;
    let health = session
        .text("SELECT status FROM idem_health() WHERE check_name = 'restore'")
        .await?;
    assert_eq!(health, "ok");
    let again = session
        .text(&format!(
            "SELECT count(*) FROM unnest(idem_try_claim_batch(
                 ARRAY(SELECT 'm' || n FROM generate_series(1, {claims}) n), 'orders')) AS c (again)
              WHERE again"
        ))
        .await?;
    assert_eq!(again, "0", "claims that were made again");
    let state = "SELECT state FROM idem_begin_call('paid', 'orders', 'charge')";
    assert_eq!(session.text(state).await?, "unknown");
    let next = "SELECT id, convert_from(payload, 'UTF8') FROM idem_next('mail', 1)";
    assert_eq!(session.text(next).await?, "received|\"letter\"");
    Ok(())
}

/// Returns the entries that load the rows of the tables, in this order, and the other entries.
pub(super) fn pick(entries: &[String], tables: &[&str]) -> (Vec<String>, Vec<String>) {
    let is_of = |entry: &str, table: &str| entry.contains(&format!(" TABLE DATA idem {table} "));
    let picked = tables
        .iter()
        .flat_map(|table| entries.iter().filter(|entry| is_of(entry, table)));
    let picked: Vec<_> = picked.cloned().collect();
    let rest = entries.iter().filter(|entry| !picked.contains(entry));
    let rest = rest.cloned().collect();
    (picked, rest)
}

/// I1, I4, I6. Goal: passes of the worker between the tables of a restore remove nothing, whatever
/// is loaded first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i4_i6_restore_beside_the_worker_loses_nothing() -> Result<()> {
    let server = server()?;
    original(&server, CLAIMS).await?;
    let dump = Dump::of(&server, "original")?;
    let entries = dump.entries(&server)?;
    let state = [
        "clock",
        "ring",
        "installation",
        "pending_rotation",
        "payload_rotation",
    ];
    for (name, first) in [
        ("clock_first", &["clock"][..]),
        ("state_first", &state[..]),
        ("ring_first", &["ring", "clock"]),
        ("destinations_first", &["payload_1", "destination"]),
    ] {
        let session = Session::in_empty_database(&server, name).await?;
        dump.load(&server, name, &["--section=pre-data"])?;
        let (first, rest) = pick(&entries, first);
        ensure!(!first.is_empty(), "{name}");
        dump.load_entries(&server, name, &first)?;
        until_pass(&session).await?;
        assert_restoring(&session).await?;
        let (last, rest) = pick(&rest, &["pending_rotation", "ring"]);
        let rest: Vec<_> = rest
            .into_iter()
            .filter(|entry| entry.contains(" TABLE DATA ") || entry.contains(" SEQUENCE SET "))
            .collect();
        dump.load_entries(&server, name, &rest)?;
        until_pass(&session).await?;
        assert_restoring(&session).await?;
        if !last.is_empty() {
            let refusal = session.refused("SELECT idem_finish_restore()").await?;
            assert_eq!(refusal.sqlstate, "55000", "{name}: {refusal:?}");
            dump.load_entries(&server, name, &last)?;
        }
        until_pass(&session).await?;
        session.run("SELECT idem_finish_restore()").await?;
        assert_complete(&session, CLAIMS).await?;
        session.run("SELECT idem_finish_restore()").await?;
    }
    Ok(())
}

/// I1, I4, I6. Goal: real restores with the options of pg_restore, large enough that passes of the
/// worker fall in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i4_i6_each_way_to_restore_keeps_all() -> Result<()> {
    let claims = 100_000;
    let server = server()?;
    original(&server, claims).await?;
    let dump = Dump::of(&server, "original")?;
    for (name, options) in [
        ("plain", &[][..]),
        ("parallel", &["--jobs=4"][..]),
        ("together", &["--single-transaction"]),
    ] {
        let session = Session::in_empty_database(&server, name).await?;
        dump.load(&server, name, options)?;
        if name == "together" {
            ensure!(session.text("SELECT idem.is_restoring()").await? == "f");
        } else {
            assert_restores_and_finishes(&session).await?;
        }
        assert_complete(&session, claims).await?;
    }
    Ok(())
}

async fn assert_restores_and_finishes(session: &Session) -> Result<()> {
    let refusal = session
        .refused("SELECT idem_try_claim('m1', 'orders')")
        .await?;
    assert_eq!(refusal.sqlstate, "58000", "{refusal:?}");
    session.run("SELECT idem_finish_restore()").await
}

pub(super) fn start_restore(
    server: &Cluster,
    file: &Path,
    database: &str,
    options: &[&str],
) -> Result<Child> {
    let mut restore = server.command("pg_restore")?;
    restore.args(options).args(["--dbname", database]).arg(file);
    restore
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start pg_restore")
}

/// I1, I4, I12. Goal: a restore that is killed is not taken for a complete one, and is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i12_killed_restore_cannot_be_finished_and_is_repeated() -> Result<()> {
    let server = server()?;
    original(&server, CLAIMS).await?;
    let dump = Dump::of(&server, "original")?;
    let session = Session::in_empty_database(&server, "killed").await?;
    dump.load(&server, "killed", &["--section=pre-data"])?;
    // The load of the last table of state waits for this lock.
    let holder = Session::superuser(&server, "killed").await?;
    holder
        .run("BEGIN; LOCK TABLE idem.ring IN SHARE MODE")
        .await?;
    let mut restore = start_restore(&server, dump.file(), "killed", &["--section=data"])?;
    until("pg_restore waits", async || {
        let waits = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = 'killed' AND wait_event_type = 'Lock' AND query ~ '^COPY'";
        Ok(session.text(waits).await? == "1")
    })
    .await?;
    let refusal = session.refused("SELECT idem_finish_restore()").await?;
    assert_eq!(refusal.sqlstate, "55P03", "{refusal:?}");
    restore.kill()?;
    restore.wait()?;
    until("the session of pg_restore has ended", async || {
        let ends = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                     WHERE datname = 'killed' AND query ~ '^COPY'";
        Ok(session.text(ends).await? == "0")
    })
    .await?;
    holder.run("COMMIT").await?;
    until_pass(&session).await?;
    assert_restoring(&session).await?;
    let refusal = session.refused("SELECT idem_finish_restore()").await?;
    ensure!(refusal.detail.contains("idem.ring"), "{refusal:?}");

    dump.load(&server, "killed", &["--clean", "--if-exists"])?;
    assert_restores_and_finishes(&session).await?;
    assert_complete(&session, CLAIMS).await
}

/// I4. Goal: the check of the restore names each kind of row that is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i12_restore_is_not_finished_while_rows_are_missing() -> Result<()> {
    let server = server()?;
    let session = original(&server, 10).await?;
    session
        .run("SELECT idem_create_relay('audit', 2), idem_send('t', '1'::jsonb)")
        .await?;
    let dump = Dump::of(&server, "original")?;
    let entries = dump.entries(&server)?;
    for (table, missing) in [
        ("installation", "idem.installation"),
        ("relay", "idem.relay"),
        ("destination", "destination"),
        ("payload_1", "payload"),
        ("relay_partition", "partitions of relay \"audit\""),
    ] {
        let session = Session::in_empty_database(&server, table).await?;
        dump.load(&server, table, &["--section=pre-data"])?;
        let (last, rest) = pick(&entries, &[table]);
        let is_data =
            |entry: &String| entry.contains(" TABLE DATA ") || entry.contains(" SEQUENCE SET ");
        let rest: Vec<_> = rest.into_iter().filter(is_data).collect();
        dump.load_entries(&server, table, &rest)?;
        let refusal = session.refused("SELECT idem_finish_restore()").await?;
        assert_eq!(refusal.sqlstate, "55000", "{table}: {refusal:?}");
        ensure!(refusal.detail.contains(missing), "{table}: {refusal:?}");
        dump.load_entries(&server, table, &last)?;
        session.run("SELECT idem_finish_restore()").await?;
    }
    let session = Session::in_empty_database(&server, "sequences").await?;
    dump.load(&server, "sequences", &["--section=pre-data"])?;
    let rows: Vec<_> = entries
        .iter()
        .filter(|entry| entry.contains(" TABLE DATA "))
        .cloned()
        .collect();
    dump.load_entries(&server, "sequences", &rows)?;
    let refusal = session.refused("SELECT idem_finish_restore()").await?;
    ensure!(refusal.detail.contains("sequence"), "{refusal:?}");
    Ok(())
}

/// I4. Goal: payloads that are loaded before anything else are not truncated, because no row refers
/// to them yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_payloads_that_are_loaded_first_are_kept() -> Result<()> {
    let server = server()?;
    original(&server, 10).await?;
    let dump = Dump::of(&server, "original")?;
    let session = Session::in_empty_database(&server, "early").await?;
    dump.load(&server, "early", &["--section=pre-data"])?;
    let (payloads, _) = pick(&dump.entries(&server)?, &["payload_1", "inbox_standard_2"]);
    dump.load_entries(&server, "early", &payloads)?;
    for _ in 0..4 {
        session
            .run("SELECT idem.rotate_payloads(quiet_time => '0 seconds')")
            .await?;
    }
    let count = "SELECT count(*) FROM idem.payload_1";
    assert_eq!(session.text(count).await?, "1");
    session
        .run("UPDATE idem.ring SET phase = 'emptying' WHERE name = 'standard'")
        .await?;
    session
        .run("UPDATE idem.ring SET slices = '{1,2,3,4,5,6,7,0}' WHERE name = 'standard'")
        .await?;
    let step = session.text("SELECT idem.rotate('standard')").await?;
    assert_eq!(step, "restoring");
    let count = "SELECT count(*) FROM idem.inbox_standard_2";
    assert_eq!(session.text(count).await?, "10");
    Ok(())
}

/// I12. Goal: a destination that a person has inserted by hand begins a restore, which can be
/// finished.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i12_destination_by_hand_is_finished() -> Result<()> {
    let server = server()?;
    let session = Session::in_database_with_idem(&server, "by_hand").await?;
    session
        .run("INSERT INTO idem.destination (id, name) VALUES (7, 'orders')")
        .await?;
    let claim = "SELECT idem_try_claim('m', 'orders')";
    assert_eq!(session.refused(claim).await?.sqlstate, "58000");
    session.run("SELECT idem_finish_restore()").await?;
    assert_eq!(session.text(claim).await?, "t");
    Ok(())
}
