//! Tests of `ALTER EXTENSION idem UPDATE`. The earlier version is a version of the tests: it has
//! the SQL of this version and another number.

use anyhow::{Result, ensure};
use idem_testkit::Session;
use idem_testkit::claimers::Claimers;
use idem_testkit::private_install::PrivateInstall;
use idem_testkit::ring::rotate_once;
use tokio::task::block_in_place;

/// The version of the library: all crates of the workspace have one version.
const LIBRARY: &str = env!("CARGO_PKG_VERSION");
const EARLIER: &str = "0.3.9";

/// The number of messages that each phase of the test claims at least.
const PHASE: u64 = 200;

/// What each update script does at its end, so that open sessions check the version again.
const INVALIDATE: &str = "SELECT idem.invalidate('idem.ring'::regclass);";

/// Updates a server under load, as docs/versioning.md describes: the server restarts with the
/// library of the new version, and then each database is updated with this script. Fails if a
/// message was done twice, or if a claim was lost.
async fn ensure_update_keeps_claims(script: &str) -> Result<()> {
    let copy = PrivateInstall::new()?;
    copy.add(&format!("{EARLIER}--{LIBRARY}"), script)?;
    let mut cluster = copy.start()?;
    let session = Session::in_database_with_idem(&cluster, "shop").await?;
    let mut claimers = Claimers::start(&cluster, &session).await?;
    claimers.until_claimed(PHASE).await?;
    rotate_once(&session, "standard").await?;
    claimers.until_claimed(PHASE).await?;

    let becomes_earlier = format!(
        "BEGIN; UPDATE pg_extension SET extversion = '{EARLIER}' WHERE extname = 'idem';
         {INVALIDATE} COMMIT"
    );
    session.run(&becomes_earlier).await?;
    block_in_place(|| {
        cluster.kill()?;
        cluster.start()
    })?;
    claimers.until_unserved(PHASE / 10).await?;
    let session = Session::superuser(&cluster, "shop").await?;
    session.run("ALTER EXTENSION idem UPDATE").await?;
    claimers.until_claimed(PHASE).await?;
    rotate_once(&session, "standard").await?;
    claimers.until_claimed(PHASE).await?;
    claimers.ensure_each_done_once(&session).await
}

/// I1, I6: each message that is claimed before, during and after an update is done once, and stays
/// claimed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i6_update_under_load_keeps_each_claim() -> Result<()> {
    ensure_update_keeps_claims(INVALIDATE).await
}

/// An update script that removes claims is detected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn update_that_forgets_claims_is_detected() -> Result<()> {
    let forgets = format!("TRUNCATE idem.inbox_standard_0, idem.inbox_standard_1; {INVALIDATE}");
    let error = ensure_update_keeps_claims(&forgets)
        .await
        .unwrap_err()
        .to_string();
    ensure!(error.ends_with("messages were done twice"), "{error}");
    Ok(())
}
