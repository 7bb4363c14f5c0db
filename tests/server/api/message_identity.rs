//! Tests of `idem.message_identity`, which sets whether the destination is a part of the identity
//! of a message.

use std::sync::Arc;

use anyhow::Result;
use idem_cluster::{Cluster, Install};
use idem_testkit::{Database, until};

/// With `idem.message_identity = id` an id is claimed once for all destinations. The setting
/// belongs to the whole server, so the test has its own cluster.
#[tokio::test]
async fn message_identity_id_claims_once_for_all_destinations() -> Result<()> {
    let cluster = Cluster::builder(&Install::from_env()?)
        .name("identity")
        .setting("shared_buffers", "32MB")
        .setting("idem.message_identity", "id")
        .start()?;
    let db = Database::with_idem_in(Arc::new(cluster), "identity").await?;
    let session = db.connect().await?;
    assert_eq!(
        session
            .text(r#"SELECT idem_try_record('m1', 'orders', '{"topic": "t", "payload": 1}')"#)
            .await?,
        "t"
    );
    assert_eq!(
        session
            .text("SELECT idem_try_claim('m1', 'billing')")
            .await?,
        "f"
    );
    assert_eq!(
        session
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

    session
        .run("ALTER SYSTEM SET idem.message_identity = 'id_and_destination'")
        .await?;
    session.run("SELECT pg_reload_conf()").await?;
    until("the session has the new setting", async || {
        Ok(session.text("SHOW idem.message_identity").await? == "id_and_destination")
    })
    .await?;
    assert_eq!(
        session
            .text("SELECT idem_try_claim('m2', 'orders')")
            .await?,
        "t"
    );
    assert_eq!(
        session
            .text("SELECT idem_try_claim('m2', 'billing')")
            .await?,
        "t"
    );

    assert_eq!(
        session
            .refused("SET idem.message_identity = 'id'")
            .await?
            .sqlstate,
        "55P02",
        "a session cannot set it: with two values two consumers would process the same message"
    );
    Ok(())
}
