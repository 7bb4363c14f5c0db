//! I3: whoever finds the claim finds its effects, however often the outbox has turned meanwhile.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use idem_tests::harness::{Database, Session, until};

use super::rotation::{keep_for, maintain, make_due, turns};

#[tokio::test]
async fn i3_the_effects_are_found_as_long_as_the_claim_is_while_everything_turns() -> Result<()> {
    let db = Database::with_idem("facts").await?;
    let (session, keeper, long) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    session.run("SELECT idem_drop_relay('default')").await?;
    // The long transaction ends when this test lets it, not while it is waited for.
    keeper.run("SET idem.fence_wait = 0").await?;
    keep_for(&session, "400 milliseconds").await?;

    let mut alive: BTreeMap<i32, String> = BTreeMap::new();
    let (mut made, mut forgotten) = (0, 0);
    until("the outbox has turned eight times", async || {
        made += 1;
        // Every now and then a transaction holds the rotations up for a while.
        match made % 20 {
            0 => long.run("BEGIN; SELECT idem_try_claim(gen_random_uuid(), 'others')").await?,
            10 => long.run("COMMIT").await?,
            _ => {}
        }
        let claim = format!(
            "SELECT idem_try_record('m{made}', 'orders', \
             '[{{\"topic\": \"t\", \"payload\": {made}}}, {{\"topic\": \"t\", \"payload\": \"second\"}}]')"
        );
        assert_eq!(session.text(&claim).await?, "t");
        alive.insert(made, facts(&session, made).await?);

        // In this order: a claim that is there afterwards was there when its effects were asked
        // for.
        let rows = session
            .query(
                "SELECT n, (SELECT string_agg(e::text, ' ' ORDER BY e.ordinal) FROM idem_effects('m' || n, 'orders') e), \
                        idem_is_claimed('m' || n, 'orders') FROM unnest($1::integer[]) n",
                &[&alive.keys().copied().collect::<Vec<i32>>()],
            )
            .await?;
        for row in rows {
            let (n, now, claimed) = (row.get::<_, i32>(0), row.get::<_, Option<String>>(1), row.get(2));
            if claimed {
                ensure!(
                    now.as_ref() == alive.get(&n),
                    "message {n} of {made}: {:?} has become {now:?}",
                    alive.get(&n)
                );
            } else {
                forgotten += 1;
                alive.remove(&n);
            }
        }
        maintain(&keeper).await?;
        Ok(turns(&session, "outbox").await? >= 8)
    })
    .await?;
    assert!(
        forgotten > 10,
        "claims are forgotten meanwhile: {forgotten} of {made}"
    );
    Ok(())
}

/// While a ring opens, claims go into two slices, and the younger of them is kept longer than they
/// are old. The outbox must go by when the slice was opened, not by when it became current.
#[tokio::test]
async fn i3_the_effects_of_a_claim_made_while_the_ring_opened_are_found_as_long_as_it_is()
-> Result<()> {
    let db = Database::with_idem("opening").await?;
    let (session, keeper, long) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    session.run("SELECT idem_drop_relay('default')").await?;
    keeper.run("SET idem.fence_wait = 0").await?;

    long.run("BEGIN; SELECT idem_try_claim('long', 'others')")
        .await?;
    make_due(&session, "standard").await?;
    until(
        "the ring opens, and waits for the long transaction",
        async || {
            maintain(&keeper).await?;
            Ok(session
                .text("SELECT opening FROM idem.ring WHERE name = 'standard'")
                .await?
                == "t")
        },
    )
    .await?;
    let claim =
        "SELECT idem_try_record('m1', 'orders', '[{\"topic\": \"t\", \"payload\": \"told\"}]')";
    assert_eq!(session.text(claim).await?, "t");
    let told = facts(&session, 1).await?;
    assert!(!told.is_empty());
    turn(&session, &keeper, "outbox").await?;
    long.run("COMMIT").await?;

    // The claim stands in the slice that is current from now on; two turns later that is the oldest
    // one.
    for ring in ["standard", "short", "long"] {
        for _ in 0..3 {
            if turns(&session, ring).await? < 3 {
                turn(&session, &keeper, ring).await?;
            }
        }
    }
    for _ in 0..6 {
        make_due(&session, "outbox").await?;
        maintain(&keeper).await?;
        assert_eq!(
            session
                .text("SELECT idem_is_claimed('m1', 'orders')")
                .await?,
            "t"
        );
        assert_eq!(facts(&session, 1).await?, told);
    }

    // It is forgotten with its slice, and its effects after it.
    turn(&session, &keeper, "standard").await?;
    assert_eq!(
        session
            .text("SELECT idem_is_claimed('m1', 'orders')")
            .await?,
        "f"
    );
    until("the outbox forgets it too", async || {
        make_due(&session, "outbox").await?;
        maintain(&keeper).await?;
        Ok(session.text("SELECT count(*) FROM idem.outbox_row").await? == "0")
    })
    .await
}

/// Every column of every effect.
async fn facts(session: &Session, message: i32) -> Result<String> {
    session
        .text(&format!(
            "SELECT string_agg(e::text, ' ' ORDER BY e.ordinal) FROM idem_effects('m{message}', 'orders') e"
        ))
        .await
}

/// One whole turn of a ring.
async fn turn(session: &Session, keeper: &Session, ring: &str) -> Result<()> {
    let before = turns(session, ring).await?;
    make_due(session, ring).await?;
    until("the ring turns", async || {
        maintain(keeper).await?;
        let settled = format!("SELECT NOT opening AND (NOT emptying OR name = 'outbox') FROM idem.ring WHERE name = '{ring}'");
        Ok(turns(session, ring).await? > before && session.text(&settled).await? == "t")
    })
    .await
}
