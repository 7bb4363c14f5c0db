//! Commits of which nobody knows whether they took effect.

use std::sync::atomic::{AtomicUsize, Ordering};

use idem_client::{Error, ErrorKind, Idem, Processed, Settlement, Style};

use crate::{
    ground::{Ground, idem, message, work},
    proxy::{Cut, Proxy},
};

#[tokio::test]
async fn a_commit_that_took_effect_unheard_is_found_by_the_next_claim() {
    let ground = Ground::new().await;
    // A handler that ran before the claim would fail at its own first work.
    ground
        .observer
        .batch_execute("CREATE UNIQUE INDEX ON work (id)")
        .await
        .unwrap();
    for style in [Style::Eager, Style::Reactive] {
        let proxy = Proxy::to(&ground.database).await;
        let message = message();
        proxy.cut_once(Cut::AfterCommit);
        let processed = idem(|rule| rule.style(style))
            .process(&proxy.pool(1), &message, work)
            .await
            .unwrap();
        assert!(proxy.was_cut());
        assert!(
            matches!(processed, Processed::Duplicate { .. }),
            "{style:?}: {processed:?}"
        );
        assert_eq!(processed.settlement(), Settlement::Acknowledge);
        ground.assert_done_once(&message).await;
    }
}

#[tokio::test]
async fn a_commit_that_never_arrived_is_done_again() {
    let ground = Ground::new().await;
    for style in [Style::Eager, Style::Reactive] {
        let proxy = Proxy::to(&ground.database).await;
        let message = message();
        proxy.cut_once(Cut::BeforeCommit);
        let processed = idem(|rule| rule.style(style))
            .process(&proxy.pool(1), &message, work)
            .await
            .unwrap();
        assert!(proxy.was_cut());
        assert!(
            matches!(processed, Processed::New { .. }),
            "{style:?}: {processed:?}"
        );
        ground.assert_done_once(&message).await;
    }
}

#[tokio::test]
async fn a_doubt_outlives_the_loss_of_the_database() {
    let ground = Ground::new().await;
    for style in [Style::Eager, Style::Reactive] {
        for (cut, is_done) in [(Cut::AfterCommit, true), (Cut::BeforeCommit, false)] {
            let proxy = Proxy::to(&ground.database).await;
            let message = message();
            proxy.cut_for_good(cut);
            let error = idem(|rule| rule.style(style))
                .process(&proxy.pool(1), &message, work)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AmbiguousCommit, "{error:?}");
            assert_eq!(error.settlement(), Settlement::RELEASE);
            // The next delivery finds out.
            let processed = Idem::new()
                .process(&ground.pool, &message, work)
                .await
                .unwrap();
            assert_eq!(
                matches!(processed, Processed::Duplicate { .. }),
                is_done,
                "{processed:?}"
            );
            ground.assert_done_once(&message).await;
        }
    }
}

#[tokio::test]
async fn without_attempts_left_a_doubt_is_not_a_failure() {
    let ground = Ground::new().await;
    let proxy = Proxy::to(&ground.database).await;
    let message = message();
    proxy.cut_once(Cut::AfterCommit);
    let error = idem(|rule| rule.max_attempts(1))
        .process(&proxy.pool(1), &message, work)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::AmbiguousCommit(_)), "{error:?}");
    assert_eq!(error.settlement(), Settlement::RELEASE);
    ground.assert_done_once(&message).await;
}

#[tokio::test]
async fn without_a_claim_a_commit_in_doubt_is_not_attempted_again() {
    let ground = Ground::new().await;
    let proxy = Proxy::to(&ground.database).await;
    let (message, calls) = (message(), AtomicUsize::new(0));
    proxy.cut_once(Cut::AfterCommit);
    let error = idem(|rule| rule.style(Style::CheckOnly))
        .process(&proxy.pool(1), &message, |tx, message| {
            calls.fetch_add(1, Ordering::SeqCst);
            work(tx, message)
        })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::AmbiguousCommit(_)), "{error:?}");
    assert_eq!((calls.into_inner(), ground.work(&message).await), (1, 1));
}

#[tokio::test]
async fn a_batch_in_doubt_is_resolved_by_the_claims_of_its_messages() {
    let ground = Ground::new().await;
    for cut in [Cut::AfterCommit, Cut::BeforeCommit] {
        let proxy = Proxy::to(&ground.database).await;
        let messages = [message(), message(), message()];
        proxy.cut_once(cut);
        for answer in Idem::new()
            .process_batch(&proxy.pool(1), &messages, work)
            .await
        {
            let processed = answer.unwrap();
            let is_duplicate = matches!(processed, Processed::Duplicate { .. });
            assert_eq!(is_duplicate, cut == Cut::AfterCommit, "{processed:?}");
        }
        for message in &messages {
            ground.assert_done_once(message).await;
        }

        let proxy = Proxy::to(&ground.database).await;
        let messages = [message(), message(), message()];
        proxy.cut_for_good(cut);
        for answer in Idem::new()
            .process_batch(&proxy.pool(1), &messages, work)
            .await
        {
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::AmbiguousCommit);
        }
    }
}
