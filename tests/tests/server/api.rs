//! What the calls answer.

use anyhow::Result;
use idem_tests::harness::Database;

#[tokio::test]
async fn i1_a_claim_is_true_exactly_once() -> Result<()> {
    let db = Database::with_idem("once").await?;
    let session = db.connect().await?;
    assert_eq!(session.text("SELECT idem_try_claim('m1', 'orders')").await?, "t");
    assert_eq!(session.text("SELECT idem_try_claim('m1', 'orders')").await?, "f");
    assert_eq!(
        session.text("SELECT idem_try_claim('m1', 'billing')").await?,
        "t",
        "another destination"
    );
    Ok(())
}
