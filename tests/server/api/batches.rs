//! Tests of batches in a database without pending messages. There, the claims of a batch are
//! inserted together, in one subtransaction.

use anyhow::Result;
use idem_testkit::presence::until_none;
use idem_testkit::ring::{build_filters, make_due, make_segment_due, rotate, rotate_once};
use idem_testkit::{Database, Session};

/// The number of subtransactions that the batches of one transaction use at most.
const SUBTRANSACTIONS: usize = 32;

async fn fixture(name: &str) -> Result<(Database, Session)> {
    let db = Database::without_worker(name).await?;
    let session = db.connect().await?;
    until_none(&session).await?;
    // The destination exists, so that no session waits for its creation.
    session
        .run("SELECT idem.intern_destination('orders')")
        .await?;
    Ok((db, session))
}

/// Returns the statement that claims a batch of 10 new messages.
fn batch(name: &str) -> String {
    format!(
        "SELECT idem_try_claim_batch(
             ARRAY(SELECT '{name} ' || n FROM generate_series(1, 10) n), 'orders')"
    )
}

/// The number of transactions and subtransactions that have inserted the claims of messages whose
/// id begins with a name, and the number of these claims.
fn writers(name: &str) -> String {
    format!(
        "SELECT count(DISTINCT xmin::text) || ' for ' || count(*)
           FROM idem.inbox_standard_0 WHERE id LIKE '{name} %'"
    )
}

/// Returns whether the claims of messages whose id begins with a name were inserted together: not
/// by the open transaction itself.
async fn are_together(session: &Session, name: &str) -> Result<bool> {
    let is_together = format!(
        "SELECT bool_and(xmin <> pg_current_xact_id()::xid)
           FROM idem.inbox_standard_0 WHERE id LIKE '{name} %'"
    );
    Ok(session.text(&is_together).await? == "t")
}

/// I1: of 1,000 messages, some were claimed long ago, some were claimed recently, and some are in
/// the batch twice. The results are in the order of the ids.
#[tokio::test]
async fn i1_large_batch_finds_earlier_claims_and_equal_ids() -> Result<()> {
    let (_db, session) = fixture("large_batch").await?;
    session
        .run("SELECT idem_try_claim('m ' || n, 'orders') FROM generate_series(0, 790, 10) n")
        .await?;
    rotate_once(&session, "standard").await?;
    session
        .run("SELECT idem_try_claim('m ' || n, 'orders') FROM generate_series(3, 793, 10) n")
        .await?;
    // The ids from `m 0` to `m 799` in an order that is not theirs, and then 200 of them again.
    let ids = "SELECT 'm ' || (n * 7) % 800, n FROM generate_series(1, 800) n
               UNION ALL SELECT 'm ' || n, 800 + n FROM generate_series(1, 200) n";
    let wrong = format!(
        "WITH ids (id, n) AS ({ids}),
              results AS (
                  SELECT claimed, n FROM unnest(idem_try_claim_batch(
                      ARRAY(SELECT id FROM ids ORDER BY n), 'orders'))
                      WITH ORDINALITY AS t (claimed, n))
         SELECT count(*) FILTER (WHERE claimed), count(*) FILTER (
                    WHERE claimed <> (n <= 800 AND substr(id, 3)::int % 10 NOT IN (0, 3))),
                count(*)
           FROM ids JOIN results USING (n)"
    );
    session.run("BEGIN").await?;
    assert_eq!(session.text(&wrong).await?, "640|0|1000");
    let are_together = "SELECT bool_and(xmin <> pg_current_xact_id()::xid)
                          FROM idem.inbox_standard_1";
    assert_eq!(session.text(are_together).await?, "t");
    session.run("COMMIT").await?;
    let claims = "SELECT count(*), count(DISTINCT id) FROM idem.inbox";
    assert_eq!(session.text(claims).await?, "800|800");
    let writers = "SELECT count(DISTINCT xmin::text) FROM idem.inbox_standard_1";
    assert_eq!(session.text(writers).await?, "2");
    let counted = "SELECT string_agg(name || ' ' || value, ', ' ORDER BY name)
                     FROM idem.stats WHERE name IN ('claimed', 'duplicates')";
    assert_eq!(session.text(counted).await?, "claimed 800, duplicates 360");
    Ok(())
}

/// I1 and I2: at each isolation level, claims of a batch that were rolled back to a savepoint are
/// forgotten, and claims of a batch that was committed are kept. The batch takes no predicate lock.
#[tokio::test]
async fn i1_i2_batch_follows_its_savepoint_at_each_isolation_level() -> Result<()> {
    let (_db, session) = fixture("batch_savepoint").await?;
    session
        .run("SELECT idem_try_claim('first', 'orders')")
        .await?;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let batch = batch(level);
        session
            .run(&format!(
                "BEGIN ISOLATION LEVEL {level}; SELECT 1; SAVEPOINT s"
            ))
            .await?;
        assert_eq!(session.text(&batch).await?, "{t,t,t,t,t,t,t,t,t,t}");
        assert_eq!(session.text(&batch).await?, "{f,f,f,f,f,f,f,f,f,f}");
        session.run("ROLLBACK TO s").await?;
        assert_eq!(session.text(&batch).await?, "{t,t,t,t,t,t,t,t,t,t}");
        let locks = "SELECT count(*) FROM pg_locks
                      WHERE pid = pg_backend_pid() AND mode = 'SIReadLock'
                        AND relation::regclass::text LIKE 'idem.%'";
        assert_eq!(session.text(locks).await?, "0", "{level}");
        assert!(are_together(&session, level).await?, "{level}");
        session.run("COMMIT").await?;
        assert_eq!(session.text(&batch).await?, "{f,f,f,f,f,f,f,f,f,f}");
        assert_eq!(session.text(&writers(level)).await?, "1 for 10", "{level}");
    }
    Ok(())
}

/// I2 and I3: the transaction of a batch records effects for one of its messages, and another
/// session that claims a message of the batch waits for its end.
#[tokio::test]
async fn i2_i3_claims_of_a_batch_are_like_other_claims() -> Result<()> {
    let (db, session) = fixture("batch_effects").await?;
    let other = db.connect().await?;
    let pid = other.pid().await?;
    session.run(&format!("BEGIN; {}", batch("m"))).await?;
    assert!(are_together(&session, "m").await?);
    let claim = tokio::spawn(async move {
        other
            .text("SELECT outcome FROM idem_claim('m 4', 'orders')")
            .await
    });
    db.until_blocked(pid).await?;
    let record = r#"SELECT cardinality(
        idem_record_effects('m 3', 'orders', '[{"topic": "t", "payload": 1}]'))"#;
    assert_eq!(session.text(record).await?, "1");
    session.run("COMMIT").await?;
    assert_eq!(claim.await??, "duplicate");
    let effects = "SELECT count(*) FROM idem_effects('m 3', 'orders')";
    assert_eq!(session.text(effects).await?, "1");
    assert_eq!(
        session
            .text("SELECT idem_forget('m 4', 'orders'), idem_try_claim('m 4', 'orders')")
            .await?,
        "t|t"
    );
    Ok(())
}

/// I1: a batch of more than 1,024 messages is claimed in groups. The second of two equal ids is in
/// the next group.
#[tokio::test]
async fn i1_equal_ids_in_two_groups_are_claimed_once() -> Result<()> {
    let (_db, session) = fixture("batch_groups").await?;
    // The order of the keys is that of the numbers.
    let refused = "SELECT string_agg(n::text, ',') FILTER (WHERE NOT claimed), count(*)
                     FROM unnest(idem_try_claim_uuid_batch(
                              ARRAY(SELECT lpad(n::text, 32, '0')::uuid
                                      FROM generate_series(1, 3000) n)
                              || lpad('1024', 32, '0')::uuid, 'orders'))
                          WITH ORDINALITY AS t (claimed, n)";
    assert_eq!(session.text(refused).await?, "3001|3001");
    let rows = "SELECT count(*), count(DISTINCT key), count(DISTINCT xmin::text)
                  FROM idem.inbox_standard_0";
    assert_eq!(session.text(rows).await?, "3000|3000|3");
    Ok(())
}

/// I1: two sessions claim the same 5,000 messages in opposite orders, each in groups. There is no
/// deadlock, and one of them gets each message. A third session holds the claim of the message in
/// the middle until both wait. Batches that claim in the given order would each hold one end then,
/// and deadlock.
#[tokio::test]
async fn i1_opposite_batches_in_groups_do_not_deadlock() -> Result<()> {
    let (db, session) = fixture("batch_opposite").await?;
    let claimed = |order: &str| {
        format!(
            "SELECT count(*) FROM unnest(idem_try_claim_batch(
                 ARRAY(SELECT 'm ' || n FROM generate_series(1, 5000) n ORDER BY n {order}),
                 'orders')) AS t (claimed) WHERE claimed"
        )
    };
    let (other, middle) = (db.connect().await?, db.connect().await?);
    middle
        .run("BEGIN; SELECT idem_try_claim('m 2500', 'orders')")
        .await?;
    let pids = [session.pid().await?, other.pid().await?];
    let release = async {
        for pid in pids {
            db.until_blocked(pid).await?;
        }
        middle.run("ROLLBACK").await
    };
    let (up, down) = (claimed("ASC"), claimed("DESC"));
    let (up, down, ()) = tokio::try_join!(session.text(&up), other.text(&down), release)?;
    assert_eq!(up.parse::<u32>()? + down.parse::<u32>()?, 5000);
    let rows = "SELECT count(*), count(DISTINCT key) FROM idem.inbox_standard_0";
    assert_eq!(session.text(rows).await?, "5000|5000");
    Ok(())
}

/// A transaction with many batches does not use more subtransactions than PostgreSQL caches. Beyond
/// that number the other sessions of the server would become slower.
#[tokio::test]
async fn batches_of_one_transaction_use_few_subtransactions() -> Result<()> {
    let (_db, session) = fixture("many_batches").await?;
    let batches = "DO $$
        BEGIN
            FOR i IN 1..100 LOOP
                PERFORM idem_try_claim_batch(
                    ARRAY(SELECT format('m %s %s', i, n) FROM generate_series(1, 10) n), 'orders');
            END LOOP;
        END $$";
    session.run(batches).await?;
    let expected = format!("{} for 1000", SUBTRANSACTIONS + 1);
    assert_eq!(session.text(&writers("m")).await?, expected);
    Ok(())
}

/// I1: an administrator has added an index to a slice. The claims of a batch are in it too.
#[tokio::test]
async fn i1_claims_of_a_batch_are_in_an_added_index() -> Result<()> {
    let (_db, session) = fixture("batch_index").await?;
    session
        .run("CREATE INDEX added ON idem.inbox_standard_0 (claimed_at)")
        .await?;
    session.run(&batch("m")).await?;
    session.run("SET enable_seqscan = off").await?;
    let found = "SELECT count(*) FROM idem.inbox_standard_0 WHERE claimed_at > '2000-01-01'";
    let plan = session.text(&format!("EXPLAIN {found}")).await?;
    assert!(plan.contains("added"), "{plan}");
    assert_eq!(session.text(found).await?, "10");
    Ok(())
}

/// I1: while a ring is opening, the claims of a batch are in the current and in the next slice.
#[tokio::test]
async fn i1_batch_writes_both_slices_of_an_opening_ring() -> Result<()> {
    let (_db, session) = fixture("batch_opening").await?;
    make_due(&session, "standard").await?;
    assert_eq!(rotate(&session, "standard").await?, "opened");
    session.run(&format!("BEGIN; {}", batch("m"))).await?;
    assert!(are_together(&session, "m").await?);
    session.run("COMMIT").await?;
    let rows = "SELECT (SELECT count(*) FROM idem.inbox_standard_0),
                       (SELECT count(*) FROM idem.inbox_standard_1)";
    assert_eq!(session.text(rows).await?, "10|10");
    assert_eq!(rotate(&session, "standard").await?, "rotated");
    assert_eq!(session.text(&batch("m")).await?, "{f,f,f,f,f,f,f,f,f,f}");
    Ok(())
}

/// I1: while the segment advances, the claims of a batch are in both segments.
#[tokio::test]
async fn i1_batch_writes_both_segments_of_an_advancing_ring() -> Result<()> {
    let (_db, session) = fixture("batch_advancing").await?;
    session.run(&batch("warm")).await?;
    build_filters(&session).await?;
    make_segment_due(&session, "standard").await?;
    assert_eq!(rotate(&session, "standard").await?, "advancing");
    session.run(&format!("BEGIN; {}", batch("m"))).await?;
    assert!(are_together(&session, "m").await?);
    session.run("COMMIT").await?;
    let rows = "SELECT count(*) FILTER (WHERE segment = 0), count(*) FILTER (WHERE segment = 1)
                  FROM idem.inbox_standard_0 WHERE id LIKE 'm %'";
    assert_eq!(session.text(rows).await?, "10|10");
    assert_eq!(rotate(&session, "standard").await?, "advanced");
    assert_eq!(session.text(&batch("m")).await?, "{f,f,f,f,f,f,f,f,f,f}");
    Ok(())
}

/// I10: two ids of a batch have the same key. The batch fails, and no message of it is claimed.
#[tokio::test]
async fn i10_two_ids_of_a_batch_with_one_key_are_refused() -> Result<()> {
    let (_db, session) = fixture("batch_collision").await?;
    let twins = "ARRAY(SELECT 'm ' || n FROM generate_series(1, 10) n)
                 || encode(substring(sha256('m 1') FROM 1 FOR 16), 'hex')::uuid::text";
    let refusal = session
        .refused(&format!("SELECT idem_try_claim_batch({twins}, 'orders')"))
        .await?;
    assert_eq!(refusal.sqlstate, "23000", "{refusal:?}");
    let claims = "SELECT count(*) FROM idem.inbox";
    assert_eq!(session.text(claims).await?, "0");
    Ok(())
}

/// I1: the transaction of a batch is prepared. Another claimer waits until it is committed.
#[tokio::test]
async fn i1_claims_of_a_prepared_transaction_are_waited_for() -> Result<()> {
    let (db, session) = fixture("batch_prepared").await?;
    let other = db.connect().await?;
    let pid = other.pid().await?;
    session.run(&format!("BEGIN; {}", batch("m"))).await?;
    assert!(are_together(&session, "m").await?);
    session.run("PREPARE TRANSACTION 'p'").await?;
    let claim =
        tokio::spawn(async move { other.text("SELECT idem_try_claim('m 4', 'orders')").await });
    db.until_blocked(pid).await?;
    session.run("COMMIT PREPARED 'p'").await?;
    assert_eq!(claim.await??, "f");
    Ok(())
}
