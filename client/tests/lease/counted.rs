//! Attempts at transactional handlers that the database counts.

use std::{
    future::pending,
    sync::atomic::{AtomicUsize, Ordering},
};

use idem_client::{Error, Idem, Message, Processed, Settlement, Style, Tx};

use crate::{
    ground::{Ground, SHORT, fact, idem, is_new, message, until, work},
    proxy::{Cut, Proxy},
};

fn counting(style: Style) -> Idem {
    idem(|rule| rule.style(style).count_attempts(true).lease(SHORT))
}

/// As a broker delivers it again.
fn redelivered() -> Message {
    message().with_deliveries(2)
}

#[tokio::test]
async fn a_message_that_is_delivered_again_is_counted_and_takes_effect_once() {
    let ground = Ground::new().await;
    for style in [Style::Eager, Style::Reactive] {
        let message = redelivered();
        let processed = counting(style)
            .process(&ground.pool, &message, async |tx: Tx, message: Message| {
                assert!(ground.left(&message).await.is_some(), "it is leased");
                work(tx, message).await
            })
            .await;
        assert!(is_new(&processed), "{processed:?}");
        ground.assert_done_once(&message).await;
        let again = counting(style)
            .process(&ground.pool, &message, work)
            .await
            .unwrap();
        assert!(matches!(again, Processed::Duplicate { .. }), "{again:?}");
        assert_eq!(ground.work(&message).await, 1);
    }
}

#[tokio::test]
async fn a_first_delivery_and_a_policy_that_does_not_ask_cost_no_lease() {
    let ground = Ground::new().await;
    let unasked = idem(|rule| rule.lease(SHORT));
    for (idem, message) in [
        (counting(Style::Eager), message().with_deliveries(1)),
        (unasked, redelivered()),
    ] {
        let processed = idem
            .process(&ground.pool, &message, async |tx: Tx, message: Message| {
                assert_eq!(ground.left(&message).await, None);
                work(tx, message).await
            })
            .await;
        assert!(is_new(&processed), "{processed:?}");
    }
}

#[tokio::test]
async fn a_message_that_kills_its_consumer_each_time_is_buried_after_its_attempts() {
    let ground = Ground::new().await;
    ground.attempts(3).await;
    let message = redelivered();
    let idem = counting(Style::Eager);
    let deaths = AtomicUsize::new(0);
    let mut last = None;
    until("it is buried", async || {
        let processed = idem.process(&ground.pool, &message, async |tx: Tx, message: Message| {
            work(tx, message).await?;
            deaths.fetch_add(1, Ordering::SeqCst);
            pending().await
        });
        let before = deaths.load(Ordering::SeqCst);
        let dies = until("the handler works", async || {
            deaths.load(Ordering::SeqCst) > before
        });
        tokio::select! {
            processed = processed => last = Some(processed.unwrap()),
            () = dies => ground.expire(&message).await,
        }
        matches!(last, Some(Processed::Buried { .. }))
    })
    .await;
    assert_eq!(deaths.into_inner(), 3);
    assert_eq!(last.unwrap().settlement(), Settlement::Acknowledge);
    ground.until_quiet().await;
    assert_eq!(
        (
            ground.work(&message).await,
            ground.is_claimed(&message).await
        ),
        (0, false)
    );
    let sql = "SELECT count(*) FROM idem.dead_letter WHERE payload = '{\"n\": 1}'";
    assert_eq!(ground.count(sql).await, 1);
}

#[tokio::test]
async fn a_failure_is_counted_and_rolled_back() {
    let ground = Ground::new().await;
    ground.attempts(2).await;
    for style in [Style::Eager, Style::Reactive] {
        let message = redelivered();
        let idem = counting(style);
        let failing = async |tx: Tx, message: Message| {
            work(tx, message).await?;
            Err("a bad day".into())
        };
        let error = idem
            .process(&ground.pool, &message, failing)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Attempt { .. }), "{error:?}");
        let processed = idem.process(&ground.pool, &message, failing).await.unwrap();
        assert!(
            matches!(processed, Processed::Buried { .. }),
            "{processed:?}"
        );
        assert_eq!(
            (
                ground.work(&message).await,
                ground.is_claimed(&message).await
            ),
            (0, false)
        );
    }
}

#[tokio::test]
async fn a_commit_in_doubt_is_settled_before_the_handler_works_again() {
    let ground = Ground::new().await;
    // A handler that worked twice would fail at its own first work.
    ground
        .observer
        .batch_execute("CREATE UNIQUE INDEX ON work (id)")
        .await
        .unwrap();
    for (cut, is_duplicate) in [(Cut::AfterCommit, true), (Cut::BeforeCommit, false)] {
        let proxy = Proxy::to(&ground.database).await;
        let message = redelivered();
        let processed = counting(Style::Eager)
            .process(
                &proxy.pool(2),
                &message,
                async |tx: Tx, message: Message| {
                    if !proxy.was_cut() {
                        proxy.cut_once(cut);
                    }
                    work(tx, message).await
                },
            )
            .await
            .unwrap();
        assert!(proxy.was_cut());
        assert_eq!(
            matches!(processed, Processed::Duplicate { .. }),
            is_duplicate,
            "{processed:?}"
        );
        assert_eq!(ground.work(&message).await, 1);
        ground.assert_done_once(&message).await;
    }
}

/// Who hears of the loss before it hears of its own commit has lost nothing.
#[tokio::test]
async fn a_lease_that_was_completed_is_no_lease_that_was_lost() {
    let ground = Ground::new().await;
    let message = redelivered();
    let processed = counting(Style::Eager)
        .process(&ground.pool, &message, async |_: Tx, message: Message| {
            ground.expire(&message).await;
            let held = ground.acquired_next(&message).await;
            held.complete(&ground.observer, &[fact()]).await?;
            // Until renewal is refused.
            pending().await
        })
        .await
        .unwrap();
    assert!(
        matches!(processed, Processed::Duplicate { .. }),
        "{processed:?}"
    );
    ground.until_quiet().await;
    assert_eq!(ground.work(&message).await, 0);
}

#[tokio::test]
async fn a_consumer_that_has_lost_its_lease_commits_nothing() {
    let ground = Ground::new().await;
    let message = redelivered();
    let error = counting(Style::Eager)
        .process(&ground.pool, &message, async |tx: Tx, message: Message| {
            let effects = work(tx, message.clone()).await;
            // It was paused, say, and somebody else came.
            ground.expire(&message).await;
            let _other = ground.acquired_next(&message).await;
            effects
        })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::LeaseLost), "{error:?}");
    ground.until_quiet().await;
    assert_eq!(ground.work(&message).await, 0);
    ground.assert_undone(&message).await;
}
