//! Tests of `idem_set_message_identity`, which sets whether the destination is a part of the
//! identity of a message.

use anyhow::Result;
use idem_cluster::{Cluster, Install};
use idem_testkit::replica::caught_up;
use idem_testkit::{Database, Dump, Session};

/// I1: with the identity `id` an id is claimed once for all destinations, in every session.
#[tokio::test]
async fn i1_identity_id_claims_once_for_all_destinations() -> Result<()> {
    let db = Database::with_idem("identity").await?;
    let (session, other) = (db.connect().await?, db.connect().await?);
    // The other session has cached the earlier state.
    other.run("SELECT idem_is_claimed('m1', 'orders')").await?;
    session
        .run("SELECT idem_set_message_identity('id')")
        .await?;
    assert_eq!(
        session
            .text(r#"SELECT idem_try_record('m1', 'orders', '{"topic": "t", "payload": 1}')"#)
            .await?,
        "t"
    );
    assert_eq!(
        other.text("SELECT idem_try_claim('m1', 'billing')").await?,
        "f"
    );
    assert_eq!(
        other
            .text(
                "SELECT idem_is_claimed('m1', 'billing'),
                        (SELECT count(*) FROM idem_effects('m1', 'billing'))"
            )
            .await?,
        "t|1",
        "the claim and its effects belong to every destination"
    );
    assert_eq!(
        session
            .text("SELECT destination, id FROM idem.inbox")
            .await?,
        "*|m1"
    );
    Ok(())
}

/// I1: the identity does not change while the database knows a message, because the message would
/// be new under the other identity.
#[tokio::test]
async fn i1_identity_is_kept_while_messages_are_known() -> Result<()> {
    let db = Database::with_idem("identity_kept").await?;
    let (session, claimer) = (db.connect().await?, db.connect().await?);
    let set = "SELECT idem_set_message_identity('id')";
    for (write, remove, table) in [
        (
            "SELECT idem_try_claim('m', 'orders')",
            &["SELECT idem_forget('m', 'orders')"][..],
            "idem.inbox_standard_0",
        ),
        (
            "SELECT idem_receive('m', 'orders', '1'::jsonb)",
            &[
                "SELECT idem_try_claim('m', 'orders')",
                "SELECT idem_forget('m', 'orders')",
            ],
            "idem.pending_0",
        ),
        (
            "SELECT idem_begin_call('m', 'orders', 'ask')",
            &[
                "SELECT idem_try_claim('m', 'orders')",
                "SELECT idem_forget('m', 'orders')",
            ],
            "idem.call_standard_0",
        ),
    ] {
        session.run(write).await?;
        let refusal = session.refused(set).await?;
        assert_eq!(refusal.sqlstate, "55000", "{refusal:?}");
        assert!(refusal.detail.starts_with(table), "{refusal:?}");
        for statement in remove {
            session.run(statement).await?;
        }
    }
    // A claim that is not committed holds the function up, for at most 2 seconds.
    claimer
        .run("BEGIN; SELECT idem_try_claim('m', 'orders')")
        .await?;
    assert_eq!(session.refused(set).await?.sqlstate, "55P03");
    claimer.run("ROLLBACK").await?;
    session.run(set).await?;
    Ok(())
}

/// I1: the identity survives a failover to a standby and a dump, because it is stored in the
/// database. No file of a server contains it.
#[tokio::test]
async fn i1_identity_survives_promotion_and_dump() -> Result<()> {
    let primary = Cluster::builder(&Install::from_env()?)
        .name("identity-primary")
        .setting("shared_buffers", "32MB")
        .setting("idem.databases", "none")
        .start()?;
    let session = Session::in_database_with_idem(&primary, "app").await?;
    session
        .run(
            "SELECT idem_set_message_identity('id');
             SELECT idem_try_claim('m', 'orders')",
        )
        .await?;
    let duplicate = "SELECT idem_try_claim('m', 'billing')";

    let copy = Dump::of(&primary, "app")?.restore(&primary, "copy").await?;
    assert_eq!(copy.text(duplicate).await?, "f");

    let standby = primary.standby().name("identity-standby").start()?;
    let reader = Session::superuser(&standby, "app").await?;
    caught_up(&session, &reader).await?;
    assert_eq!(
        reader
            .text("SELECT idem_is_claimed('m', 'billing')")
            .await?,
        "t"
    );
    standby.promote()?;
    let promoted = Session::superuser(&standby, "app").await?;
    assert_eq!(promoted.text(duplicate).await?, "f");
    Ok(())
}
