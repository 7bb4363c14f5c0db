//! The identity of an installation (I4): message ids and idempotency keys of two databases differ,
//! because a broker or a payment gateway can serve both.

use anyhow::{Result, ensure};
use idem_cluster::Cluster;
use idem_testkit::{Dump, Session, until};

use super::cluster;

fn server(name: &str) -> Result<Cluster> {
    cluster(name)?.setting("idem.databases", "none").start()
}

/// Records an effect of a message, and returns its message id.
async fn message_id(session: &Session, id: &str) -> Result<String> {
    session
        .run(&format!(
            "SELECT idem_try_record('{id}', 'orders', '{{\"topic\": \"t\", \"payload\": 1}}')"
        ))
        .await?;
    session
        .text(&format!(
            "SELECT message_id FROM idem_effects('{id}', 'orders')"
        ))
        .await
}

/// Begins an external call of a message, and returns its idempotency key.
async fn call_key(session: &Session, id: &str) -> Result<String> {
    session
        .text(&format!(
            "SELECT idempotency_key FROM idem_begin_call('{id}', 'orders', 'charge')"
        ))
        .await
}

/// I4. Goal: two tenants, each with its database, share a broker and a payment gateway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_ids_and_keys_differ_between_installations() -> Result<()> {
    let server = server("tenants")?;
    let first = Session::in_database_with_idem(&server, "first").await?;
    let second = Session::in_database_with_idem(&server, "second").await?;
    let (id, key) = (message_id(&first, "m").await?, call_key(&first, "m").await?);
    ensure!(!id.is_empty() && !key.is_empty());
    assert_ne!(message_id(&second, "m").await?, id, "message ids");
    assert_ne!(call_key(&second, "m").await?, key, "idempotency keys");
    assert_eq!(call_key(&first, "m").await?, key, "a second attempt");
    Ok(())
}

/// I3, I4. Goal: a dump keeps the identity, and a clone gets another one on demand. Effects that
/// were recorded before keep their ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i3_i4_clone_becomes_another_installation_on_demand() -> Result<()> {
    let server = server("clones")?;
    let original = Session::in_database_with_idem(&server, "original").await?;
    let recorded = message_id(&original, "before").await?;
    let key = call_key(&original, "paid").await?;
    original
        .run("SELECT idem_finish_call('paid', 'orders', 'charge', '1')")
        .await?;
    let clone = Dump::of(&server, "original")?
        .restore(&server, "clone")
        .await?;
    // This session keeps the old state in its cache.
    let other = Session::superuser(&server, "clone").await?;
    let same = (
        message_id(&other, "m1").await?,
        call_key(&other, "m1").await?,
    );
    assert_eq!(message_id(&original, "m1").await?, same.0);
    assert_eq!(call_key(&original, "m1").await?, same.1);

    let refusal = clone.refused("SELECT idem_new_installation()").await?;
    assert_eq!(refusal.sqlstate, "55000", "{refusal:?}");
    ensure!(
        refusal.detail.contains("charge") && refusal.detail.contains("\"orders\""),
        "{refusal:?}"
    );
    clone
        .run("SELECT idem_fail_call('m1', 'orders', 'charge', 'not sent', true)")
        .await?;
    clone.run("SELECT idem_new_installation()").await?;
    assert_eq!(message_id(&other, "before").await?, recorded, "I3");
    for session in [&clone, &other] {
        assert_ne!(call_key(session, "paid").await?, key);
    }
    ensure!(message_id(&other, "m2").await? != message_id(&original, "m2").await?);
    ensure!(clone.text("SELECT idem.is_restoring()").await? == "f");
    Ok(())
}

/// I4. Goal: the isolation level of the caller does not hide a call that was begun meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_new_installation_needs_read_committed() -> Result<()> {
    let server = server("levels")?;
    let session = Session::in_database_with_idem(&server, "levels").await?;
    for function in ["idem_new_installation()", "idem_finish_restore()"] {
        session.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
        let refusal = session.refused(&format!("SELECT {function}")).await?;
        assert_eq!(refusal.sqlstate, "25000", "{function}: {refusal:?}");
        session.run("ROLLBACK").await?;
    }
    Ok(())
}

/// I4, I12. Goal: state of another installation, as a subscription of logical replication brings
/// it, stops maintenance and the functions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i12_state_of_another_installation_stops_maintenance() -> Result<()> {
    let server = server("mixed")?;
    let session = Session::in_database_with_idem(&server, "mixed").await?;
    session.run("SELECT idem_try_claim('m', 'orders')").await?;
    let own = session
        .text("SELECT installation FROM idem.installation")
        .await?;
    for table in ["clock", "ring", "pending_rotation", "payload_rotation"] {
        session
            .run(&format!(
                "UPDATE idem.{table} SET installation = gen_random_uuid();
                 SELECT idem.invalidate('idem.ring'::regclass)"
            ))
            .await?;
        let refusal = session
            .refused("SELECT idem_try_claim('n', 'orders')")
            .await?;
        assert_eq!(refusal.sqlstate, "58000", "{table}: {refusal:?}");
        session
            .run("UPDATE idem.ring SET rotated_at = rotated_at - retention")
            .await?;
        session.run("CALL idem_maintain()").await?;
        let rotations = session.text("SELECT sum(rotations) FROM idem.ring").await?;
        assert_eq!(rotations, "0", "{table}");
        session
            .run(&format!(
                "UPDATE idem.{table} SET installation = '{own}';
                 UPDATE idem.ring SET rotated_at = '0'"
            ))
            .await?;
    }
    session.run("SELECT idem_try_claim('n', 'orders')").await
}

/// I1, I12. Goal: a subscription to the tables of state stops the functions and the worker of the
/// subscriber. Otherwise the worker would rotate by the clock of the publisher.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i12_subscription_to_state_stops_maintenance() -> Result<()> {
    let server = cluster("subscribed")?
        .setting("wal_level", "logical")
        .setting("idem.databases", "subscriber")
        .start()?;
    let publisher = Session::in_database_with_idem(&server, "publisher").await?;
    publisher
        .run(
            "SELECT idem_try_claim('m', 'orders');
             CREATE PUBLICATION p FOR TABLE idem.ring, idem.clock",
        )
        .await?;
    publisher
        .run("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        .await?;
    let subscriber = Session::in_database_with_idem(&server, "subscriber").await?;
    subscriber
        .run("SELECT idem_try_claim('m', 'orders')")
        .await?;
    let publisher_at = server.connection_string("publisher");
    subscriber
        .run(&format!(
            "CREATE SUBSCRIPTION s CONNECTION '{publisher_at}' PUBLICATION p
                 WITH (create_slot = false, slot_name = 's')"
        ))
        .await?;
    let copied = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate = 'r'";
    until("the tables are copied", async || {
        Ok(subscriber.text(copied).await? == "2")
    })
    .await?;
    let times = "SELECT string_agg(rotated_at::text, ' ' ORDER BY name) FROM idem.ring";
    publisher
        .run("UPDATE idem.ring SET rotated_at = rotated_at - retention")
        .await?;
    let due = publisher.text(times).await?;
    until("the times of the publisher arrive", async || {
        Ok(subscriber.text(times).await? == due)
    })
    .await?;
    subscriber.run("CALL idem_maintain()").await?;
    let rotations = subscriber
        .text("SELECT sum(rotations) FROM idem.ring")
        .await?;
    assert_eq!(rotations, "0", "the subscriber has rotated");
    let refusal = subscriber
        .refused("SELECT idem_try_claim('n', 'orders')")
        .await?;
    assert_eq!(refusal.sqlstate, "58000", "{refusal:?}");
    subscriber
        .run("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE)")
        .await?;
    subscriber.run("DROP SUBSCRIPTION s").await?;
    let refusal = subscriber.refused("SELECT idem_finish_restore()").await?;
    assert_eq!(refusal.sqlstate, "55000", "{refusal:?}");
    Ok(())
}
