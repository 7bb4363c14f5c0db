//! Tests of the lifetime of external calls. A call is kept as long as its claim: over rotations,
//! dumps and moves between rings, and on standbys. TRUNCATE removes calls, as it removes claims.

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install};
use idem_testkit::ring::{SEALED, make_due};
use idem_testkit::{Dump, Session, until};

use super::{begin, calls, finish};

/// Starts a server on which only the test rotates the rings. Returns the server, and a session in
/// one of its databases.
async fn server(name: &str) -> Result<(Cluster, Session)> {
    let cluster = Cluster::builder(&Install::from_env()?)
        .name(name)
        .setting("shared_buffers", "32MB")
        .setting("autovacuum", "off")
        .setting("idem.databases", "none")
        .start()?;
    Session::superuser(&cluster, "postgres")
        .await?
        .run("CREATE DATABASE journal TEMPLATE template0")
        .await?;
    let session = Session::superuser(&cluster, "journal").await?;
    session.run("CREATE EXTENSION idem").await?;
    Ok((cluster, session))
}

async fn rotate(session: &Session, step: &str) -> Result<()> {
    assert_eq!(session.text("SELECT idem.rotate('standard')").await?, step);
    Ok(())
}

const DEAD: &str = "SELECT sum(n_dead_tup), sum(n_tup_upd + n_tup_del), sum(n_tup_ins) > 0
                      FROM pg_stat_all_tables WHERE schemaname = 'idem' AND relname LIKE 'call%'";

const BYTES: &str = "SELECT sum(pg_relation_size(oid)) FROM pg_class \
                     WHERE relname LIKE 'call\\_standard\\__' AND relkind = 'r'";

/// I6, I7: a call is kept as long as its claim, and TRUNCATE removes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_i7_call_is_kept_with_its_claim_and_truncated() -> Result<()> {
    let (_cluster, session) = server("rotating").await?;
    let mut remembered = Vec::new();
    for rotation in 0..SEALED + 4 {
        let id = format!("m{rotation}");
        assert_eq!(
            session
                .text(&format!("SELECT idem_try_claim('{id}', 'orders')"))
                .await?,
            "t"
        );
        assert_eq!(begin(&session, &id).await?, "new|1");
        finish(&session, &id, "{\"n\": 1}").await?;
        remembered.push(id);

        make_due(&session, "standard").await?;
        rotate(&session, "opened").await?;
        // This call begins while the ring is opening, so it is in two slices. It must be returned
        // once.
        let id = format!("opening {rotation}");
        session
            .text(&format!("SELECT idem_try_claim('{id}', 'orders')"))
            .await?;
        assert_eq!(begin(&session, &id).await?, "new|1");
        finish(&session, &id, "{\"n\": 1}").await?;
        remembered.push(id);
        for step in ["rotated", "emptied"] {
            rotate(&session, step).await?;
        }
        let mut kept = 0;
        for id in &remembered {
            let claimed = session
                .text(&format!("SELECT idem_is_claimed('{id}', 'orders')"))
                .await?;
            let known = calls(&session, id).await?;
            if claimed == "t" {
                kept += 1;
                assert_eq!(
                    known, "charge|done|1|{\"n\": 1}|NULL",
                    "{id} after rotation {rotation}"
                );
                assert_eq!(begin(&session, id).await?, "done|1");
            } else {
                assert_eq!(
                    known, "",
                    "{id} after rotation {rotation}: forgotten with its claim"
                );
            }
        }
        ensure!(
            kept >= 2 * (rotation + 1).min(SEALED),
            "the newest calls are kept: {kept} in {rotation}"
        );
        ensure!(
            rotation <= SEALED || kept < remembered.len(),
            "old calls are forgotten"
        );
    }
    session.run("SELECT pg_stat_force_next_flush()").await?;
    assert_eq!(
        session.text(DEAD).await?,
        "0|0|t",
        "the journal is insert-only"
    );

    for _ in 0..=SEALED {
        make_due(&session, "standard").await?;
        session.run("CALL idem_maintain()").await?;
    }
    assert_eq!(
        session.text(BYTES).await?,
        "0",
        "the journal has no page left"
    );
    assert_eq!(
        begin(&session, "m5").await?,
        "new|1",
        "the call is forgotten"
    );
    Ok(())
}

/// I1: a transaction that began while the ring was opening writes into two slices, and a
/// transaction that begins after the rotation writes into one of these slices. Only one of the two
/// transactions gets the state `new` for a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_old_and_new_ring_state_do_not_both_begin_a_call() -> Result<()> {
    for old_first in [true, false] {
        let (cluster, session) = server("old_and_new").await?;
        let [pin, old, new] = [
            Session::superuser(&cluster, "journal").await?,
            Session::superuser(&cluster, "journal").await?,
            Session::superuser(&cluster, "journal").await?,
        ];
        // Create the destination first, so that no session waits for a transaction that creates it.
        begin(&session, "first of all").await?;
        pin.run("BEGIN; SELECT idem_try_claim('pin', 'orders')")
            .await?;
        make_due(&session, "standard").await?;
        rotate(&session, "opened").await?;
        assert_eq!(
            session.text("SELECT idem.rotate('standard')").await?,
            "waiting"
        );
        // This transaction begins after the list of the fence was made, so the rotation does not
        // wait for it.
        old.run("BEGIN; SELECT idem_begin_call('other', 'orders', 'charge')")
            .await?;
        pin.run("COMMIT").await?;
        rotate(&session, "rotated").await?;
        if old_first {
            assert_eq!(begin(&old, "m").await?, "new|1");
            let pid = new.pid().await?;
            let (result, ended) = tokio::join!(begin(&new, "m"), async {
                until("the new session waits", async || {
                    let blocked = session
                        .text(&format!("SELECT cardinality(pg_blocking_pids({pid})) > 0"))
                        .await?;
                    Ok(blocked == "t")
                })
                .await?;
                old.run("COMMIT").await
            });
            ended?;
            assert_eq!(result?, "unknown|2");
        } else {
            assert_eq!(begin(&new, "m").await?, "new|1");
            assert_eq!(begin(&old, "m").await?, "unknown|2");
            old.run("COMMIT").await?;
        }
        assert_eq!(calls(&session, "m").await?, "charge|unknown|2|NULL|NULL");
        assert_eq!(begin(&session, "m").await?, "unknown|3");
    }
    Ok(())
}

/// I1, I3: a forgotten message has no external calls, also when their events are in two slices. A
/// message without a claim keeps its calls, because it is being processed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i3_forgotten_message_forgets_its_calls() -> Result<()> {
    let (_cluster, session) = server("forgotten").await?;
    let forget = "SELECT idem_forget('m', 'orders')";
    assert_eq!(begin(&session, "m").await?, "new|1");
    assert_eq!(session.text(forget).await?, "f");
    assert_eq!(calls(&session, "m").await?, "charge|unknown|1|NULL|NULL");
    make_due(&session, "standard").await?;
    rotate(&session, "opened").await?;
    finish(&session, "m", "7").await?;
    session
        .run(
            "SELECT idem_begin_call('m', 'orders', 'ship'),
                    idem_begin_call('other', 'orders', 'a')",
        )
        .await?;
    session.run("SELECT idem_try_claim('m', 'orders')").await?;

    session.run(&format!("BEGIN; {forget}; ROLLBACK")).await?;
    assert_eq!(
        session
            .text("SELECT step, state FROM idem_calls('m', 'orders')")
            .await?,
        "charge|done\nship|unknown"
    );
    assert_eq!(session.text(forget).await?, "t");
    assert_eq!(calls(&session, "m").await?, "");
    assert_eq!(
        session
            .text("SELECT step FROM idem_calls('other', 'orders')")
            .await?,
        "a"
    );
    assert_eq!(begin(&session, "m").await?, "new|1");
    finish(&session, "m", "8").await?;
    assert_eq!(calls(&session, "m").await?, "charge|done|1|8|NULL");
    Ok(())
}

/// I3: a call is forgotten and begun again. A transaction that entered the rings before, and still
/// reads the slice of the forgotten call, does not mix the events of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i3_events_of_a_forgotten_call_are_not_mixed_in() -> Result<()> {
    let (cluster, session) = server("begun_again").await?;
    let [pin, reader] = [
        Session::superuser(&cluster, "journal").await?,
        Session::superuser(&cluster, "journal").await?,
    ];
    assert_eq!(begin(&session, "m").await?, "new|1");
    finish(&session, "m", "7").await?;
    for _ in 0..SEALED {
        make_due(&session, "standard").await?;
        for step in ["opened", "rotated", "emptied"] {
            rotate(&session, step).await?;
        }
    }
    make_due(&session, "standard").await?;
    rotate(&session, "opened").await?;
    pin.run("BEGIN; SELECT idem_try_claim('pin', 'orders')")
        .await?;
    let poll = "SELECT idem.rotate('standard')";
    assert_eq!(session.text(poll).await?, "waiting");
    // This transaction is not in the list of the fence, so the slices rotate while it is open.
    reader
        .run("BEGIN; SELECT idem_try_claim('other', 'orders')")
        .await?;
    pin.run("COMMIT").await?;
    rotate(&session, "rotated").await?;
    assert_eq!(calls(&reader, "m").await?, "charge|done|1|7|NULL");
    assert_eq!(begin(&session, "m").await?, "new|1", "it is forgotten");
    assert_eq!(calls(&reader, "m").await?, "charge|unknown|1|NULL|NULL");
    finish(&session, "m", "8").await?;
    assert_eq!(calls(&reader, "m").await?, "charge|done|1|8|NULL");
    reader.run("COMMIT").await?;
    rotate(&session, "emptied").await?;
    assert_eq!(calls(&session, "m").await?, "charge|done|1|8|NULL");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_found_in_the_ring_that_a_destination_left() -> Result<()> {
    let (_cluster, session) = server("moved").await?;
    for id in ["done", "unknown"] {
        assert_eq!(begin(&session, id).await?, "new|1");
    }
    finish(&session, "done", "7").await?;
    session
        .run("SELECT idem_configure('orders', '30 days')")
        .await?;
    assert_eq!(begin(&session, "done").await?, "done|1");
    assert_eq!(
        begin(&session, "unknown").await?,
        "unknown|2",
        "the call continues in the other ring"
    );
    finish(&session, "unknown", "8").await?;
    assert_eq!(calls(&session, "unknown").await?, "charge|done|2|8|NULL");
    for _ in 0..=SEALED {
        make_due(&session, "standard").await?;
        session.run("CALL idem_maintain()").await?;
    }
    assert_eq!(
        begin(&session, "unknown").await?,
        "done|1",
        "the remaining events determine the state"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dump_keeps_every_call() -> Result<()> {
    let (cluster, session) = server("dumped_calls").await?;
    let request = r#"'{"amount": 5}'"#;
    for (id, then) in [
        ("unknown", ""),
        (
            "done",
            "SELECT idem_finish_call('done', 'orders', 'charge', '{\"paid\": 1.10}')",
        ),
        (
            "failed",
            "SELECT idem_fail_call('failed', 'orders', 'charge', 'no', false)",
        ),
        (
            "new",
            "SELECT idem_fail_call('new', 'orders', 'charge', 'reset')",
        ),
    ] {
        session
            .run(&format!(
                "SELECT idem_begin_call('{id}', 'orders', 'charge', {request})"
            ))
            .await?;
        session.run(then).await?;
    }
    make_due(&session, "standard").await?;
    rotate(&session, "opened").await?;
    assert_eq!(begin(&session, "two slices").await?, "new|1");

    let restored = Dump::of(&cluster, "journal")?
        .restore(&cluster, "restored")
        .await?;
    for id in ["unknown", "done", "failed", "new", "two slices"] {
        let all = format!("SELECT * FROM idem_calls('{id}', 'orders')");
        assert_eq!(
            restored.text(&all).await?,
            session.text(&all).await?,
            "{id}"
        );
        let request = if id == "two slices" { "NULL" } else { request };
        let begin = format!("SELECT * FROM idem_begin_call('{id}', 'orders', 'charge', {request})");
        let (here, there) = (session.text(&begin).await?, restored.text(&begin).await?);
        if id == "new" {
            // This statement begins a new attempt in each database at a different time, so the test
            // compares only the first four columns.
            assert_eq!(
                here.split('|').take(4).collect::<Vec<_>>(),
                there.split('|').take(4).collect::<Vec<_>>()
            );
        } else {
            assert_eq!(there, here, "{id}");
        }
    }
    assert_eq!(
        restored
            .refused("SELECT idem_begin_call('done', 'orders', 'charge', '6')")
            .await?
            .sqlstate,
        "23000",
        "the dump contains the requests"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_returns_calls_and_cannot_begin_them() -> Result<()> {
    let (primary, session) = server("calling").await?;
    assert_eq!(begin(&session, "m").await?, "new|1");
    let standby = primary.standby().start()?;
    let reader = Session::superuser(&standby, "journal").await?;
    let caught_up = async || {
        until("the standby shows what the primary shows", async || {
            Ok(calls(&reader, "m").await? == calls(&session, "m").await?)
        })
        .await
    };
    caught_up().await?;
    finish(&session, "m", "7").await?;
    caught_up().await?;
    assert_eq!(calls(&reader, "m").await?, "charge|done|1|7|NULL");
    assert_eq!(calls(&reader, "unheard of").await?, "");
    for statement in [
        "SELECT idem_begin_call('m', 'orders', 'charge')",
        "SELECT idem_finish_call('m', 'orders', 'charge', '7')",
        "SELECT idem_fail_call('m', 'orders', 'charge', 'e')",
    ] {
        let refusal = reader.refused(statement).await?;
        assert_eq!(refusal.sqlstate, "25006", "{statement}: {refusal:?}");
    }
    Ok(())
}
