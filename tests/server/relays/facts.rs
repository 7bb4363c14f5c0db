//! Tests of I3: as long as a claim is found, its effects are found, however often the outbox
//! rotates.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use idem_testkit::ring::{SEALED, make_due, rotations};
use idem_testkit::{Database, Session, until};

use super::rotation::{keep_for, maintain};

#[tokio::test]
async fn i3_effects_are_found_as_long_as_claim_during_rotations() -> Result<()> {
    let db = Database::with_idem("facts").await?;
    let (session, maintainer, long) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    session.run("SELECT idem_drop_relay('default')").await?;
    // A pass must not wait for the long transaction, because the test ends this transaction only
    // after the pass.
    maintainer.run("SET idem.fence_wait = 0").await?;
    keep_for(&session, "400 milliseconds").await?;

    let mut alive: BTreeMap<i32, String> = BTreeMap::new();
    let (mut made, mut forgotten) = (0, 0);
    until("claims are forgotten in eight rotations", async || {
        made += 1;
        // A long transaction holds up the rotations during ten of every twenty messages.
        match made % 20 {
            0 => {
                long.run("BEGIN; SELECT idem_try_claim(gen_random_uuid(), 'others')")
                    .await?
            }
            10 => long.run("COMMIT").await?,
            _ => {}
        }
        let claim = format!(
            "SELECT idem_try_record('m{made}', 'orders', \
             '[{{\"topic\": \"t\", \"payload\": {made}}}, \
               {{\"topic\": \"t\", \"payload\": \"second\"}}]')"
        );
        assert_eq!(session.text(&claim).await?, "t");
        alive.insert(made, facts(&session, made).await?);

        // Read the effects before the claim: a claim that is found afterwards existed when its
        // effects were read.
        let rows = session
            .query(
                "SELECT n, (SELECT string_agg(e::text, ' ' ORDER BY e.ordinal) \
                 FROM idem_effects('m' || n, 'orders') e), \
                        idem_is_claimed('m' || n, 'orders') FROM unnest($1::integer[]) n",
                &[&alive.keys().copied().collect::<Vec<i32>>()],
            )
            .await?;
        for row in rows {
            let (n, now, claimed) = (
                row.get::<_, i32>(0),
                row.get::<_, Option<String>>(1),
                row.get(2),
            );
            if claimed {
                ensure!(
                    now.as_ref() == alive.get(&n),
                    "effects of message {n} of {made} have changed from {:?} to {now:?}",
                    alive.get(&n)
                );
            } else {
                forgotten += 1;
                alive.remove(&n);
            }
        }
        maintain(&maintainer).await?;
        // On a busy machine few claims are made, and forgotten, during the rotations.
        Ok(forgotten > 10 && rotations(&session, "outbox").await? >= 8)
    })
    .await
}

/// I3: a claim that is made while the ring opens is also written into the next slice, before that
/// slice becomes current. To decide which effects it can forget, the outbox must therefore use the
/// time at which the slice of claims was opened, and not the time at which this slice became
/// current.
#[tokio::test]
async fn i3_claim_made_while_ring_opens_keeps_its_effects() -> Result<()> {
    let db = Database::with_idem("opening").await?;
    let (session, maintainer, long) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    session.run("SELECT idem_drop_relay('default')").await?;
    maintainer.run("SET idem.fence_wait = 0").await?;

    long.run("BEGIN; SELECT idem_try_claim('long', 'others')")
        .await?;
    make_due(&session, "standard").await?;
    until(
        "the ring opens and waits for the long transaction",
        async || {
            maintain(&maintainer).await?;
            Ok(session
                .text("SELECT phase = 'opening' FROM idem.ring WHERE name = 'standard'")
                .await?
                == "t")
        },
    )
    .await?;
    let claim =
        "SELECT idem_try_record('m1', 'orders', '[{\"topic\": \"t\", \"payload\": \"told\"}]')";
    assert_eq!(session.text(claim).await?, "t");
    let recorded = facts(&session, 1).await?;
    assert!(!recorded.is_empty());
    rotate(&session, &maintainer, "outbox").await?;
    long.run("COMMIT").await?;

    // The claim is in the slice that is current from now on. After these rotations it is the oldest
    // slice.
    for ring in ["standard", "short", "long"] {
        while rotations(&session, ring).await? <= SEALED as i64 {
            rotate(&session, &maintainer, ring).await?;
        }
    }
    for _ in 0..6 {
        make_due(&session, "outbox").await?;
        maintain(&maintainer).await?;
        assert_eq!(
            session
                .text("SELECT idem_is_claimed('m1', 'orders')")
                .await?,
            "t"
        );
        assert_eq!(facts(&session, 1).await?, recorded);
    }

    // The claim is forgotten with its slice, and the effects are forgotten after the claim.
    rotate(&session, &maintainer, "standard").await?;
    assert_eq!(
        session
            .text("SELECT idem_is_claimed('m1', 'orders')")
            .await?,
        "f"
    );
    until("the outbox forgets the effects", async || {
        make_due(&session, "outbox").await?;
        maintain(&maintainer).await?;
        Ok(session.text("SELECT count(*) FROM idem.outbox_row").await? == "0")
    })
    .await
}

/// Returns every column of every effect of the message.
async fn facts(session: &Session, message: i32) -> Result<String> {
    session
        .text(&format!(
            "SELECT string_agg(e::text, ' ' ORDER BY e.ordinal) \
             FROM idem_effects('m{message}', 'orders') e"
        ))
        .await
}

/// Rotates the ring once, with all steps of the rotation.
async fn rotate(session: &Session, maintainer: &Session, ring: &str) -> Result<()> {
    let before = rotations(session, ring).await?;
    make_due(session, ring).await?;
    until("the ring rotates", async || {
        maintain(maintainer).await?;
        let settled = format!(
            "SELECT phase <> 'opening' AND (phase <> 'emptying' OR name = 'outbox') \
             FROM idem.ring WHERE name = '{ring}'"
        );
        Ok(rotations(session, ring).await? > before && session.text(&settled).await? == "t")
    })
    .await
}
