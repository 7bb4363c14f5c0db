//! Tests without `shared_preload_libraries`: everything works except the worker, the counters and
//! the wake-up.

use anyhow::{Result, ensure};
use idem_testkit::DEADLINE;
use idem_testkit::Session;
use idem_testkit::presence::check_leased_message_is_found;
use idem_testkit::ring::{SEALED, make_due, rotations};

use super::{claim, cluster, drain, effects, record};

/// I1, I4, I6: without preloading CALL idem_maintain() does what the worker does, pending messages
/// are found, and health names the missing line of the configuration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i6_idem_maintain_replaces_worker_without_preload() -> Result<()> {
    let cluster = cluster("unloaded")?.preload(false).start()?;
    let session = Session::in_database_with_idem(&cluster, "plain").await?;
    assert_eq!(record(&session, "m1").await?, "t");
    assert_eq!(record(&session, "m1").await?, "f");
    assert_eq!(effects(&session, "m1").await?.lines().count(), 1);
    assert_eq!(
        session
            .text("SELECT idem_is_claimed('m1', 'orders')")
            .await?,
        "t"
    );
    assert_eq!(drain(&session, "default", 0).await?, ["m1"]);

    let health = session
        .text("SELECT status, detail FROM idem_health() WHERE check_name = 'worker'")
        .await?;
    ensure!(
        health.starts_with("warning|")
            && health.contains("shared_preload_libraries = 'idem'")
            && health.contains("CALL idem_maintain()"),
        "{health}"
    );
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem.stats WHERE value > 0")
            .await?,
        "0"
    );

    check_leased_message_is_found(&session).await?;

    // A waiting relay is not woken, so it must not sleep long, whatever timeout it requests.
    let relay = Session::superuser(&cluster, "plain").await?;
    let relaying = tokio::spawn(async move {
        while drain(&relay, "default", 0).await?.is_empty() {
            assert_eq!(relay.text("SELECT idem_relay_wait(60000)").await?, "f");
        }
        anyhow::Ok(())
    });
    session.run("SELECT idem_send('t', '2'::jsonb)").await?;
    tokio::time::timeout(DEADLINE, relaying).await???;

    for rotation in 1..=SEALED as i64 + 1 {
        make_due(&session, "standard").await?;
        assert_eq!(
            claim(&session, "m1").await?,
            "f",
            "the claim is kept in the sealed slices"
        );
        session.run("CALL idem_maintain()").await?;
        assert_eq!(rotations(&session, "standard").await?, rotation);
    }
    assert_eq!(
        claim(&session, "m1").await?,
        "t",
        "the claim is forgotten with the last rotation"
    );
    Ok(())
}
